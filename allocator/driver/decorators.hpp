// Decorators over a driver; each owns the one it wraps.
//   checked  contract police: remembers every mapping, handle and event and aborts the call (Code::invalid, a sentence
//            in last_violation()) on what D1..D9 forbid, whatever the wrapped driver would have done. It also wants no
//            event query, map, unmap or copy while a capture is under way on any stream it has seen (so streams must
//            live as long as it does), and notes when the wrapped driver refuses what the contract allows.
//   faulty   fails the Nth call of those that can (all but release_addresses, event_destroy, host_free, close_slab,
//            set_peer_access, and what tests read and write), once or from then on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class CheckedDriver : public Driver {
 public:
  virtual std::vector<std::string> violations() const = 0;  // empty = the contract was kept; the first 1,000
  virtual std::string last_violation() const = 0;           // "" = none
  virtual void clear_violations() = 0;
  // What the caller still holds, one sentence each: handles, views, reservations, slabs, host memory, events.
  virtual std::vector<std::string> leaks() const = 0;
  virtual Driver& inner() = 0;
};
std::unique_ptr<CheckedDriver> make_checked_driver(std::unique_ptr<Driver> inner);

enum class FaultKind : std::uint8_t { once, forever };

class FaultyDriver : public Driver {
 public:
  // The nth call from now (1 = the next) that can fail does. `as` is what it returns: out_of_memory or failed.
  virtual void fail_nth(std::uint64_t nth, FaultKind kind, Code as) = 0;
  virtual void disarm() = 0;
  virtual std::uint64_t calls() const = 0;     // calls that could have failed, since made
  virtual std::uint64_t failures() const = 0;  // calls failed on purpose
  virtual Driver& inner() = 0;
};
std::unique_ptr<FaultyDriver> make_faulty_driver(std::unique_ptr<Driver> inner);

}  // namespace dymem
