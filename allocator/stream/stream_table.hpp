// When may whose block be reused by whom: streams, epochs and events.
//
// A freed byte range carries a LastUse (stream, epoch): work enqueued on `stream` before that epoch was closed may
// still use it. Closing an epoch records one event for all frees of the epoch, so events cost per epoch, not per free.
//
// Invariants
//   S1  A LastUse is finished once its epoch's event has completed; finished never becomes unfinished.
//   S2  While only one stream is known no event is recorded for reuse: stream order is enough. (Unmapping needs one.)
//   S3  usable(use, by) = same stream, or finished, or `by` was made to wait for it.
//   S4  Looking (tick, poll, close) never fails: what the driver refuses to tell or to record counts as unfinished. Who
//       waits (synchronize, make_wait) is told of the driver's failure.
// Lock: the pool's. Cost: usable() is a few loads; close() one event record; poll() one query per stream with
// unfinished closed epochs.
#pragma once
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

using StreamIndex = std::uint16_t;
using Epoch = std::uint64_t;  // of which LastUse keeps 48 bits: nine years of an epoch a microsecond

// In one word: a block has room for no more.
struct LastUse {
  std::uint64_t stream : 16 = 0;  // a StreamIndex
  std::uint64_t epoch : 48 = 0;   // 0 = never used: finished
  bool operator==(const LastUse& o) const { return stream == o.stream && epoch == o.epoch; }
};
static_assert(sizeof(LastUse) == 8);
static_assert(LastUse{1, Epoch{1} << 40}.epoch == Epoch{1} << 40, "weeks of closed epochs must not wrap");

class StreamTable {
 public:
  explicit StreamTable(Driver& driver);
  ~StreamTable();

  StreamIndex index(StreamId stream) {  // known streams: one compare
    if (stream == cached_id_) return cached_index_;
    return index_slow(stream);
  }
  StreamId id(StreamIndex i) const { return streams_[i].id; }
  std::size_t size() const { return streams_.size(); }
  bool single() const { return !several_; }

  LastUse now(StreamIndex s) const { return {s, streams_[s].open}; }
  bool finished(LastUse use) const { return use.epoch <= streams_[use.stream].finished; }
  bool usable(LastUse use, StreamIndex by) const {
    return use.stream == by || finished(use) || (!waits_.empty() && waited(use, by));
  }

  // A free of `bytes` was tagged now(s).
  void note_free(StreamIndex s, Bytes bytes) {
    Stream& st = streams_[s];
    st.used = true;
    st.gathered += bytes;
    st.freed += bytes;
  }
  // Called at every malloc and free: now and then closes the epochs in which enough has gathered, so that other streams
  // can have it soon. Free with a single stream; else a counter, and a look at the clock every few calls.
  // Returns whether some epoch was seen finished.
  bool tick() { return __builtin_expect(several_, 0) && ++ticks_ % kTickEvery == 0 && close_due(); }
  bool close_due();
  // Closes the open epoch of `s` so that it can finish. If the driver will not record an event, or a capture forbids it
  // (not_ready), the epoch stays open and is closed later: nothing is lost but time, so that a free never fails.
  Status close(StreamIndex s);
  // The LastUse whose completion covers all work on `s` so far; its epoch is closed, or will be.
  LastUse fence(StreamIndex s) {
    LastUse use = now(s);
    streams_[s].used = true;
    (void)close(s);
    return use;
  }
  void close_all();
  bool poll();                                         // asks the driver; true if some epoch was seen finished
  void synchronize(LastUse use);                       // waits on the host until `use` is finished
  void synchronize_all();                              // closes everything, waits for everything
  void make_wait(StreamIndex waiter, StreamIndex on);  // waiter's later work waits for all work on `on` so far
  // The stream on which most bytes were freed lately: where the work is.
  StreamIndex busiest() const;
  // One stream does most of the work, and others beside it do some (a thousandth of it or more): copies beside compute.
  // A stream that was touched once changes nothing for the others; nor do streams that take turns as equals.
  bool contended() const { return contended_; }
  // … and these do more than a little of it: a thirty-second, as where activations are offloaded, not where the next
  // batch is copied ahead. Looks at every stream: for requests that are placed in an open slab.
  bool much_contended() const;
  // waiter's later work waits for what `use` covers; false if its epoch is not closed yet, or the driver refuses.
  bool make_wait_for(StreamIndex waiter, LastUse use);
  Epoch closed_epoch(StreamIndex s) const { return streams_[s].open - 1; }
  // The newest closed epoch of `on` that it has probably passed by the time `waiter` comes to what is enqueued now, so
  // that waiting for it takes no time; 0 if there is none. Decision 0005.
  Epoch passed_by_then(StreamIndex waiter, StreamIndex on) const;
  // How far the host is ahead of the device there (ns): since the oldest closed epoch that has not finished.
  Nanos backlog(StreamIndex on) const {
    return streams_[on].closed.empty() ? 0 : driver_.now() - streams_[on].closed.front().at;
  }
  // The newest closed epoch of `on` that the device will probably have passed within about `soon` ns.
  Epoch passed_within(StreamIndex on, Nanos soon) const;
  bool has_unfinished() const;  // closed epochs not yet seen finished
  bool any_capturing() const;   // no event, map or unmap call may be made now
  // A stream whose memory comes from elsewhere may be captured from now on, or no longer (count +1, -1). Threads that may
  // map in a capture go on as if it were not there: what they ask of CUDA concerns other streams.
  void watch(StreamId stream, int count);

 private:
  struct Closed {
    Epoch epoch;
    EventId event;
    Nanos at;  // when it was recorded
  };
  struct Stream {
    StreamId id = 0;
    Epoch open = 1;      // frees from now on are tagged with this
    Epoch finished = 0;  // every epoch up to here is finished
    Bytes gathered = 0;  // freed in the open epoch
    Bytes freed = 0;     // lately (see weigh)
    bool used = false;   // a free was tagged with the open epoch
    Nanos closed_at = 0;
    Nanos passed_at = 0;  // when the newest finished epoch was closed; 0 if none was
    std::deque<Closed> closed;
  };
  static constexpr unsigned kTickEvery = 16;
  StreamIndex index_slow(StreamId stream);
  bool waited(LastUse use, StreamIndex by) const;
  struct Freed {
    Bytes all = 0, most = 0;  // by all streams, by the busiest one
  };
  Freed freed() const;  // lately
  void weigh();  // after an epoch was closed: who does the work now
  Status take_event(EventId* out);
  bool close_unless_refused(StreamIndex s);  // false: no event could be recorded; throws during a capture
  // For a stream that takes no events: its owner destroyed it, most likely, and its work ends with the device's.
  void finish_with_device(StreamIndex s);

  Driver& driver_;
  std::vector<Stream> streams_;
  std::unordered_map<StreamId, StreamIndex> by_id_;
  std::unordered_map<std::uint32_t, Epoch> waits_;  // (waiter << 16 | on) -> epoch it waited for
  std::vector<EventId> spare_events_;
  std::vector<StreamId> watched_;
  unsigned ticks_ = 0;
  Nanos caught_up_ = 0;  // when the device was last seen to have finished everything
  bool contended_ = false;
  bool several_ = false;  // more than one stream is known
  StreamId cached_id_ = ~StreamId{0};
  StreamIndex cached_index_ = 0;
};

}  // namespace dymem
