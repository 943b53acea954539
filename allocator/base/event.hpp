// One event of a trace: what a program did to an allocator. Fixed size, so that recording is a store.
#pragma once
#include "base/units.hpp"

namespace dymem {

enum class TraceKind : std::uint8_t {
  alloc,           // block = its number, size, stream, mobility
  free_requested,  // the caller let go of it
  free_completed,  // no stream needs it any more (only where this differs from free_requested)
  record_stream,   // work on `stream` uses block too
  mark,            // `size` = iteration number (as int64), `aux` = phase character; from the program, not the allocator
  segment_alloc,   // the recorded allocator took `size` bytes of the device (native recordings)
  segment_free,
};

struct TraceEvent {
  Nanos time_ns = 0;        // since the first event
  std::uint64_t block = 0;  // number of the allocation, from 0
  std::uint64_t size = 0;   // requested bytes
  StreamId stream = 0;
  TraceKind kind = TraceKind::alloc;
  std::uint8_t mobility = 0;  // dymem::Mobility
  std::uint16_t aux = 0;
  std::int32_t iteration = -1;  // -1: before the first, or not marked
};
static_assert(sizeof(TraceEvent) == 40);

// Where a pool reports what it is asked. record() runs under the pool's lock: no calls back, no waiting, no throwing.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void record(const TraceEvent& event) = 0;
};

}  // namespace dymem
