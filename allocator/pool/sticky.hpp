// The address a request had in the same place of an earlier iteration.
//
// "The same place" = same size, same stream, same live bytes at that moment: in iterations that repeat, live bytes tell
// the n-th allocation from all others without knowing where iterations begin. A plain cache: a wrong or lost entry
// costs a search, never correctness. A later planned tier answers the same question ("where does this request go?")
// from a plan instead. Lock: the pool's. Cost: one cache line, seldom a near one: ask for it (prefetch) before there is
// something else to do.
#pragma once
#include <memory>

#include "base/units.hpp"

namespace dymem {

class Sticky {
 public:
  Sticky() : slots_(new std::uint64_t[kSlots]()) {}
  static std::uint64_t key(Bytes size, Bytes live, std::uint32_t stream) {
    std::uint64_t k = (size / kBlockUnit) * 0x9E3779B97F4A7C15ull;
    k ^= (live / kBlockUnit) * 0xC2B2AE3D27D4EB4Full + stream;
    k ^= k >> 29;
    k *= 0xBF58476D1CE4E5B9ull;
    k ^= k >> 32;
    return k | 1;
  }
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&slot(key), 1); }
  Addr find(std::uint64_t key) const {
    const std::uint64_t s = slot(key);
    return (s ^ key) >> kAddressBits ? 0 : (s & kAddressMask) * kBlockUnit;
  }
  void store(std::uint64_t key, Addr at) { slot(key) = (key & ~kAddressMask) | (at / kBlockUnit & kAddressMask); }

 private:
  // The address in units of blocks, and what of the key does not say which slot it is: half the cache that both whole
  // would take.
  static constexpr int kAddressBits = 40;
  static constexpr std::uint64_t kAddressMask = (std::uint64_t{1} << kAddressBits) - 1;
  std::uint64_t& slot(std::uint64_t key) const { return slots_[key >> 1 & (kSlots - 1)]; }
  static constexpr std::size_t kSlots = 1 << 15;
  std::unique_ptr<std::uint64_t[]> slots_;
};

}  // namespace dymem
