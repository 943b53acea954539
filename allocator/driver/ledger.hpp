// Who holds what of one device, and what D1..D5 of driver.hpp therefore allow. Bookkeeping only: no device, no clock.
// The emulated driver obeys it; the checked decorator holds the caller of any driver to it.
//
//   L1  Views do not overlap, each lies inside one reservation, and each covers its granule whole.
//   L2  A granule is remembered until its handle is destroyed and its last view is gone (D4).
//   L3  physical_bytes() = granules remembered, but for imported ones, + slabs; mapped_bytes() = sum of the views' sizes.
//   L4  A refuse_…() that answers null promises that the matching change may be made.
//
// Everything is O(log n) in the number of views, plus the views a call covers. No lock: the owner locks.
#pragma once
#include <map>
#include <unordered_map>

#include "driver/driver.hpp"

namespace dymem {

class Ledger {
 public:
  struct View {
    Bytes size = 0;
    Handle handle = 0;
    bool accessible = false;
  };
  struct Granule {
    Bytes size = 0;
    std::uint64_t views = 0;
    bool destroyed = false;
    bool imported = false;  // on another process's account
  };
  using Views = std::map<Addr, View>;

  explicit Ledger(Bytes granularity) : granularity_(granularity) {}

  // Why the contract forbids the call: one sentence with the rule's number; null = allowed.
  const char* refuse_size(Bytes size) const;  // of reserve() and create()
  const char* refuse_release(Addr base, Bytes size) const;
  const char* refuse_handle(Handle handle) const;  // destroy, export
  const char* refuse_map(Addr at, Bytes size, Handle handle) const;
  const char* refuse_run(Addr at, Bytes size) const;  // set_access, unmap: one or several adjacent whole views
  const char* refuse_bytes(Addr at, Bytes n) const;   // read, write: all of it accessible
  const char* refuse_slab(Addr base) const;         // slab_free, export_slab
  const char* refuse_slab_close(Addr base) const;

  // The changes. Each needs the matching refuse_…() to have answered null.
  void add_reservation(Addr base, Bytes size) { reservations_.emplace(base, size), reserved_ += size; }
  void remove_reservation(Addr base);
  void add_granule(Handle handle, Bytes size) { granules_.emplace(handle, Granule{size}), physical_ += size; }
  void add_import(Handle handle, Bytes size) { granules_.emplace(handle, Granule{size, 0, false, true}); }
  bool destroy(Handle handle);  // true: nothing maps it any more, its bytes are back
  void map(Addr at, Bytes size, Handle handle);
  // The views of a run, by address. `visit(Addr, View&)`.
  template <class Visit>
  void for_run(Addr at, Bytes size, Visit visit) {
    for (auto it = views_.lower_bound(at); it != views_.end() && it->first - at < size; ++it)
      visit(it->first, it->second);
  }
  // Forgets the run's views; `last(Handle)` for every granule whose bytes thereby went back.
  template <class Last>
  void unmap(Addr at, Bytes size, Last last) {
    for (auto it = views_.lower_bound(at); it != views_.end() && it->first - at < size; it = views_.erase(it)) {
      mapped_ -= it->second.size;
      const Handle handle = it->second.handle;
      if (drop_view(handle)) last(handle);
    }
  }
  void add_slab(Addr base, Bytes size) { slabs_.emplace(base, size), physical_ += size; }
  void remove_slab(Addr base);
  void add_opened(Addr base, Bytes size) { opened_.emplace(base, size); }
  void remove_opened(Addr base) { opened_.erase(base); }

  Bytes granule_size(Handle handle) const;  // 0 = unknown
  Bytes reservation_size(Addr base) const;  // 0 = unknown
  Bytes slab_size(Addr base) const;         // 0 = unknown
  bool known(Handle handle) const { return granules_.count(handle) != 0; }

  Bytes reserved_addresses() const { return reserved_; }
  Bytes physical_bytes() const { return physical_; }
  Bytes mapped_bytes() const { return mapped_; }
  const Views& views() const { return views_; }
  const std::map<Addr, Bytes>& reservations() const { return reservations_; }
  const std::unordered_map<Handle, Granule>& granules() const { return granules_; }
  const std::map<Addr, Bytes>& slabs() const { return slabs_; }
  const std::map<Addr, Bytes>& opened() const { return opened_; }  // slabs of other processes

 private:
  bool drop_view(Handle handle);  // true: the granule is gone
  void forget(std::unordered_map<Handle, Granule>::iterator granule);

  Bytes granularity_;
  std::map<Addr, Bytes> reservations_;
  Views views_;
  std::unordered_map<Handle, Granule> granules_;
  std::map<Addr, Bytes> slabs_, opened_;
  Bytes reserved_ = 0, physical_ = 0, mapped_ = 0;
};

}  // namespace dymem
