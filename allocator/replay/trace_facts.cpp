// One pass over a trace; the rules are in the header.
#include "replay/trace_facts.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/errors.hpp"

namespace dymem {
namespace {

enum class Life : std::uint8_t { live, freed, completed };

[[noreturn]] void refuse(std::uint64_t index, const TraceEvent& e, const std::string& what) {
  throw InvalidArgument("event " + std::to_string(index) + " of the trace " + what + " block " +
                        std::to_string(e.block) + "; the trace is damaged or its reader is at fault");
}

}  // namespace

TraceFacts trace_facts(const std::vector<TraceEvent>& events, int warm_from_iteration) {
  TraceFacts facts;
  facts.slot_of_event.assign(events.size(), TraceFacts::kNoSlot);
  std::unordered_map<std::uint64_t, std::uint32_t> slot_of_block;
  std::vector<Life> life;
  std::vector<Bytes> size;

  // First what lies ahead of the running totals: whether a block's end is told separately.
  for (std::uint64_t i = 0; i < events.size(); ++i) {
    const TraceEvent& e = events[i];
    if (e.stream == ~StreamId{0})
      throw InvalidArgument("event " + std::to_string(i) + " of the trace is of a stream that no device has; the trace " +
                            "is damaged");
    switch (e.kind) {
      case TraceKind::alloc: {
        if (e.size > kRequestMax)
          throw InvalidArgument("event " + std::to_string(i) + " of the trace asks for " + std::to_string(e.size) +
                                " bytes, more than any device has; the trace is damaged");
        const auto [at, fresh] = slot_of_block.emplace(e.block, facts.slots);
        if (!fresh) refuse(i, e, "allocates for the second time");
        facts.slot_of_event[i] = facts.slots++;
        life.push_back(Life::live);
        size.push_back(block_size(e.size));
        facts.completed_at.push_back(TraceFacts::kNotTold);
        break;
      }
      case TraceKind::free_requested:
      case TraceKind::free_completed:
      case TraceKind::record_stream: {
        const auto at = slot_of_block.find(e.block);
        if (at == slot_of_block.end()) refuse(i, e, "uses the never allocated");
        const std::uint32_t slot = at->second;
        facts.slot_of_event[i] = slot;
        if (e.kind == TraceKind::free_requested) {
          if (life[slot] != Life::live) refuse(i, e, "frees for the second time");
          life[slot] = Life::freed;
        } else if (e.kind == TraceKind::free_completed) {
          if (life[slot] != Life::freed) refuse(i, e, "completes, without a free before it,");
          life[slot] = Life::completed;
          facts.completed_at[slot] = e.time_ns;
        } else if (life[slot] != Life::live) {
          refuse(i, e, "records a stream on the already freed");
        }
        break;
      }
      case TraceKind::mark:
      case TraceKind::segment_alloc:
      case TraceKind::segment_free:
        break;
      default:
        throw InvalidArgument("event " + std::to_string(i) + " of the trace is of unknown kind " +
                              std::to_string(int(e.kind)) + "; use the dymem that wrote it");
    }
  }

  Bytes live = 0, occupied = 0, native = 0;
  bool native_told = false, warm_found = false;
  for (std::uint64_t i = 0; i < events.size(); ++i) {
    const TraceEvent& e = events[i];
    const std::uint32_t slot = facts.slot_of_event[i];
    const std::int64_t iteration =
        e.kind == TraceKind::mark ? static_cast<std::int64_t>(e.size) : static_cast<std::int64_t>(e.iteration);
    if (!warm_found && iteration >= warm_from_iteration && iteration >= 0) {
      facts.warm_from = i;
      warm_found = true;
    }
    switch (e.kind) {
      case TraceKind::alloc:
        live += size[slot];
        occupied += size[slot];
        break;
      case TraceKind::free_requested:
        live -= size[slot];
        if (facts.completed_at[slot] == TraceFacts::kNotTold) occupied -= size[slot];
        break;
      case TraceKind::free_completed:
        occupied -= size[slot];
        break;
      case TraceKind::segment_alloc:
        native += e.size;
        native_told = true;
        break;
      case TraceKind::segment_free:
        native -= std::min<Bytes>(native, e.size);  // a segment older than the trace
        break;
      default:
        break;
    }
    facts.live_peak = std::max(facts.live_peak, live);
    facts.occupied_peak = std::max(facts.occupied_peak, occupied);
    if (native_told) facts.native_reserved_peak = std::max(facts.native_reserved_peak.value_or(0), native);
  }
  if (!warm_found) facts.warm_from = events.size() / 2;
  std::uint64_t first = facts.warm_from, last = events.size();  // of what has the trace's clock
  while (first < last && events[first].kind == TraceKind::mark) ++first;
  while (last > first && events[last - 1].kind == TraceKind::mark) --last;
  if (first < last) facts.warm_time = std::max<Nanos>(0, events[last - 1].time_ns - events[first].time_ns);
  return facts;
}

}  // namespace dymem
