#include "stream/stream_table.hpp"

#include <algorithm>

#include "base/capture.hpp"

namespace dymem {

// An event costs about 0.9 us with its queries; closing at most this often keeps that far below a per cent of a step,
// and what other streams wait for is at most this much later than it could be.
constexpr Bytes kCloseBytes = 16 * kMiB;
constexpr Nanos kCloseInterval = 300'000, kCloseAnyway = 3'000'000;

// What was freed counts half after so much more was: streams that fell idle are forgotten.
constexpr Bytes kLately = 64 * kGiB;
constexpr Bytes kContendedShare = 1024, kMuchContendedShare = 32;

// A wait that is to take no time ends by this part of the waiter's backlog before the waiter comes to it.
constexpr Nanos kWaitMargin = 8;
// A backlog shorter than this passes by itself: nothing that is worth a wait.
constexpr Nanos kBacklogLeast = 5'000'000;
// As much of the time between two events of a stream counts as work.
constexpr Nanos kGapMost = 10'000'000;

StreamTable::StreamTable(Driver& driver) : driver_(driver) {}

StreamTable::~StreamTable() {
  for (auto& s : streams_)
    for (auto& c : s.closed) (void)driver_.event_destroy(c.event);
  for (EventId e : spare_events_) (void)driver_.event_destroy(e);
}

StreamIndex StreamTable::index_slow(StreamId stream) {
  auto [it, fresh] = by_id_.try_emplace(stream, StreamIndex(streams_.size()));
  if (fresh) {
    if (streams_.size() >= 0xffff) {
      by_id_.erase(it);
      throw InvalidArgument("dymem: more than 65,535 streams were used; reuse streams instead of making new ones");
    }
    streams_.emplace_back();
    streams_.back().id = stream;
    several_ = streams_.size() > 1;
  }
  cached_id_ = stream;
  cached_index_ = it->second;
  return it->second;
}

bool StreamTable::waited(LastUse use, StreamIndex by) const {
  auto it = waits_.find(std::uint32_t(by) << 16 | use.stream);
  return it != waits_.end() && it->second >= use.epoch;
}

Status StreamTable::take_event(EventId* out) {
  if (spare_events_.empty()) return driver_.event_create(out);
  *out = spare_events_.back();
  spare_events_.pop_back();
  return {};
}

bool StreamTable::close_due() {
  Nanos t = driver_.now();
  bool closed = false;
  for (std::size_t s = 0; s < streams_.size(); s++) {
    Stream& st = streams_[s];
    if (!st.used) continue;
    Nanos wait = st.gathered >= kCloseBytes ? kCloseInterval : kCloseAnyway;
    if (t - st.closed_at >= wait) closed |= close(StreamIndex(s)).ok();
  }
  return closed && poll();
}

Status StreamTable::close(StreamIndex s) {
  if (any_capturing()) return {Code::not_ready, "event_record", 0};
  Stream& st = streams_[s];
  EventId e = 0;
  Status status = take_event(&e);
  if (!status.ok()) return status;
  status = driver_.event_record(e, st.id);
  st.closed_at = driver_.now();  // also when it failed: not to be tried again at once
  if (!status.ok()) {
    spare_events_.push_back(e);
    return status;
  }
  st.closed.push_back({st.open, e, st.closed_at});
  st.open++;
  st.gathered = 0;
  st.used = false;
  weigh();
  return status;
}

StreamTable::Freed StreamTable::freed() const {
  Freed lately;
  for (const Stream& s : streams_) {
    lately.all += s.freed;
    lately.most = std::max(lately.most, s.freed);
  }
  return lately;
}

void StreamTable::weigh() {
  if (!several_) return;
  const auto [all, most] = freed();
  contended_ = most > all - all / 4 && all - most > most / kContendedShare;
  if (all > kLately)
    for (Stream& s : streams_) s.freed /= 2;
}

bool StreamTable::much_contended() const {
  if (!contended_) return false;
  const auto [all, most] = freed();
  return all - most > most / kMuchContendedShare;
}

void StreamTable::close_all() {
  for (std::size_t s = 0; s < streams_.size(); s++)
    if (streams_[s].used) (void)close(StreamIndex(s));
}

bool StreamTable::poll() {
  bool progress = false;
  if (!has_unfinished() || any_capturing()) return false;
  for (auto& st : streams_)
    while (!st.closed.empty()) {
      if (!driver_.event_query(st.closed.front().event).ok()) break;  // a refusal is no answer yet (S4)
      st.finished = st.closed.front().epoch;
      st.passed_at = st.closed.front().at;
      spare_events_.push_back(st.closed.front().event);
      st.closed.pop_front();
      progress = true;
    }
  if (progress && !has_unfinished()) caught_up_ = driver_.now();
  return progress;
}

bool StreamTable::close_unless_refused(StreamIndex s) {
  Status status = close(s);
  if (status.code == Code::not_ready) status.expect_ok();  // a capture is under way: nobody may wait
  return status.ok();
}

void StreamTable::finish_with_device(StreamIndex s) {
  driver_.synchronize().expect_ok();
  Stream& st = streams_[s];
  for (const Closed& c : st.closed) spare_events_.push_back(c.event);
  st.closed.clear();
  st.finished = st.open++;
  st.passed_at = st.closed_at = driver_.now();
  st.gathered = 0;
  st.used = false;
}

void StreamTable::synchronize(LastUse use) {
  Stream& st = streams_[use.stream];
  if (use.epoch == st.open && !close_unless_refused(use.stream)) return finish_with_device(use.stream);
  while (st.finished < use.epoch && !st.closed.empty()) {
    driver_.event_synchronize(st.closed.front().event).expect_ok();
    st.finished = st.closed.front().epoch;
    st.passed_at = st.closed.front().at;
    spare_events_.push_back(st.closed.front().event);
    st.closed.pop_front();
  }
}

void StreamTable::synchronize_all() {
  for (std::size_t s = 0; s < streams_.size(); s++) {
    if (streams_[s].used && !close_unless_refused(StreamIndex(s))) finish_with_device(StreamIndex(s));
    if (!streams_[s].closed.empty()) synchronize({StreamIndex(s), streams_[s].closed.back().epoch});
  }
}

void StreamTable::make_wait(StreamIndex waiter, StreamIndex on) {
  if (waiter == on) return;
  LastUse use = now(on);
  if (!close_unless_refused(on)) return finish_with_device(on);
  driver_.stream_wait(streams_[waiter].id, streams_[on].closed.back().event).expect_ok();
  Epoch& e = waits_[std::uint32_t(waiter) << 16 | on];
  e = std::max(e, use.epoch);
}

StreamIndex StreamTable::busiest() const {
  std::size_t best = 0;
  for (std::size_t s = 1; s < streams_.size(); s++)
    if (streams_[s].freed > streams_[best].freed) best = s;
  return StreamIndex(best);
}

bool StreamTable::make_wait_for(StreamIndex waiter, LastUse use) {
  for (auto& c : streams_[use.stream].closed) {
    if (c.epoch < use.epoch) continue;
    if (!driver_.stream_wait(streams_[waiter].id, c.event).ok()) return false;
    Epoch& e = waits_[std::uint32_t(waiter) << 16 | use.stream];
    e = std::max(e, c.epoch);
    return true;
  }
  return false;
}

// Where the device stands in a stream is known by events, in the host's time: behind the newest finished one, before
// the oldest unfinished one. Since the device last had nothing left to do, `on` has come `theirs` far and the waiter
// `ours`; if both go on like this, `on` will stand at theirs / ours of the way when the waiter comes to what is
// enqueued now.
Epoch StreamTable::passed_by_then(StreamIndex waiter, StreamIndex on) const {
  const Stream &w = streams_[waiter], &o = streams_[on];
  if (waiter == on || w.closed.empty() || o.closed.empty()) return 0;
  Nanos t = driver_.now();
  if (t - w.closed.front().at < kBacklogLeast) return 0;
  Nanos begin = std::min({caught_up_, w.closed.front().at, o.closed.front().at});
  Nanos oldest = o.closed.front().at;
  Nanos theirs = std::max({o.passed_at, begin, oldest - std::min(oldest, kGapMost)}) - begin;
  Nanos ours = w.closed.front().at - begin;
  double way = ours ? std::min(1.0, double(theirs) / double(ours)) * double(t - begin) : 0;
  double margin = double(t - w.closed.front().at) / kWaitMargin;
  Epoch passed = 0;
  for (const Closed& c : o.closed) {
    if (double(c.at - begin) > way - margin) break;
    passed = c.epoch;
  }
  return passed;
}

Epoch StreamTable::passed_within(StreamIndex on, Nanos soon) const {
  Epoch passed = 0;
  const auto& closed = streams_[on].closed;
  for (const Closed& c : closed) {
    if (c.at - closed.front().at > soon) break;
    passed = c.epoch;
  }
  return passed;
}

bool StreamTable::has_unfinished() const {
  for (auto& s : streams_)
    if (!s.closed.empty()) return true;
  return false;
}

void StreamTable::watch(StreamId stream, int count) {
  if (count > 0) watched_.push_back(stream);
  else if (auto it = std::find(watched_.begin(), watched_.end(), stream); it != watched_.end()) watched_.erase(it);
}

bool StreamTable::any_capturing() const {
  if (!watched_.empty() && !may_map_in_capture())
    for (StreamId stream : watched_)
      if (driver_.is_capturing(stream)) return true;
  for (auto& s : streams_)
    if (driver_.is_capturing(s.id)) return true;
  return false;
}

}  // namespace dymem
