// The emulation's clock, streams and events: work is modelled by the time at which it is done.
//
//   V1  An event recorded on a stream at t completes at max(t, busy_until(stream), waits of the stream) + lag, and what
//       it was given then does not change. An event that was never recorded is complete.
//   V2  wait(stream, event) puts the event's completion before everything recorded on the stream later; waiting for an
//       event of the same stream changes nothing.
//   V3  The clock never runs backwards. It stands still unless advanced, or follows the host's clock (realtime).
// set_busy_until() and set_lag() are the model's own say-so: lowering them makes later work finish earlier.
// No lock: the owner locks.
#pragma once
#include <chrono>
#include <unordered_map>

#include "driver/driver.hpp"
#include "driver/slot_table.hpp"

namespace dymem {

class VirtualStreams {
 public:
  explicit VirtualStreams(bool realtime) : realtime_(realtime), start_(std::chrono::steady_clock::now()) {}

  Nanos now() const;
  void advance_to(Nanos t);
  void set_lag(Nanos lag) { lag_ = lag; }
  void set_busy_until(StreamId stream, Nanos t) { stream_of(stream).busy_until = t; }
  void enqueue(StreamId stream, Nanos work);  // after what the stream has to do already
  Nanos all_done();                           // when the last work and the last recorded event complete
  void set_capturing(StreamId stream, bool capturing) { stream_of(stream).capturing = capturing; }
  bool is_capturing(StreamId stream) const;
  void set_destroyed(StreamId stream, bool destroyed) { stream_of(stream).destroyed = destroyed; }
  bool is_destroyed(StreamId stream) const;

  EventId create() { return events_.add(Event{}); }
  bool destroy(EventId event) { return events_.erase(event); }
  bool record(EventId event, StreamId stream);  // false: no such event
  bool completion(EventId event, Nanos* out);   // false: no such event
  bool wait(StreamId stream, EventId event);    // false: no such event
  std::size_t events() const { return events_.size(); }

 private:
  struct Event {
    bool recorded = false;
    StreamId stream = 0;
    Nanos completes = 0;
  };
  struct Stream {
    Nanos busy_until = 0;
    Nanos waited = 0;
    bool capturing = false;
    bool destroyed = false;  // takes no events and no waits; what was enqueued goes on
  };

  Stream& stream_of(StreamId stream);

  bool realtime_;
  std::chrono::steady_clock::time_point start_;
  Nanos offset_ = 0;  // the clock without realtime; how far it was pushed ahead of the host's with it
  Nanos lag_ = 0;
  SlotTable<Event> events_;
  std::unordered_map<StreamId, Stream> streams_;
  std::size_t prune_at_ = 1024;
};

}  // namespace dymem
