// Home: what is free, and block surgery. The one truth about free memory.
//
// Home blocks tile the home addresses of the space. Three arenas, each in a window of its own with its own free index:
// main (movable from the low end of a run, temporary from the high end), incremental (reclaimed), small. In a
// contiguous pool everything is main: one range a slab (home_slabs.cpp). take() cuts a block out of a run, release()
// gives it back and joins neighbours; both keep Granule::used and Granule::first. Invariants B1-B3 (block.hpp), and
//   H1  Granule::used = bytes of its blocks that are not free; Granule::first = the block covering Granule::home.
//   H2  Free bytes + used bytes = reserved bytes of the arena's granules (of an open slab: and what is spare).
// Lock: the pool's. Cost: O(1) index updates plus one step per granule the block touches (they grow with block size).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "pool/block.hpp"
#include "pool/free_index.hpp"
#include "pool/placement.hpp"
#include "space/space.hpp"
#include "stream/stream_table.hpp"

namespace dymem {

enum ArenaIndex : std::uint8_t { kMainArena = 0, kIncrementalArena = 1, kSmallArena = 2 };

struct Place {  // where in a run a block could go
  BlockId head = kNoBlock;
  Addr at = 0;
  bool own = false;  // only the asking stream could have it now (set by best_fit for large blocks)
  explicit operator bool() const { return head != kNoBlock; }
};

class Home {
 public:
  Home(Space& space, StreamTable& streams);

  BlockTable& blocks() { return blocks_; }
  const BlockTable& blocks() const { return blocks_; }
  Block& block(BlockId id) { return blocks_[id]; }
  const Block& block(BlockId id) const { return blocks_[id]; }
  FreeIndex& index(int arena) { return arenas_[arena].index; }
  const FreeIndex& index(int arena) const { return arenas_[arena].index; }

  // Where `size` bytes usable by `by` fit in the run; at its high end if asked. Nothing if they do not.
  Place fit(BlockId head, Bytes size, StreamIndex by, bool high) const;
  // Best fit over at most `tries` runs that have to be looked into (runs of one last use decide at once). With several
  // streams at work, a large block goes where `by` alone may go, if a run not much too large has such a place: see
  // own_fit.
  Place best_fit(int arena, Bytes size, StreamIndex by, bool high, int tries = 64, Parts parts = kAnyPart) const;
  // Of the holes of one part of open slabs that fit best (a few of them, and `tries` looked into at most), the one that
  // is farthest from the gap, at its end there: of the high part the last, of the low part the first.
  Place outermost_fit(Bytes size, StreamIndex by, int tries, Parts part) const;
  // The same run's low or high end, if it has any: one at a mark that may rise has no high end.
  Place at_end(Place p, Bytes size, StreamIndex by, bool high) const;
  Bytes largest(int arena, StreamIndex by) const;  // of the usable stretches of free bytes
  Bytes free_bytes(int arena) const;
  // Is [at, at+size) free and usable by `by`; its run.
  Place at(Addr at, Bytes size, StreamIndex by) const;

  BlockId take(Place place, Bytes size, BlockKind kind);
  void release(BlockId id, LastUse use);

  // Adds granules to an arena at `where` (see growth_site) and makes their bytes free, finished.
  Status grow(int arena, Addr where, const std::vector<Bytes>& sizes);
  // Where the arena should grow so that a run of `size` usable bytes results, and how many new bytes that takes.
  struct Site {
    Addr at = 0;
    Bytes need = 0;  // new bytes for the run; a multiple of the granule unit
    Bytes room = 0;  // bytes that fit there at most
    Bytes have = 0;  // free bytes already there, just before
  };
  // Whether the run may start in a sliver at the end of the granule before it, which saves a granule now and
  // then, but holds that granule, too, for a few bytes.
  enum class Start { past_slivers, in_slivers };
  Site growth_site(int arena, Bytes size, StreamIndex by, Start start) const;
  Addr room_for(int arena, Bytes bytes) const;  // home addresses with nothing mapped; 0 = the window is used up
  // Contiguous backing: where a slab's mark must rise so that a run of `size` bytes usable by `by` ends there: the slab
  // with the least room that suffices. `room`: by how much it can rise at most.
  struct Rise {
    std::size_t slab = Slabs::kNoSlab;
    Bytes need = 0, room = 0;
    Addr at = 0;  // where that run begins
    explicit operator bool() const { return slab != Slabs::kNoSlab; }
  };
  Rise rise_for(Bytes size, StreamIndex by, bool incremental = false) const;
  void raise(std::size_t slab, Bytes bytes);  // and makes those bytes free, finished
  void incremental_added() { parts_ = true; }
  bool any_open() const { return open_; }
  // Opens a slab for blocks of two kinds (slabs.hpp): one whose mark can still rise.
  void open_slab(std::size_t slab);
  // Where `size` bytes usable by `by` fit in an open slab's gap, nearest to the low end or the high one; and the gap
  // after.
  struct GapPlace {
    Place place;
    Addr low_end = 0, high_start = 0;
    explicit operator bool() const { return bool(place); }
  };
  GapPlace gap_fit(std::size_t slab, Bytes size, StreamIndex by, bool high) const;
  Bytes largest_in_gap(const Slab& slab, StreamIndex by) const;  // at its low end, without growing
  Bytes spanned(const Slab& slab) const;                         // from its ends to the last blocks that are not free
  std::size_t gap_at(Addr run) const;                            // the slab whose gap this run is, or kNoSlab
  BlockId take_gap(std::size_t slab, const GapPlace& where, Bytes size);
  bool slab_free(std::size_t slab) const;     // wholly, and not pinned
  bool slab_idle(std::size_t slab) const;     // … and no work uses it any more
  Status give_back_slab(std::size_t slab);    // an idle one
  // The smallest run of `size` bytes (among the first few) that `by` could use once it had waited for an epoch of `on`
  // that is no later than `most`: that epoch; 0 if there is none.
  Epoch run_after(Bytes size, StreamIndex by, StreamIndex on, Epoch most) const;
  // Whether runs that end at a slab's mark count as endless: as long as the limit lets marks rise.
  void let_marks_rise(bool yes) { marks_rise_ = yes; }

