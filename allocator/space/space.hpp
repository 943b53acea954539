// Physical memory and the addresses it is seen at: granules, home views, regions of alias views.
//
// Every granule has one *home view*, in a window of home addresses; there each granule appears exactly once, so what is
// free is told by the home addresses alone. A *region* is a run of second views over granules that were idle: a way to
// see scattered free memory as one piece. Regions hold no memory and no state of their own that a free or an
// allocation would have to update.
//
// The contiguous backing has slabs (slabs.hpp) in place of all of this: below their marks they are tiled by *cells*,
// records like those of granules, without handle or views, so that the blocks above need not know the difference.
//
// Invariants
//   P1  reserved() = sum of the sizes of granules (contiguous backing: of cells, so of the slabs' marks; of an open
//   slab
//       all but what is spare).
//   P2  A region holds a granule at most once. A granule that is given back breaks the regions that saw it.
//   P3  A driver call that fails leaves everything as it was: partial work is rolled back here; what the driver will
//       not undo either is kept as leftovers and undone before anything else is mapped.
// Lock: the pool's. Cost: driver calls (tens of microseconds a handle); look-ups are one table access.
#pragma once
#include <memory>
#include <vector>

#include "base/backing.hpp"
#include "base/event.hpp"
#include "driver/driver.hpp"
#include "space/address_ranges.hpp"
#include "space/leftovers.hpp"
#include "space/slabs.hpp"

namespace dymem {

using GranuleId = std::uint32_t;
using RegionId = std::uint32_t;
constexpr std::uint32_t kNone = 0xffffffff;

struct alignas(64) Granule {
  Handle handle = 0;
  Addr home = 0;  // 0 = record not in use
  Bytes size = 0;
  Bytes used = 0;               // bytes not free; kept by the pool
  std::uint32_t first = kNone;  // the block that covers `home`; kept by the pool
  std::uint32_t pins = 0;
  std::vector<RegionId> regions;
  bool idle() const { return used == 0 && pins == 0; }
};

struct Region {
  Addr base = 0;
  Bytes size = 0;      // bytes mapped
  Bytes capacity = 0;  // addresses held; the region may be extended up to here
  std::vector<GranuleId> granules;
  std::vector<Addr> at;  // address of each view
  bool broken = false;   // a granule of it is gone: no new blocks
};

class Space {
 public:
  Space(Driver& driver, Backing backing);
  ~Space();

  bool contiguous() const { return contiguous_; }
  Bytes unit() const { return unit_; }

  // Windows of home addresses for the arenas; addresses only.
  struct Window {
    Addr lo = 0, hi = 0;
  };
  Window window(int arena) const { return windows_[arena]; }
  static constexpr int kArenas = 3;

  // Creates granules of these sizes and maps them at adjacent home addresses from `at`. All or nothing.
  Status add_home(Addr at, const std::vector<Bytes>& sizes, std::vector<GranuleId>* out);
  // Unmaps every view of the granule and gives it back. The caller knows that no work uses it any more.
  Status give_back(GranuleId id);
  // Takes an idle granule's only (home) view away and maps it at another home address (alias=off). No alias views.
  Status move_home(GranuleId id, Addr at);

  // Contiguous backing. A new slab has nothing below its mark; raise() makes the next `bytes` of it cells, and tells which
  // are new (the last one so far may just have become larger).
  const Slabs& slabs() const { return slabs_; }
  Status add_slab(Bytes size, bool incremental = false);
  void raise(std::size_t slab, Bytes bytes, std::vector<GranuleId>* fresh);
  Status give_back_slab(std::size_t slab);
  // Opens a slab (slabs.hpp), of which what is free from `low_end` to its end becomes the gap. Nothing more is
  // reserved.
  void open_slab(std::size_t slab, Addr low_end, std::vector<GranuleId>* fresh);
  void set_gap(std::size_t slab, Addr low_end, Addr high_start);
  static constexpr Bytes kCell = 16 * kMiB;

