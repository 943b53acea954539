// See virtual_streams.hpp.
#include "driver/virtual_streams.hpp"

#include <algorithm>

namespace dymem {

Nanos VirtualStreams::now() const {
  if (!realtime_) return offset_;
  const auto since = std::chrono::steady_clock::now() - start_;
  return offset_ + std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void VirtualStreams::advance_to(Nanos t) {
  const Nanos ahead = t - now();
  if (ahead > 0) offset_ += ahead;
}

void VirtualStreams::enqueue(StreamId stream, Nanos work) {
  Stream& s = stream_of(stream);
  s.busy_until = std::max({now(), s.busy_until, s.waited}) + work;
}

Nanos VirtualStreams::all_done() {
  Nanos done = 0;
  for (const auto& [id, s] : streams_) done = std::max({done, s.busy_until, s.waited});
  events_.for_each([&](Event& e) { done = std::max(done, e.completes); });
  return done;
}

bool VirtualStreams::is_capturing(StreamId stream) const {
  const auto it = streams_.find(stream);
  return it != streams_.end() && it->second.capturing;
}

bool VirtualStreams::is_destroyed(StreamId stream) const {
  const auto it = streams_.find(stream);
  return it != streams_.end() && it->second.destroyed;
}

bool VirtualStreams::record(EventId event, StreamId stream) {
  Event* e = events_.find(event);
  if (!e) return false;
  Nanos done = now();
  if (const auto it = streams_.find(stream); it != streams_.end())
    done = std::max({done, it->second.busy_until, it->second.waited});
  *e = Event{true, stream, done + lag_};
  return true;
}

bool VirtualStreams::completion(EventId event, Nanos* out) {
  Event* e = events_.find(event);
  if (!e) return false;
  *out = e->completes;
  return true;
}

bool VirtualStreams::wait(StreamId stream, EventId event) {
  Event* e = events_.find(event);
  if (!e) return false;
  if (!e->recorded || e->stream == stream) return true;
  Stream& s = stream_of(stream);
  s.waited = std::max(s.waited, e->completes);
  return true;
}

// Programs make new streams at every step: forget those that say nothing any more, so that a long run stays flat.
VirtualStreams::Stream& VirtualStreams::stream_of(StreamId stream) {
  if (streams_.size() >= prune_at_) {
    const Nanos t = now();
    for (auto it = streams_.begin(); it != streams_.end();) {
      const Stream& s = it->second;
      if (!s.capturing && !s.destroyed && s.busy_until <= t && s.waited <= t) it = streams_.erase(it);
      else ++it;
    }
    prune_at_ = std::max<std::size_t>(1024, 2 * streams_.size());
  }
  return streams_[stream];
}

}  // namespace dymem
