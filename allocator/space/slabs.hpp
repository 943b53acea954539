// The contiguous backing's memory: slabs, each one plain allocation of the device and one range of addresses.
//
// A slab is held whole from the moment it is made; how far up it was ever used is its *mark*. Nothing above the mark is
// known to the pool, so that the last run below it can be told from a hole: it goes on for as long as the slab does.
//
// A slab whose blocks are grouped by class is *open*: blocks grow from both of its ends towards one another. All of it
// is tiled by cells then, and what lies between the low and the high part is one free run, the *gap*. The smallest gap
// there ever was (the paper's squeeze gap) was never needed: a slab smaller by that much would have done. It is not
// reserved, and of the gap as many bytes are *spare*: not shown to who looks at the pool's memory.
//
// Invariants
//   S1  mark <= size; a mark falls only by giving the slab back. Bytes below it are tiled by cells (space.hpp).
//   S3  Of an open slab mark = size. [low_end, high_start) is a whole run of free blocks, or empty; squeeze <= its
//       size, and the `squeeze` bytes from `spare` on lie in it.
//   S2  No block, run or cell lies in two slabs, even where two slabs touch: each is an allocation of its own for IPC,
//       registration and copies.
// Lock: the pool's. Cost: a look-up is one step per slab; there is one, or a few.
#pragma once
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

struct Slab {
  Addr base = 0;
  Bytes size = 0;
  Bytes mark = 0;                    // bytes from `base` that were ever used: the high-water mark
  std::vector<std::uint32_t> cells;  // GranuleIds, in address order
  bool incremental = false;          // for what is reclaimed only
  bool open = false;
  Addr low_end = 0, high_start = 0;  // the gap
  Addr spare = 0;                    // where the bytes that were never needed are taken to lie
  Bytes squeeze = 0;                 // the smallest gap so far
  Addr end() const { return base + mark; }
  Bytes room() const { return size - mark; }
  Bytes gap() const { return high_start - low_end; }
  Bytes needed() const { return open ? size - squeeze : mark; }  // what counts as reserved
};

class Slabs {
 public:
  static constexpr std::size_t kNoSlab = ~std::size_t{0};

  explicit Slabs(Driver& driver) : driver_(driver) {}
  ~Slabs() {
    for (const Slab& s : list_) (void)driver_.slab_free(s.base);
  }
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  Status add(Bytes size);
  Status give_back(std::size_t i);  // later slabs move up by one; the caller has dropped the cells' blocks

  std::size_t size() const { return list_.size(); }
  Slab& operator[](std::size_t i) { return list_[i]; }
  const Slab& operator[](std::size_t i) const { return list_[i]; }
  // The slab that holds this address below its mark / at all, or kNoSlab.
  std::size_t below_mark(Addr at) const {
    for (std::size_t i = 0; i < list_.size(); i++)
      if (at - list_[i].base < list_[i].mark) return i;
    return kNoSlab;
  }
  std::size_t of(Addr at) const {
    for (std::size_t i = 0; i < list_.size(); i++)
      if (at - list_[i].base < list_[i].size) return i;
    return kNoSlab;
  }
  // Does a run that ends here end at a mark that can still rise?
  bool ends_at_mark(Addr end) const {
    for (const Slab& s : list_)
      if (end == s.end() && s.room()) return true;
    return false;
  }
  bool any_open() const {
    for (const Slab& s : list_)
      if (s.open) return true;
    return false;
  }
  // The slab that an address below a mark lies in, if that one has parts.
  const Slab* parted(Addr at) const {
    for (const Slab& s : list_)
      if ((s.open || s.incremental) && at - s.base < s.size) return &s;
    return nullptr;
  }
  bool any_incremental() const {
    for (const Slab& s : list_)
      if (s.incremental) return true;
    return false;
  }
  Bytes held() const { return held_; }  // physical bytes, whole slabs

 private:
  Driver& driver_;
  std::vector<Slab> list_;
  Bytes held_ = 0;
};

// How large the next slab is. Memory that the pool has not been asked for stays with other tenants: the first slab takes
// three quarters of what is free (a limit says better), further ones half of the rest, or what the request needs.
struct SlabSizes {
  // The sizes to try in turn, largest first, none below `need` (rounded up to the granule unit); empty if `most` or the
  // device cannot hold it. `most`: what the limit leaves, ~0 for no limit.
  static std::vector<Bytes> tries(Bytes need, Bytes most, Bytes device_free, bool first);
};

}  // namespace dymem
