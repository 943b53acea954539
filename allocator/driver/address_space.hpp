// Invented device addresses for the accounting-only emulation: nothing is there, they only do not overlap.
//
//   A1  take() is deterministic: best fit, the lowest of equal holes; so the same calls give the same addresses.
//   A2  Two ranges never touch (a gap of one unit lies between), as separate reservations on a card need not either:
//       nobody may rely on runs that cross reservations.
// O(log n) in the number of holes. No lock: the owner locks.
#pragma once
#include <map>
#include <set>
#include <utility>

#include "base/units.hpp"

namespace dymem {

class AddressSpace {
 public:
  AddressSpace(Addr base, Bytes size, Bytes unit);
  Addr take(Bytes size);                // a multiple of the unit; 0 = no hole is large enough
  void give_back(Addr at, Bytes size);  // what take() gave

 private:
  void add_hole(Addr at, Bytes size);
  void remove_hole(std::map<Addr, Bytes>::iterator hole);

  Bytes unit_;
  std::map<Addr, Bytes> by_address_;
  std::set<std::pair<Bytes, Addr>> by_size_;
};

}  // namespace dymem
