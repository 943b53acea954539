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

// TraceEvent::block of what was allocated before recording began: only its address is known.
constexpr std::uint64_t kUnnumbered = ~std::uint64_t{0};

// Where a pool reports what it is asked, and (for who wants to know) where its memory lies. Everything here runs under
// the pool's lock: no calls back, no waiting, no throwing.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // `at`: the block's address.
  virtual void record(const TraceEvent& event, Addr at) = 0;
  // A block's bytes are free: told after its free_requested in every case, at once or later. `requested`: bytes asked for.
  virtual void completed(Addr /*at*/, Bytes /*requested*/, StreamId /*stream*/) {}
  // Memory appears at these addresses (segment_alloc) or no longer does (segment_free). `lent`: it is not the device's
  // doing: free memory goes to a stitched block's addresses, or comes back to its own. Each byte is told of at one
  // address at a time, so what has appeared and not gone again adds up to reserved (and sleeping) bytes.
  virtual void segment(TraceKind /*kind*/, Addr /*at*/, Bytes /*size*/, bool /*lent*/) {}
};

}  // namespace dymem
