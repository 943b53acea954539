// See slabs.hpp.
#include "space/slabs.hpp"

#include <algorithm>

namespace dymem {

Status Slabs::add(Bytes size) {
  Slab slab;
  list_.reserve(list_.size() + 1);
  Status s = driver_.slab_alloc(size, &slab.base);
  if (!s.ok()) return s;
  slab.size = size;
  list_.push_back(std::move(slab));
  held_ += size;
  return {};
}

Status Slabs::give_back(std::size_t i) {
  Status s = driver_.slab_free(list_[i].base);
  if (!s.ok()) return s;
  held_ -= list_[i].size;
  list_.erase(list_.begin() + std::ptrdiff_t(i));
  return {};
}

std::vector<Bytes> SlabSizes::tries(Bytes need, Bytes most, Bytes device_free, bool first) {
  std::vector<Bytes> out;
  need = round_up(need, kGranuleUnit);
  most = round_down(most, kGranuleUnit);
  if (need > most) return out;
  Bytes wish = most != round_down(~Bytes{0}, kGranuleUnit) ? most : first ? device_free / 4 * 3 : device_free / 2;
  wish = std::max(need, round_down(std::min({wish, most, device_free}), kGranuleUnit));
  // What is free may lie in pieces, or be gone by now: an eighth less at a time, and what is needed at the end.
  for (; wish > need; wish = round_down(wish / 8 * 7, kGranuleUnit)) {
    out.push_back(wish);
    if (wish / 8 * 7 < need || out.size() == 16) break;
  }
  out.push_back(need);
  return out;
}

}  // namespace dymem
