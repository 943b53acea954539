// What a trace says by itself, before any pool sees it: the peaks, which block ends when, where warm begins.
//
// Invariants checked here, so that replay need not: every block is allocated once, then freed at most once, then
// completed at most once; sizes are such as a pool may be asked for. Anything else is an InvalidArgument that names the
// event. Blocks are renumbered from 0 without gaps ("slots"), since traces may number them as they like.
// Live ends at free_requested; occupied ends at free_completed where the trace has one, else at free_requested too.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "base/event.hpp"

namespace dymem {

struct TraceFacts {
  static constexpr Nanos kNotTold = -1;  // no free_completed: done when freed, as far as the trace knows
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  Bytes live_peak = 0;
  Bytes occupied_peak = 0;
  std::optional<Bytes> native_reserved_peak;
  std::uint64_t warm_from = 0;               // index of the first warm event
  Nanos warm_time = 0;                       // from that event to the last
  std::uint32_t slots = 0;                   // allocations in the trace
  std::vector<std::uint32_t> slot_of_event;  // kNoSlot for marks and segment events
  std::vector<Nanos> completed_at;           // by slot; kNotTold
};

TraceFacts trace_facts(const std::vector<TraceEvent>& events, int warm_from_iteration);

}  // namespace dymem
