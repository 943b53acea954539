// Waits of one stream for another, on the device, instead of growing far past what is occupied (decision 0005).
//
//   past kFreeWaits over the occupied peak, once that has settled: any stream for what others will have finished with
//   by
//     the time it comes there, a lesser one also for what the busiest one finishes soon
//   past kPatience: a lesser stream for the busiest one's oldest closed epochs
// The busiest stream never waits longer than that outside the limit (slow_path.cpp, step 5). Lock: the pool's.
// Cost: a look at every granule, then one driver call a wait; only where the pool would grow.
#include <algorithm>

#include "pool/impl.hpp"

namespace dymem {

// How far past the occupied peak memory that other streams have not finished with is made up for by growing; past that
// copies wait. Less saves memory and costs step time: see decision 0005.
constexpr double kPatience = 0.147;
// The same, where the wait is expected to take no time.
constexpr double kFreeWaits = 0.015;
// A lesser stream's wait that ends this soon (ns) is as good as none: what it does runs beside the busiest one. So is one
// that ends within this part of the busiest one's backlog: who needs its result is enqueued behind all of that.
constexpr Nanos kSoon = 10'000'000;
constexpr double kSoonOfBacklog = 0.75;
// The peak of occupied bytes has settled once it has not risen (by more than this share) while so many times as much was
// handed out: until then a larger reserve is no waste.
constexpr Bytes kSettled = 1, kRisenShare = 64;

Bytes Pool::Impl::above_peak(double share) const { return Bytes(double(counters.occupied_peak()) * (1 + share)); }

// A stream beside the one that does most of the work (a copy or collective beside compute) may wait for what that one
// freed a while ago: the oldest closed epochs that make up the request. Never the other way round: compute would stand
// behind copies. False if there is too little to wait for.
bool Pool::Impl::wait_for_busiest(Bytes fresh, Bytes size, StreamIndex by) {
  if (!config.wait || streams.single() || streams.any_capturing()) return false;
  if (space.reserved() + fresh <= above_peak(kPatience)) return false;
  StreamIndex on = streams.busiest();
  if (on == by) return false;
  Epoch closed = streams.closed_epoch(on);
  std::vector<std::pair<Epoch, Bytes>> idle;
  for (GranuleId g = 0; g < space.granules(); g++)
    if (auto after = home.idle_after(g, by, on); after && *after <= closed)
      idle.push_back({*after, space.granule(g).size});
  std::sort(idle.begin(), idle.end());
  Bytes got = 0;
  for (auto& [epoch, bytes] : idle) {
    got += bytes;
    if (got < size) continue;
    if (epoch == 0 || !streams.make_wait_for(by, {on, epoch})) return false;
    stats.num_stream_waits++;
    return true;
  }
  return false;
}

void Pool::Impl::note_peak() {
  if (counters.occupied_peak() <= settled_peak + settled_peak / kRisenShare) return;
  settled_peak = counters.occupied_peak();
  settled_since = counters.bytes_handed_out();
}

bool Pool::Impl::peak_settled() const { return counters.bytes_handed_out() - settled_since > kSettled * settled_peak; }

// The newest epoch of `on` that `by` can wait for at no cost; 0: none.
Epoch Pool::Impl::passed_for_free(StreamIndex by, StreamIndex on, StreamIndex busiest) const {
  Epoch passed = streams.passed_by_then(by, on);
  if (on != busiest) return passed;
  return std::max(passed, streams.passed_within(on, std::max(kSoon, Nanos(double(streams.backlog(on)) * kSoonOfBacklog))));
}

// Before growing past the budget: what other streams freed and will have finished with when this one comes to use it
// can be had by a wait that takes no time. False if there is none of it.
bool Pool::Impl::wait_where_free(Bytes fresh, StreamIndex by) {
  if (!config.wait || streams.single() || !peak_settled() || streams.any_capturing()) return false;
  if (space.reserved() + fresh <= above_peak(kFreeWaits)) return false;
  bool gained = false;
  StreamIndex busiest = streams.busiest();
  for (std::size_t on = 0; on < streams.size(); on++) {
    if (on == by) continue;
    Epoch passed = passed_for_free(by, StreamIndex(on), busiest);
    if (!passed) continue;
    bool some = false;
    for (GranuleId g = 0; g < space.granules() && !some; g++) {
      auto after = home.idle_after(g, by, StreamIndex(on));
      some = after && *after && *after <= passed;
    }
    if (!some || !streams.make_wait_for(by, {StreamIndex(on), passed})) continue;
    stats.num_stream_waits++;
    gained = true;
  }
  return gained;
}

// The same two rules where memory cannot be pieced together: what is waited for is one run that holds the request.
bool Pool::Impl::wait_for_run(Bytes fresh, Bytes size, StreamIndex by) {
  if (!config.wait || streams.single() || streams.any_capturing()) return false;
  const Bytes risen = space.reserved() + fresh;
  auto wait = [&](StreamIndex on, Epoch most) {
    Epoch epoch = most ? home.run_after(size, by, on, most) : 0;
    if (!epoch || !streams.make_wait_for(by, {on, epoch})) return false;
    stats.num_stream_waits++;
    return true;
  };
  StreamIndex busiest = streams.busiest();
  if (peak_settled() && risen > above_peak(kFreeWaits))
    for (std::size_t on = 0; on < streams.size(); on++) {
      if (on == by) continue;
      Epoch passed = passed_for_free(by, StreamIndex(on), busiest);
      if (wait(StreamIndex(on), passed)) return true;
    }
  return risen > above_peak(kPatience) && busiest != by && wait(busiest, streams.closed_epoch(busiest));
}

}  // namespace dymem
