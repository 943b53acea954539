// Free runs by (size, address): exact best fit, lowest address first, so that the same inputs give the same addresses.
//
// Bins of geometrically growing width (eight to a power of two), each a sorted array; a bitmap says which hold runs.
// Cost: one bit scan and a binary search in a short array; inserting moves the entries behind it. No heap use once the
// bins have their capacity.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/errors.hpp"
#include "pool/block.hpp"

namespace dymem {

class FreeIndex {
 public:
  struct Entry {
    Bytes size;
    Addr at;
    BlockId head;
    bool operator<(const Entry& o) const { return size != o.size ? size < o.size : at < o.at; }
  };

  void insert(Bytes size, Addr at, BlockId head) {
    unsigned b = bin(size);
    auto& v = bins_[b];
    Entry e{size, at, head};
    v.push_back(e);
    Entry* first = v.data();
    std::size_t n = v.size() - 1;
    if (n <= kFew) {  // moving while searching: no call, no second pass
      while (n > 0 && e < first[n - 1]) {
        first[n] = first[n - 1];
        n--;
      }
      first[n] = e;
    } else {
      Entry* it = std::lower_bound(first, first + n, e);
      std::move_backward(it, first + n, first + n + 1);
      *it = e;
    }
    set_[b >> 6] |= std::uint64_t{1} << (b & 63);
    count_++;
  }
  void erase(Bytes size, Addr at) {
    unsigned b = bin(size);
    auto& v = bins_[b];
    Entry* it = find(v, size, at);
    std::move(it + 1, v.data() + v.size(), it);
    v.pop_back();
    if (v.empty()) set_[b >> 6] &= ~(std::uint64_t{1} << (b & 63));
    count_--;
  }
  // A run changed its size and perhaps its start, but not its head.
  void move(Bytes size, Addr at, Bytes new_size, Addr new_at, BlockId head) {
    unsigned b = bin(size);
    if (b != bin(new_size)) {
      erase(size, at);
      insert(new_size, new_at, head);
      return;
    }
    auto& v = bins_[b];
    Entry e{new_size, new_at, head};
    Entry *it = find(v, size, at), *first = v.data(), *last = first + v.size();
    for (; it != first && e < it[-1]; --it) *it = it[-1];
    for (; it + 1 != last && it[1] < e; ++it) *it = it[1];
    *it = e;
  }
  // Calls f(entry) on runs of at least `size` bytes, smallest first, until it returns true. Returns whether it did.
  template <class F>
  bool from(Bytes size, F f) const {
    unsigned b = bin(size);
    if (set_[b >> 6] >> (b & 63) & 1) {
      const Entry *it = bins_[b].data(), *last = it + bins_[b].size();
      if (last - it <= std::ptrdiff_t(kFew)) {
        while (it != last && it->size < size) ++it;
      } else {
        it = std::lower_bound(it, last, Entry{size, 0, 0});
      }
      for (; it != last; ++it)
        if (f(*it)) return true;
    }
    for (b = next(b + 1); b < kBins; b = next(b + 1))
      for (auto& e : bins_[b])
        if (f(e)) return true;
    return false;
  }
  // Largest first.
  template <class F>
  bool from_largest(F f) const {
    for (unsigned b = kBins; b-- > 0;)
      if (set_[b >> 6] >> (b & 63) & 1)
        for (auto it = bins_[b].rbegin(); it != bins_[b].rend(); ++it)
          if (f(*it)) return true;
    return false;
  }
  std::size_t size() const { return count_; }
  template <class F>
  void each(F f) const {
    for (unsigned b = next(0); b < kBins; b = next(b + 1))
      for (auto& e : bins_[b]) f(e);
  }

 private:
  static constexpr unsigned kBins = 320;
  static constexpr std::size_t kFew = 12;  // entries up to which a loop beats a binary search and a block move
  static Entry* find(std::vector<Entry>& v, Bytes size, Addr at) {
    Entry *it = v.data(), *last = it + v.size();
    if (v.size() <= kFew) {
      while (it != last && it->at != at) ++it;
    } else {
      it = std::lower_bound(it, last, Entry{size, at, 0});
    }
    DYMEM_CHECK(it != last && it->size == size && it->at == at, "the free index misses a run");
    return it;
  }
  // Units of 512 B: exact below 8 units, then eight bins to a power of two.
  static unsigned bin(Bytes size) {
    std::uint64_t u = size / kBlockUnit;
    if (u < 8) return unsigned(u);
    unsigned top = 63 - unsigned(std::countl_zero(u));
    return (top - 2) * 8 + unsigned(u >> (top - 3) & 7);
  }
  unsigned next(unsigned b) const {
    if (b >= kBins) return kBins;
    unsigned w = b >> 6;
    std::uint64_t bits = set_[w] >> (b & 63) << (b & 63);
    while (!bits) {
      if (++w >= kBins / 64) return kBins;
      bits = set_[w];
    }
    return w * 64 + unsigned(std::countr_zero(bits));
  }
  std::array<std::vector<Entry>, kBins> bins_;
  std::array<std::uint64_t, kBins / 64> set_{};
  std::size_t count_ = 0;
};

}  // namespace dymem
