// The address a request had in the same place of an earlier iteration.
//
// "The same place" = same size, same stream, same live bytes at that moment: in iterations that repeat, live bytes tell
// the n-th allocation from all others without knowing where iterations begin. A plain cache: a wrong or lost entry
// costs a search, never correctness. A later planned tier answers the same question ("where does this request go?")
// from a plan instead. Lock: the pool's. Cost: one cache line.
#pragma once
#include <memory>

#include "base/units.hpp"

namespace dymem {

class Sticky {
 public:
  Sticky() : slots_(new Slot[kSlots]()) {}
  static std::uint64_t key(Bytes size, Bytes live, std::uint32_t stream) {
    std::uint64_t k = (size / kBlockUnit) * 0x9E3779B97F4A7C15ull;
    k ^= (live / kBlockUnit) * 0xC2B2AE3D27D4EB4Full + stream;
    k ^= k >> 29;
    k *= 0xBF58476D1CE4E5B9ull;
    k ^= k >> 32;
    return k | 1;
  }
  Addr find(std::uint64_t key) const {
    const Slot& s = slots_[key >> 1 & (kSlots - 1)];
    return s.key == key ? s.at : 0;
  }
  void store(std::uint64_t key, Addr at) { slots_[key >> 1 & (kSlots - 1)] = {key, at}; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Addr at = 0;
  };
  static constexpr std::size_t kSlots = 1 << 15;
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace dymem