  // Takes an idle granule's bytes out of its arena (before it is given back or moved).
  void remove(GranuleId id);
  // Makes bytes of a granule that was moved to a new home address free there.
  void adopt(int arena, GranuleId id);

  // Free bytes at the start / end of a granule, as far as `by` may use them now.
  Bytes free_prefix(GranuleId id, StreamIndex by) const;
  Bytes free_suffix(GranuleId id, StreamIndex by) const;
  bool idle_usable(GranuleId id, StreamIndex by) const;  // wholly free, and usable
  // Wholly free, and usable by `by` once it has waited for the epoch of `on` that is returned (0: usable now).
  std::optional<Epoch> idle_after(GranuleId id, StreamIndex by, StreamIndex on) const;
  bool idle_finished(GranuleId id) const;  // … by anyone: no work uses it any more
  BlockId covering(Addr at) const;         // the home block that holds this address, or kNoBlock
  BlockId run_head(BlockId id) const;
  int arena_of(Addr at) const;

  // Joins neighbouring free blocks whose last uses have finished by now (after StreamTable::poll made progress).
  void settle();

  void audit(std::vector<std::string>* broken) const;
  void audit_gap(const Slab& slab, std::vector<std::string>* broken) const;

 private:
  struct Arena {
    FreeIndex index;
    Addr lo = 0, hi = 0, end = 0;  // end: past the highest granule
    Bytes gaps = 0;                // unmapped bytes below end, left by what was given back
  };
  // Calls f(entry, high) on the arena's runs of at least `size` bytes, smallest first, until it returns true. In a
  // contiguous pool a run at a mark that may rise is endless, unless it is exactly as large: larger than any other, and
  // without a high end.
  template <class F>
  void each_run(int arena, Bytes size, bool high, Parts parts, F f) const;
  unsigned part_of(Addr at) const;  // as bits; none: of a gap
  template <class F>
  void each_run_of(Parts parts, Bytes size, bool high, F f) const;  // once a slab is open, or for the high part
  void index_run(BlockId head, BlockId tail, Bytes run_size);
  void unindex_run(BlockId head);
  void list_mixed(BlockId head);
  // Best fit among what `by` freed itself and has not finished with; failing that, best fit.
  bool own(BlockId b, StreamIndex by) const;
  // Most of [at, at+size), which begins in free block b: where small blocks lie between large ones, one does not tell.
  bool mostly_own(BlockId b, Addr at, Bytes size, StreamIndex by) const;
  Place own_fit(int arena, Bytes size, StreamIndex by, bool high, int tries, Parts parts) const;
  Bytes free_before(const Arena& a, Addr at, StreamIndex by) const;  // usable free bytes that end at `at`
  bool small_before(Addr at, Bytes size) const;  // the block that ends at `at` is small beside one of `size`
  template <class F>
  void each_gap(const Arena& a, F f) const;
  bool may_join(const Block& x, const Block& y) const;  // neighbours, both free
  LastUse joined(LastUse a, LastUse b) const;
  BlockId join(BlockId a, BlockId b);            // neighbours, both free; returns the one that stays
  BlockId split(BlockId id, Addr at);            // returns the upper part; `id` may become either (see cpp)
  void hint(BlockId id, Addr from, Bytes size);  // Granule::first of the granules that start in there
  // Bytes of [at, at+size) become used (or free) in their granules; granules that start in there name `id`.
  void use(Addr at, Bytes size, bool used, BlockId id);
  BlockId take_low(BlockId head, Bytes size, BlockKind kind);  // the usual case: the low end of a run's first block
  bool release_plain(BlockId id);  // the usual case: neighbours are runs of one block, or not free
  void insert_free(BlockId id);    // links are set; joins with free neighbours and indexes
  void add_free(std::size_t slab, Addr from, Bytes bytes, const std::vector<GranuleId>& cells);
  void widen_gap(const Block& b);  // which is about to become free

  Space& space_;
  StreamTable& streams_;
  BlockTable blocks_;
  Arena arenas_[Space::kArenas];
  bool marks_rise_ = true;
  bool open_ = false;   // some slab is
  bool parts_ = false;  // some slab is open or incremental
  std::vector<BlockId> settling_;
  std::vector<BlockId> mixed_;  // heads of runs of several blocks, some no longer so; all that settle() has to look at
  static constexpr std::size_t kMixedMin = 4096;
  std::size_t mixed_max_ = kMixedMin;
};

}  // namespace dymem
