// The emulated device: the driver's contract on a CPU, with virtual streams and a virtual clock.
//
//   bytes       memfd pages mapped with MAP_FIXED: a pattern written through one address is read through its aliases.
//               Needs one memory mapping per view, so a process is good for about 60,000.
//   accounting  addresses and rules only; nothing is backed. For replaying traces of tens of GB.
//
// Refuses what CUDA refuses (partial maps and unmaps, wrong granularity, mapping over a mapping).
// Streams: work is modelled by time. An event recorded on a stream at t completes at
//   max(t, busy_until(stream), what stream_wait() put before it) + lag(stream).
// The clock stands still unless advanced (or, with `realtime`, follows the host's steady clock);
// event_synchronize() moves it to the event's completion. Calls charge the cost model to counters(), not to the clock.
#pragma once
#include <memory>

#include "driver/driver.hpp"

namespace dymem {

struct EmulatedOptions {
  int device = 0;
  Bytes capacity = 80 * kGiB;       // physical bytes the device has
  bool bytes = true;                // false: accounting only
  bool realtime = false;            // now() follows the host clock
  bool vmm = true;                  // false: a device without virtual memory management
  Bytes address_space = 64 * kTiB;  // reserve() beyond this is refused
  Bytes granularity = kGranuleUnit;
};

class EmulatedDriver : public Driver {
 public:
  // Time and streams, for tests and replay.
  virtual void advance_to(Nanos t) = 0;                       // never backwards
  virtual void set_lag(Nanos lag) = 0;                        // for every stream; default 0
  virtual void set_busy_until(StreamId stream, Nanos t) = 0;  // the stream has work until t
  virtual void set_capturing(StreamId stream, bool capturing) = 0;
  virtual void set_destroyed(StreamId stream, bool destroyed) = 0;  // as its owner may do at any time
  virtual void take_memory(Bytes n) = 0;       // another tenant takes (n) bytes of the device
  virtual void give_memory(Bytes n) = 0;       // … and gives them back
  virtual Bytes physical_in_use() const = 0;   // bytes of handles not yet released (D4)
  virtual std::uint64_t mappings() const = 0;  // views that exist now
  virtual std::uint64_t mappings_max() const = 0;
  virtual Bytes mapped_addresses() const = 0;  // address bytes mapped now
};

std::unique_ptr<EmulatedDriver> make_emulated_driver(const EmulatedOptions& options);

}  // namespace dymem
