// Stitching: free bytes scattered over idle granules, seen as one piece through a region of second views.
//
// A stitched block lies in a region: it may begin with the free end of its first granule and stop at the free start of
// its last one; granules between are wholly free. While it is held, the home blocks behind it are lent to it.
// No byte is moved, no kernel is waited for.
//
// Invariants: B4 (block.hpp), P2 (space.hpp), and
//   T1  A region is dropped only when it holds no block and every stream has finished with its addresses.
//   T2  Views beyond the granules' home views stay under views_allowed(): the regions idle longest go first.
// Lock: the pool's. Cost: find() a few loads a region view; stitching and dropping are driver calls.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "pool/home.hpp"

namespace dymem {

class Stitcher {
 public:
  Stitcher(Space& space, Home& home, StreamTable& streams);

  // The pool's clock: blocks handed out so far. Says how long a region has not been used.
  void set_now(std::uint64_t calls) { now_ = calls; }

  struct Spot {
    RegionId region = kNone;
    Addr at = 0;
    explicit operator bool() const { return region != kNone; }
  };
  // A range of existing views whose bytes are all free and usable: the smallest that holds `size`.
  Spot find(Bytes size, StreamIndex by);
  // Is exactly this range of views free and usable; `at` is an address inside a region.
  Spot at(Addr at, Bytes size, StreamIndex by) const;

  // The home block seen at an address inside a region, or kNoBlock.
  BlockId covering(Addr at) const;

  struct Plan {
    std::vector<GranuleId> granules;  // in address order; new ones stand before a final partly used one
    std::vector<Bytes> fresh;         // sizes of granules to create
    Bytes fresh_bytes = 0;
    RegionId extends = kNone;  // this region grows by the granules; else a new one is made
    Bytes head = 0;            // usable bytes before the granules: at the region's end, or (new region) at the
                               // end of granules.front(), which is not idle
    GranuleId last = kNone;    // not idle: its free start is used
    Bytes whole_bytes = 0;     // of idle granules
    double cost_us = 0;
    bool all_new() const { return granules.empty() && last == kNone && !head; }  // nothing that exists is part of it
  };
  // How to see `size` bytes as one piece with the fewest new bytes, then the least driver time.
  // `room`: new bytes that may be taken freely (up to the pool's budget); `most`: the largest new granule.
  // `thrifty`: before driver time, idle granules are spared: what is free in granules in use serves nobody else, but
  // for the ends of a stitch. Decision 0004. Nothing if more than `allowance` new bytes are needed.
  std::optional<Plan> plan(Bytes size, StreamIndex by, Bytes room, Bytes allowance, Bytes most, bool thrifty) const;
  // Creates what is to be created (in the main arena) and maps the region.
  Status stitch(const Plan& plan, Spot* out);

  BlockId take(Spot spot, Bytes size, StreamIndex by);
  void release(BlockId id, LastUse use);

  // Drops regions that have long not been used, and those idle longest until the views are within bounds. What work may
  // still use is left for next time.
  void retire();
  bool waits_to_retire() const { return waiting_; }
  // Drops every region that holds nothing and is finished with; for trim.
  void drop_idle();
  std::uint64_t views() const {  // second views that exist now
    return space_.views() > space_.granule_count() ? space_.views() - space_.granule_count() : 0;
  }

  void audit(std::vector<std::string>* broken) const;

 private:
  RegionId region_of(Addr at) const;  // kNone if no region is mapped there
  bool range_free(const Region& r, std::size_t view, Addr at, Bytes size, StreamIndex by) const;
  // What is known of a region's use; beside it, since space/ knows no streams.
  struct Usage {
    std::uint32_t held = 0;          // stitched blocks in it
    std::uint64_t used_at = 0;       // set_now() when last used: the longest idle is retired first
    std::vector<LastUse> last_uses;  // when blocks in it were freed: the last of each stream that is not finished
  };
  void note_release(RegionId id, LastUse use);
  bool drop(RegionId id);                                  // false: in use, not finished, or the driver refused
  Bytes free_tail(const Region& r, StreamIndex by) const;  // usable free bytes at the region's end
  bool finished(RegionId id) const;
  std::uint64_t views_allowed() const;

  Space& space_;
  Home& home_;
  StreamTable& streams_;
  std::uint64_t now_ = 0;
  bool waiting_ = false;  // retire() left something that was not finished
  std::vector<Usage> usage_;          // by region
  std::vector<RegionId> by_address_;  // live regions, by base
};

}  // namespace dymem
