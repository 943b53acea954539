#include "space/address_ranges.hpp"

#include <algorithm>

namespace dymem {

AddressRanges::~AddressRanges() {
  for (auto& p : pieces_) (void)driver_.release_addresses(p.base, p.size);
}

Status AddressRanges::take(Bytes size, Addr* out) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    *out = it->first;
    Bytes left = it->second - size;
    free_.erase(it);
    if (left) free_[*out + size] = left;
    return {};
  }
  // A smaller piece may still be granted where the address space is nearly full.
  for (Bytes want = std::max(piece_, round_up(size, kGranuleUnit)); want >= size; want /= 2) {
    Addr base = 0;
    Status s = driver_.reserve(round_up(want, kGranuleUnit), &base);
    if (!s.ok()) {
      if (want / 2 < size) return s;
      continue;
    }
    pieces_.push_back({base, round_up(want, kGranuleUnit)});
    give(base, round_up(want, kGranuleUnit));
    return take(size, out);
  }
  return {Code::out_of_memory, "reserve", 0};
}

void AddressRanges::give(Addr at, Bytes size) {
  auto next = free_.lower_bound(at);
  auto in_one_piece = [&](Addr a, Addr b) {  // ranges of different reservations never become one
    for (auto& p : pieces_)
      if (a >= p.base && a < p.base + p.size) return b >= p.base && b < p.base + p.size;
    return false;
  };
  if (next != free_.end() && at + size == next->first && in_one_piece(at, next->first)) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == at && in_one_piece(before->first, at)) {
      before->second += size;
      return;
    }
  }
  free_[at] = size;
}

bool AddressRanges::owns(Addr at) const {
  for (auto& p : pieces_)
    if (at >= p.base && at < p.base + p.size) return true;
  return false;
}

}  // namespace dymem
