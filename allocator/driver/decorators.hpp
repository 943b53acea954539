// Decorators over a driver; each owns the one it wraps.
//   checked  contract police: remembers every mapping and handle and aborts the call (Code::invalid, a sentence in
//            last_violation()) on what D1..D8 forbid, whatever the wrapped driver would have done.
//   faulty   fails the Nth memory call (reserve, create, map, set_access, unmap, event_record), once or from then on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class CheckedDriver : public Driver {
 public:
  virtual std::vector<std::string> violations() const = 0;  // empty = the caller kept the contract
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
