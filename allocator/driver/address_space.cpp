// See address_space.hpp.
#include "driver/address_space.hpp"

#include <iterator>

namespace dymem {

AddressSpace::AddressSpace(Addr base, Bytes size, Bytes unit) : unit_(unit) {
  const Addr first = round_up(base, unit);
  add_hole(first, round_down(base + size - first, unit));
}

Addr AddressSpace::take(Bytes size) {
  const Bytes wanted = size + unit_;  // the gap
  const auto fit = by_size_.lower_bound({wanted, 0});
  if (fit == by_size_.end()) return 0;
  const auto [hole_size, at] = *fit;
  remove_hole(by_address_.find(at));
  if (hole_size > wanted) add_hole(at + wanted, hole_size - wanted);
  return at;
}

void AddressSpace::give_back(Addr at, Bytes size) {
  Bytes whole = size + unit_;
  auto next = by_address_.lower_bound(at);
  if (next != by_address_.end() && next->first == at + whole) {
    whole += next->second;
    remove_hole(next++);
  }
  if (next != by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      at = before->first;
      whole += before->second;
      remove_hole(before);
    }
  }
  add_hole(at, whole);
}

void AddressSpace::add_hole(Addr at, Bytes size) {
  by_address_.emplace(at, size);
  by_size_.emplace(size, at);
}

void AddressSpace::remove_hole(std::map<Addr, Bytes>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  by_address_.erase(hole);
}

}  // namespace dymem