  Status add_region(const std::vector<GranuleId>& granules, RegionId* out);
  Status extend_region(RegionId id, const std::vector<GranuleId>& granules);
  Status drop_region(RegionId id);  // the caller knows that no work uses its addresses

  GranuleId granule_at(Addr home) const {  // kNone if nothing is mapped there
    std::uint64_t slot = (home - base_) / kGranuleUnit;
    return slot < slots_ ? slot_[slot] - 1 : contiguous_ ? cell_at(home) : kNone;
  }
  Granule& granule(GranuleId id) { return granules_[id]; }
  const Granule& granule(GranuleId id) const { return granules_[id]; }
  std::size_t granules() const { return granules_.size(); }  // records, some not in use
  std::size_t granule_count() const { return granule_count_; }  // contiguous: slabs
  Region& region(RegionId id) { return regions_[id]; }
  const Region& region(RegionId id) const { return regions_[id]; }
  std::size_t regions() const { return regions_.size(); }

  Bytes reserved() const { return reserved_; }
  Bytes arena_bytes(int arena) const { return arena_bytes_[arena]; }  // of the granules with homes in its window
  std::uint64_t arena_granules(int arena) const { return arena_granules_[arena]; }
  std::uint64_t views() const { return views_; }
  std::uint64_t views_max() const { return views_max_; }
  Bytes va_bytes() const { return va_; }
  Bytes va_bytes_max() const { return va_max_; }
  std::uint64_t created() const { return created_; }
  std::uint64_t destroyed() const { return destroyed_; }
  bool owns(Addr at) const;
  // Reports where granules (contiguous backing: bytes below marks) come and go; nullptr = nobody. A granule that sleeps
  // stays where it is.
  void tell(EventSink* sink) { sink_ = sink; }
  // Pins every granule, those to come too, for good.
  void keep_granules();
  // Retries what a rollback could not undo; ok when nothing is left.
  Status sweep() { return leftovers_.empty() ? Status{} : leftovers_.sweep(); }

 private:
  friend class Dormitory;
  GranuleId cell_at(Addr at) const {
    std::size_t i = slabs_.below_mark(at);
    return i == Slabs::kNoSlab ? kNone : slabs_[i].cells[(at - slabs_[i].base) / kCell];
  }
  GranuleId make_granule();
  void add_cells(Slab& slab, Bytes bytes, std::vector<GranuleId>* fresh);
  void count_memory(const Granule& g, int by);  // the granule's memory was made (1) or given to the device (-1)
  void count_view(Bytes size);
  void uncount_view(Bytes size);
  void set_slots(Addr at, Bytes size, std::uint32_t value);
  void forget(GranuleId id);
  void told(TraceKind kind, Addr at, Bytes size) const {
    if (sink_) sink_->segment(kind, at, size, false);
  }

  Driver& driver_;
  EventSink* sink_ = nullptr;
  bool keep_ = false;  // keep_granules()
  Bytes unit_;
  Addr base_ = 0;  // of the home reservation
  Bytes home_size_ = 0;
  bool contiguous_ = false;
  Slabs slabs_;
  Window windows_[kArenas];
  struct Free {
    void operator()(std::uint32_t* p) const;
  };
  std::unique_ptr<std::uint32_t[], Free> slot_;  // 1 + granule, by 2 MiB of home address; lazily touched
  std::uint64_t slots_ = 0;
  AddressRanges alias_;
  Leftovers leftovers_;
  std::vector<Granule> granules_;
  std::vector<GranuleId> spare_granules_;
  std::vector<Region> regions_;
  std::vector<RegionId> spare_regions_;
  int arena_of(Addr home) const;
  void count_home(const Granule& g, int by);
  Bytes arena_bytes_[kArenas] = {};
  std::uint64_t arena_granules_[kArenas] = {};
  std::size_t granule_count_ = 0;
  Bytes reserved_ = 0, va_ = 0, va_max_ = 0;
  std::uint64_t views_ = 0, views_max_ = 0, created_ = 0, destroyed_ = 0;
};

}  // namespace dymem
