// Placement on the contiguous backing: address-ordered best fit over everything; no aliases, no arenas of their own.
//
// A request goes to the smallest run that holds it, the lowest of several; the run at a slab's mark counts as endless,
// so it is the last choice (decision 0007). Only then do marks rise, and only when no slab has room is a further one
// taken. The first block that belongs at a high end opens its slab: from then on it has two parts and a gap between
// them, and placement.hpp says which of their holes a class may have (decision 0010). The gap is the last choice as the
// endless run was. Waiting for other streams has its place between: see below. Where neither is left, and before a
// further slab, any hole will do: a class never fails where untagged memory would not. Cost: the fast path is one best
// fit, or two.
#include <algorithm>
#include <cstdio>

#include "pool/impl.hpp"
#include "space/slabs.hpp"

namespace dymem {

constexpr int kTries = 64, kAllTries = 1 << 20;
constexpr Bytes kIncrementalShare = 5;
// A slab just taken may be gone to other threads when its notice has been written.
constexpr int kSlabRounds = 4;

inline Place Pool::Impl::chosen_fit(Bytes size, StreamIndex by, bool high, int tries, Parts part, Choice choice) const {
  if (choice == Choice::outermost) return home.outermost_fit(size, by, tries, part);
  const Place p = home.best_fit(kMainArena, size, by, high, tries, part);
  return p && choice == Choice::opposite ? home.at_end(p, size, by, !high) : p;
}

inline BlockId Pool::Impl::try_parts(Bytes size, StreamIndex by, const PartsFor& parts, int tries) {
  Place p = chosen_fit(size, by, parts.high, tries, parts.first, parts.in_first);
  if (!p && parts.then) p = chosen_fit(size, by, parts.high, tries, parts.then, parts.in_then);
  return p ? home.take(p, size, BlockKind::live) : kNoBlock;
}

BlockId Pool::Impl::place_in_slab(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock) {
  if (incremental(config.placement, mobility))
    if (BlockId id = try_incremental(size, by); id != kNoBlock) return id;
  const bool at_ends = home.any_open() && !streams.much_contended();
  const PartsFor parts = parts_for(config.placement, mobility, size, at_ends);
  if (BlockId id = try_parts(size, by, parts, kTries); id != kNoBlock) return id;
  if (BlockId id = try_gap(size, by, parts.high, space.reserved()); id != kNoBlock) return id;
  return place_in_slab_slow(size, by, parts, lock);
}

// The incremental space: a slab beside the first, as large as that leaves and a fifth of it at most (the paper's 2 GB
// beside 10), taken when a block for it first comes. Low to high, best fit; what does not fit is not its business.
BlockId Pool::Impl::try_incremental(Bytes size, StreamIndex by) {
  const Slabs& slabs = space.slabs();
  if (!slabs.any_incremental()) {
    if (slabs.size() == 0 || !may_map(by)) return kNoBlock;
    Bytes room = config.limit ? own_limit() > slabs.held() ? own_limit() - slabs.held() : 0 : ~Bytes{0};
    room = round_down(std::min({room, slabs[0].size / kIncrementalShare, driver.memory().free}), kGranuleUnit);
    if (room < size || !space.add_slab(room, true).ok()) return kNoBlock;
    home.incremental_added();
    count_reserved();
  }
  if (Place p = home.best_fit(kMainArena, size, by, false, kTries, kIncrementalPart))
    return home.take(p, size, BlockKind::live);
  const Home::Rise rise = home.rise_for(size, by, true);
  if (!rise || rise.need > allowance()) return kNoBlock;
  home.raise(rise.slab, rise.need);
  count_reserved();
  return home.take(home.at(rise.at, size, by), size, BlockKind::live);
}

BlockId Pool::Impl::try_slab_fit(Bytes size, StreamIndex by, const PartsFor& parts) {
  return try_parts(size, by, parts, kAllTries);
}

// In an open slab's gap, as far as that leaves no more than `up_to` reserved.
BlockId Pool::Impl::try_gap(Bytes size, StreamIndex by, bool high, Bytes up_to) {
  for (std::size_t i = 0; i < space.slabs().size(); i++) {
    const Slab& slab = space.slabs()[i];
    if (!slab.open) continue;
    const Home::GapPlace where = home.gap_fit(i, size, by, high);
    if (!where) continue;
    const Bytes gap = where.high_start - where.low_end;
    const Bytes more = slab.squeeze > gap ? slab.squeeze - gap : 0;
    if (space.reserved() + more > up_to) continue;
    BlockId id = home.take_gap(i, where, size);
    if (more) count_reserved();
    return id;
  }
  return kNoBlock;
}

// By how much reserved would rise for it at least.
Bytes Pool::Impl::rise_needed(Bytes size, StreamIndex by) const {
  const Home::Rise rise = home.rise_for(size, by);
  Bytes least = rise ? rise.need : ~Bytes{0};
  for (std::size_t i = 0; i < space.slabs().size(); i++)
    if (const Slab& slab = space.slabs()[i]; slab.open && slab.gap() >= size)
      least = std::min(least, slab.squeeze > slab.gap() - size ? slab.squeeze - (slab.gap() - size) : 0);
  return least == ~Bytes{0} ? 0 : least;
}

BlockId Pool::Impl::try_raise(Bytes size, StreamIndex by, const PartsFor& parts, Bytes up_to) {
  if (BlockId id = try_gap(size, by, parts.high, up_to); id != kNoBlock) return id;
  Home::Rise rise = home.rise_for(size, by);
  if (!rise || space.reserved() + rise.need > up_to) return kNoBlock;
  if (parts.high) {  // what is free at the mark, and the room above it, become the gap
    home.open_slab(rise.slab);
    return try_gap(size, by, true, up_to);
  }
  home.raise(rise.slab, rise.need);
  count_reserved();
  Place p = home.at(rise.at, size, by);
  DYMEM_CHECK(bool(p), "the mark rose and the request still fits nowhere");
  return home.take(p, size, BlockKind::live);
}

constexpr int kNoticesMost = 3;  // a program that trims at every step would be told at every step

// A further slab, or the first one. The notice is written without the lock: others may take from the slab meanwhile.
bool Pool::Impl::add_slab(Bytes size, std::unique_lock<Lock>& lock) {
  Bytes held = space.slabs().held();
  bool first = space.slabs().size() == 0;
  Bytes most = !config.limit ? ~Bytes{0} : own_limit() > held ? own_limit() - held : 0;
  for (Bytes n : SlabSizes::tries(size, most, driver.memory().free, first)) {
    Status s = space.add_slab(n);
    if (s.ok()) {
      count_reserved();
      if (first || ++slab_notices > kNoticesMost) return true;
      std::string line = "dymem: " + std::to_string(space.slabs().size() - 1) + " contiguous slab(s) of " +
                         human_bytes(held) + " in all cannot hold " + human_bytes(size) +
                         " more; a further one of " + human_bytes(n) +
                         " was taken, and no block spans two: set a limit from the start to have one that size" +
                         (slab_notices == kNoticesMost ? " (not said again)\n" : "\n");
      lock.unlock();
      std::fputs(line.c_str(), stderr);
      lock.lock();
      return true;
    }
    if (s.code != Code::out_of_memory) s.expect_ok();
  }
  return false;
}

// Slabs that hold nothing, once all work is done. Waits only if there are any.
bool Pool::Impl::give_back_idle_slabs() {
  bool any = false;
  for (std::size_t i = 0; i < space.slabs().size(); i++) any |= home.slab_free(i);
  if (!any) return false;
  streams.synchronize_all();
  progressed();
  any = false;
  for (std::size_t i = space.slabs().size(); i-- > 0;) {
    if (!home.slab_idle(i)) continue;
    Status s = home.give_back_slab(i);
    count_reserved();
    s.expect_ok();
    any = true;
  }
  return any;
}

BlockId Pool::Impl::try_slabs(Bytes size, StreamIndex by, const PartsFor& parts, std::unique_lock<Lock>& lock) {
  BlockId id = try_slab_fit(size, by, parts);
  if (id == kNoBlock) id = try_raise(size, by, parts, budget(size));
  if (id == kNoBlock && wait_for_run(rise_needed(size, by), size, by)) id = try_slab_fit(size, by, parts);
  if (id == kNoBlock) id = try_raise(size, by, parts, space.reserved() + allowance());
  // Nothing is left but holes of other classes: a block in the wrong part is better than none, or than a further slab.
  if (id == kNoBlock) id = try_slab_fit(size, by, {kEveryPart});
  for (int round = 0; id == kNoBlock && round < kSlabRounds && may_map(by) && add_slab(size, lock); round++) {
    id = try_slab_fit(size, by, parts);
    if (id == kNoBlock) id = try_raise(size, by, parts, space.reserved() + allowance());
  }
  return id;
}

BlockId Pool::Impl::place_in_slab_slow(Bytes size, StreamIndex by, const PartsFor& parts,
                                       std::unique_lock<Lock>& lock) {
  BlockId id = kNoBlock;
  for (int round = 0; streams.any_capturing(); round++) {  // no stream is waited for; a mark rises without calls of the driver
    if ((id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
    if (!may_map(by)) refuse_during_capture(size);
    wait_or_fail(size, by, round, lock);
  }
  look();
  note_peak();
  id = try_slabs(size, by, parts, lock);
  if (id != kNoBlock) return id;

  stats.num_alloc_retries++;
  if (!streams.single()) {
    for (std::size_t s = 0; s < streams.size(); s++) streams.make_wait(by, StreamIndex(s));
    stats.num_stream_waits++;
    if ((id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
  }
  if (wait_for_everything() && (id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
  // An idle slab too small for the request stands in the way of one that is large enough.
  if (give_back_idle_slabs() && (id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
  for (int round = 0; round < kReclaimRounds && reclaimed(size, lock); round++) {
    if (streams.any_capturing()) break;
    look();
    if ((id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
    if (wait_for_everything() && (id = try_slabs(size, by, parts, lock)) != kNoBlock) return id;
  }
  stats.num_ooms++;
  throw OutOfMemory(figures(size, by));
}

}  // namespace dymem
