// See ledger.hpp. The sentences name the rule of driver.hpp that they enforce.
#include "driver/ledger.hpp"

#include <iterator>

namespace dymem {
namespace {

// The entry of an address-keyed map whose range [key, key + size) holds `at`; end() if none.
template <class Map, class Size>
typename Map::const_iterator holding(const Map& map, Addr at, Size size_of) {
  auto it = map.upper_bound(at);
  if (it == map.begin()) return map.end();
  --it;
  return at - it->first < size_of(it->second) ? it : map.end();
}

Bytes same(Bytes size) { return size; }

bool wraps(Addr at, Bytes size) { return at + size < at; }

}  // namespace

const char* Ledger::refuse_size(Bytes size) const {
  if (size == 0) return "D1: a size of zero";
  if (size % granularity_) return "D1: the size is no multiple of the granularity";
  if (size > Bytes{1} << 62) return "D1: an absurd size";
  return nullptr;
}

const char* Ledger::refuse_release(Addr base, Bytes size) const {
  const auto it = reservations_.find(base);
  if (it == reservations_.end()) return "D5: no reservation begins at this address";
  if (it->second != size) return "D5: the size is not what was reserved";
  const auto view = views_.lower_bound(base);
  if (view != views_.end() && view->first - base < size) return "D5: something is still mapped in the reservation";
  return nullptr;
}

const char* Ledger::refuse_handle(Handle handle) const {
  const auto it = granules_.find(handle);
  if (it == granules_.end()) return "D4: no such handle; it was never created, or destroyed already";
  if (it->second.destroyed) return "D4: the handle was destroyed already";
  return nullptr;
}

const char* Ledger::refuse_map(Addr at, Bytes size, Handle handle) const {
  if (const char* why = refuse_handle(handle)) return why;
  if (size != granules_.find(handle)->second.size) return "D1: a granule is mapped whole or not at all";
  if (at % granularity_) return "D1: the address is not aligned to the granularity";
  if (wraps(at, size)) return "D5: the range wraps around the end of the addresses";
  const auto reservation = holding(reservations_, at, same);
  if (reservation == reservations_.end()) return "D5: the address is not reserved";
  if (reservation->second - (at - reservation->first) < size) return "D5: the range leaves its reservation";
  const auto next = views_.lower_bound(at);
  if (next != views_.end() && next->first - at < size) return "D1: something is mapped in the range already";
  if (next != views_.begin()) {
    const auto before = std::prev(next);
    if (at - before->first < before->second.size) return "D1: something is mapped in the range already";
  }
  return nullptr;
}

const char* Ledger::refuse_run(Addr at, Bytes size) const {
  if (size == 0) return "D3: a size of zero";
  if (wraps(at, size)) return "D3: the range wraps around the end of the addresses";
  auto it = views_.find(at);
  if (it == views_.end()) return "D3: no mapping begins at this address";
  const auto reservation = holding(reservations_, at, same);
  if (reservation == reservations_.end() || reservation->second - (at - reservation->first) < size)
    return "D3: the range leaves its reservation";
  Bytes covered = 0;
  for (; covered < size; ++it) {
    if (it == views_.end() || it->first != at + covered) return "D3: a part of the range is not mapped";
    covered += it->second.size;
  }
  return covered == size ? nullptr : "D3: the range ends inside a mapping";
}

const char* Ledger::refuse_bytes(Addr at, Bytes n) const {
  if (n == 0) return nullptr;
  if (wraps(at, n)) return "D2: the range wraps around the end of the addresses";
  for (const auto* slabs : {&slabs_, &opened_})
    if (const auto slab = holding(*slabs, at, same); slab != slabs->end())
      return slab->second - (at - slab->first) >= n ? nullptr : "D2: the range leaves its slab";
  auto it = holding(views_, at, [](const View& view) { return view.size; });
  for (Addr next = at; next < at + n; ++it) {
    if (it == views_.end() || it->first > next) return "D2: a part of the range is not mapped";
    if (!it->second.accessible) return "D2: a part of the range was given no access";
    next = it->first + it->second.size;
  }
  return nullptr;
}

const char* Ledger::refuse_slab(Addr base) const {
  return slabs_.count(base) ? nullptr : "no slab begins at this address; it was never allocated, or freed already";
}

const char* Ledger::refuse_slab_close(Addr base) const {
  return opened_.count(base) ? nullptr : "D10: no slab was opened at this address, or it was closed already";
}

void Ledger::remove_reservation(Addr base) {
  const auto it = reservations_.find(base);
  reserved_ -= it->second;
  reservations_.erase(it);
}

bool Ledger::destroy(Handle handle) {
  const auto it = granules_.find(handle);
  it->second.destroyed = true;
  if (it->second.views) return false;
  forget(it);
  return true;
}

void Ledger::forget(std::unordered_map<Handle, Granule>::iterator granule) {
  if (!granule->second.imported) physical_ -= granule->second.size;
  granules_.erase(granule);
}

void Ledger::map(Addr at, Bytes size, Handle handle) {
  views_.emplace(at, View{size, handle, false});
  ++granules_.find(handle)->second.views;
  mapped_ += size;
}

bool Ledger::drop_view(Handle handle) {
  const auto it = granules_.find(handle);
  if (--it->second.views || !it->second.destroyed) return false;
  forget(it);
  return true;
}

void Ledger::remove_slab(Addr base) {
  const auto it = slabs_.find(base);
  physical_ -= it->second;
  slabs_.erase(it);
}

Bytes Ledger::granule_size(Handle handle) const {
  const auto it = granules_.find(handle);
  return it == granules_.end() ? 0 : it->second.size;
}

Bytes Ledger::reservation_size(Addr base) const {
  const auto it = reservations_.find(base);
  return it == reservations_.end() ? 0 : it->second;
}

Bytes Ledger::slab_size(Addr base) const {
  const auto it = slabs_.find(base);
  return it == slabs_.end() ? 0 : it->second;
}

}  // namespace dymem
