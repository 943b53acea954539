// Replaying: the trace's clock, its streams, its completions; a real pool on an emulated device.
//
// Choices that a PyTorch snapshot forces, since it does not say what one stream waited for:
//   C1  The clock stands at the event's time when its call is made, and never goes back. Marks don't move it: a program
//       makes them, by whatever clock it has.
//   C2  A block with a free_completed of its own is pending until exactly that time: before it is freed it is recorded
//   on
//       a stream that finishes then (completion_streams.hpp), for which the lag does not count. What the pool records
//       on the block's own stream still completes `lag` later: other streams wait for the later of the two.
//   C3  Where the trace has a record_stream but no free_completed (it ends before), record_stream is replayed as it
//   was.
//       With a free_completed, C2 already says when that work was done, so it is not replayed a second time.
//   C4  The device has room for eight times the occupied peak: only pool.limit makes an OOM, or a pool gone astray.
//   C5  The first OutOfMemory ends the replay; the peaks of the trace are those of the whole trace all the same.
// Times of calls are of the host that replays, the emulated driver's share included; driver time is the cost model's.
// Single threaded, no locks.
#include "replay/replay.hpp"

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "driver/emulated.hpp"
#include "replay/call_timer.hpp"
#include "replay/completion_streams.hpp"
#include "replay/replay_driver.hpp"
#include "replay/trace_facts.hpp"

namespace dymem {
namespace {

constexpr std::uint64_t kProgressEvery = 4096;
constexpr std::size_t kAuditSentencesMax = 100;

std::unordered_set<StreamId> streams_of(const std::vector<TraceEvent>& events) {
  std::unordered_set<StreamId> streams;
  for (const TraceEvent& e : events) streams.insert(e.stream);
  return streams;
}

void audit(const Pool& pool, std::vector<std::string>* sentences) {
  for (std::string& sentence : pool.audit())
    if (sentences->size() < kAuditSentencesMax) sentences->push_back(std::move(sentence));
}

class Replay {
 public:
  Replay(const std::vector<TraceEvent>& events, const ReplayOptions& options)
      : events_(events),
        options_(options),
        facts_(trace_facts(events, options.warm_from_iteration)),
        completions_(streams_of(events)),
        device_(make_emulated_driver(device_options(facts_))),
        driver_(*device_, completions_, options.lag_ns),
        watch_(driver_, result_.layout),
        pool_(options.layout ? static_cast<Driver&>(watch_) : driver_, options.pool),
        address_(facts_.slots) {
    result_.events = events.size();
    result_.live_peak_bytes = facts_.live_peak;
    result_.occupied_peak_bytes = facts_.occupied_peak;
    result_.native_reserved_peak_bytes = facts_.native_reserved_peak;
    result_.trace_time_warm_us = double(facts_.warm_time) / 1000;
    malloc_ticks_.reserve(facts_.slots);
    free_ticks_.reserve(facts_.slots);
  }

  ReplayResult run(const std::function<void(std::uint64_t)>& progress) {
    DriverCounters cold;
    for (std::uint64_t i = 0; i < events_.size(); ++i) {
      if (i == facts_.warm_from) cold = driver_.counters();
      if (events_[i].kind != TraceKind::mark) now_ = std::max(now_, events_[i].time_ns);  // C1
      device_->advance_to(now_);
      if (options_.layout) watch_.at_event(i);
      if (!step(i)) break;
      note_unusable();
      if (slabs_ && events_[i].kind == TraceKind::alloc) note_needed(events_[i].iteration);
      if (options_.layout) note_layout(i);
      if (options_.audit_every != 0 && (i + 1) % options_.audit_every == 0) audit(pool_, &result_.audit);
      if (progress && (i + 1) % kProgressEvery == 0) progress(i + 1);
    }
    if (progress) progress(result_.oom ? result_.oom->event : events_.size());
    finish(cold);
    return std::move(result_);
  }

 private:
  static EmulatedOptions device_options(const TraceFacts& facts) {
    EmulatedOptions device;
    device.bytes = false;
    device.capacity = std::max<Bytes>(kTiB, 8 * round_up(facts.occupied_peak, kGiB));
    return device;
  }

  void note_layout(std::uint64_t index) {
    const bool alloc = events_[index].kind == TraceKind::alloc;
    result_.layout.address.push_back(alloc ? address_[facts_.slot_of_event[index]] : 0);
    result_.layout.reserved.push_back(static_cast<Bytes>(pool_.stats().reserved_bytes[kAll].current));
    result_.layout.spanned.push_back(pool_.spanned());
  }

