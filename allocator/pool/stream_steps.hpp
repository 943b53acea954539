// What one stream does, told as steps (python/dymem/mobility/following.py): neither sizes nor what lies far back
// matter. An allocation is as large as the stream's one before it, or not; a free has an age.
//
//   S1  Of blocks the last kFar of the stream are remembered, by address: older ones are all alike. Nothing grows.
// Locks: none; its owner's.
#pragma once
#include <cstdint>

#include "base/units.hpp"

namespace dymem {

struct StreamSteps {
  static constexpr std::int8_t kAlike = 0, kOther = -1;  // an allocation as large as the stream's one before, or not
  static constexpr unsigned kFar = 16;                   // allocations: a free's age at most

  std::int8_t step_of(Bytes bytes) const { return bytes == size ? kAlike : kOther; }  // of an allocation to come
  std::int8_t allocated(Bytes bytes, Addr at) {
    const std::int8_t step = step_of(bytes);
    size = bytes;
    born[count++ % kFar] = at;
    return step;
  }
  std::int8_t freed(Addr at) {
    unsigned age = 1;
    while (age < kFar && born[(count - age) % kFar] != at) age++;
    if (age < kFar) born[(count - age) % kFar] = 0;
    return std::int8_t(age);
  }

 private:
  Bytes size = ~Bytes{0};
  std::uint32_t count = 0;
  Addr born[kFar] = {};  // by number of the allocation, modulo kFar; 0: freed
};

}  // namespace dymem
