// A trace through a pool on the emulated driver (accounting only): would this run have fitted, and what would it cost?
//
// Time is the trace's own. An address freed on a stream is reusable by that stream at once; by others `lag` after the
// trace says the free completed (what one stream waited for is not in a PyTorch snapshot). A block whose completion the
// trace puts later than its request is kept pending until then, through record_stream on a stream that finishes then.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/event.hpp"
#include "pool/pool.hpp"
#include "replay/layout_watch.hpp"

namespace dymem {

struct ReplayOptions {
  PoolConfig pool;  // pool.limit is the hard limit, 0 = none
  Nanos lag_ns = 10'000'000;
  int warm_from_iteration = 3;    // where iterations are marked; else the second half of the events
  std::uint64_t audit_every = 0;  // 0 = only at the end
  bool layout = false;            // fill ReplayResult::layout
};

struct ReplayOom {
  std::uint64_t event = 0;  // index into the trace
  OutOfMemoryFigures figures;
};

struct ReplayResult {
  std::uint64_t events = 0;
  Bytes live_peak_bytes = 0;                              // from the trace: blocks rounded to 512 B
  Bytes occupied_peak_bytes = 0;                          // from the trace: until free_completed
  Bytes reserved_peak_bytes = 0;                          // from the pool
  std::optional<Bytes> native_reserved_peak_bytes;        // from the trace's segment events
  std::uint64_t driver_calls = 0, driver_calls_warm = 0;  // create, map, access, unmap, release
  double driver_time_us = 0, driver_time_warm_us = 0, trace_time_warm_us = 0;
  std::uint64_t event_calls = 0;
  std::uint64_t views_max = 0;
  Bytes va_peak_bytes = 0;
  std::optional<ReplayOom> oom;
  double malloc_ns_median = 0, malloc_ns_p99 = 0, free_ns_median = 0, free_ns_p99 = 0;
  std::vector<std::string> audit;  // broken invariants; empty = sound
  PoolStats stats;
  // Contiguous backing, of each iteration (-1: before the first): the most that its blocks spanned, so what a slab had
  // to have for it; `slab_bytes` less that is the smallest gap.
  std::map<std::int32_t, Bytes> needed;
  UnusableFree unusable_free;  // at the moment at which reserved came to its peak
  ReplayLayout layout;  // as far as the replay came; empty unless asked for
};

// `progress` is called now and then with the number of events done; it may be empty. Does not throw OutOfMemory.
ReplayResult replay(const std::vector<TraceEvent>& events, const ReplayOptions& options,
                    const std::function<void(std::uint64_t)>& progress = {});

}  // namespace dymem