  void note_needed(std::int32_t iteration) {
    Bytes& most = result_.needed[iteration];
    most = std::max(most, pool_.spanned());
  }

  void note_unusable() {
    const Bytes peak = pool_.reserved_peak();
    if (peak <= reserved_peak_) return;
    reserved_peak_ = peak;
    result_.unusable_free = pool_.unusable_free();
  }

  // One event; false: out of memory.
  bool step(std::uint64_t index) {
    const TraceEvent& e = events_[index];
    const std::uint32_t slot = facts_.slot_of_event[index];
    switch (e.kind) {
      case TraceKind::alloc: {
        const auto mobility =
            e.mobility <= std::uint8_t(Mobility::reclaimed) ? Mobility(e.mobility) : Mobility::untagged;
        try {
          const std::uint64_t start = CallTimer::ticks();
          address_[slot] = pool_.malloc(e.size, e.stream, mobility);
          malloc_ticks_.push_back(CallTimer::since(start));
        } catch (const OutOfMemory& oom) {
          result_.oom = ReplayOom{index, oom.figures};
          return false;
        }
        return true;
      }
      case TraceKind::free_requested: {
        const Nanos completion = facts_.completed_at[slot];
        if (completion != TraceFacts::kNotTold) {
          const StreamId stream = completions_.stream_for(completion);
          device_->set_busy_until(stream, completion);
          pool_.record_stream(address_[slot], stream);
        }
        const std::uint64_t start = CallTimer::ticks();
        pool_.free(address_[slot]);
        free_ticks_.push_back(CallTimer::since(start));
        return true;
      }
      case TraceKind::record_stream:
        if (facts_.completed_at[slot] == TraceFacts::kNotTold) pool_.record_stream(address_[slot], e.stream);
        return true;
      default:
        return true;
    }
  }

  void finish(const DriverCounters& cold) {
    const DriverCounters all = driver_.counters();
    result_.driver_calls = all.memory_calls();
    result_.driver_time_us = double(all.memory_time_ns) / 1000;
    // Without a single warm event (an OOM before) nothing was spent there.
    const bool reached_warm = !result_.oom || result_.oom->event >= facts_.warm_from;
    if (reached_warm) {
      result_.driver_calls_warm = all.memory_calls() - cold.memory_calls();
      result_.driver_time_warm_us = double(all.memory_time_ns - cold.memory_time_ns) / 1000;
    }
    result_.event_calls = all.event_record + all.event_query + all.event_wait;
    audit(pool_, &result_.audit);
    result_.stats = pool_.stats();
    result_.reserved_peak_bytes = static_cast<Bytes>(result_.stats.reserved_bytes[kAll].peak);
    result_.views_max = result_.stats.views_max;
    result_.va_peak_bytes = result_.stats.va_bytes_max;
    result_.malloc_ns_median = timer_.quantile_ns(malloc_ticks_, 0.5);
    result_.malloc_ns_p99 = timer_.quantile_ns(malloc_ticks_, 0.99);
    result_.free_ns_median = timer_.quantile_ns(free_ticks_, 0.5);
    result_.free_ns_p99 = timer_.quantile_ns(free_ticks_, 0.99);
  }

  const std::vector<TraceEvent>& events_;
  const ReplayOptions& options_;
  const TraceFacts facts_;
  CallTimer timer_;
  CompletionStreams completions_;
  std::unique_ptr<EmulatedDriver> device_;
  ReplayDriver driver_;
  ReplayResult result_;  // before the watch, which writes into it for as long as the pool lives
  LayoutWatch watch_;
  Pool pool_;
  std::vector<Addr> address_;  // by slot
  std::vector<std::uint32_t> malloc_ticks_, free_ticks_;
  Nanos now_ = 0;
  Bytes reserved_peak_ = 0;
  const bool slabs_ = options_.pool.backing == Backing::contiguous;
};

}  // namespace

ReplayResult replay(const std::vector<TraceEvent>& events, const ReplayOptions& options,
                    const std::function<void(std::uint64_t)>& progress) {
  if (options.lag_ns < 0) throw InvalidArgument("the lag of a replay must not be negative");
  return Replay(events, options).run(progress);
}

}  // namespace dymem
