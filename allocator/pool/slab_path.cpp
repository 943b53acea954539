// Placement on the contiguous backing: one address-ordered best fit over everything; no aliases, no arenas.
//
// A request goes to the smallest run that holds it, the lowest of several; the run at a slab's mark counts as endless, so
// it is the last choice (decision 0007). Only then do marks rise, and only when no slab has room is a further one taken.
// Movable and untagged blocks lie at the low end of their run. Temporary ones lie at its high end if there is a limit: the
// endless run then ends where the limit stops the mark, and the two kinds grow towards one another. Without a limit
// nobody knows where that is, and they lie low too: at the high ends of holes alone they cost more than they save.
// Waiting for other streams has its place between: see below. Cost: the fast path is one best fit.
#include <cstdio>

#include "pool/impl.hpp"
#include "space/slabs.hpp"

namespace dymem {

constexpr int kAllTries = 1 << 20;
// A slab just taken may be gone to other threads when its notice has been written.
constexpr int kSlabRounds = 4;

BlockId Pool::Impl::place_in_slab(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock) {
  bool high = mobility == Mobility::temporary && config.limit;
  if (Place p = home.best_fit(kMainArena, size, by, high)) return home.take(p, size, BlockKind::live);
  return place_in_slab_slow(size, by, high, lock);
}

BlockId Pool::Impl::try_slab_fit(Bytes size, StreamIndex by, bool high) {
  Place p = home.best_fit(kMainArena, size, by, high, kAllTries);
  return p ? home.take(p, size, BlockKind::live) : kNoBlock;
}

BlockId Pool::Impl::try_raise(Bytes size, StreamIndex by, bool high, Bytes up_to) {
  Home::Rise rise = home.rise_for(size, by);
  if (!rise || space.reserved() + rise.need > up_to) return kNoBlock;
  Bytes bytes = rise.need;
  // Under a limit the far end is known: all the room there is becomes one run.
  if (high) bytes = std::min(rise.room, round_down(allowance(), kBlockUnit));
  home.raise(rise.slab, bytes);
  count_reserved();
  Place p = bytes > rise.need ? home.best_fit(kMainArena, size, by, high, kAllTries) : home.at(rise.at, size, by);
  DYMEM_CHECK(bool(p), "the mark rose and the request still fits nowhere");
  return home.take(p, size, BlockKind::live);
}

// A further slab, or the first one. The notice is written without the lock: others may take from the slab meanwhile.
bool Pool::Impl::add_slab(Bytes size, std::unique_lock<Lock>& lock) {
  Bytes held = space.slabs().held();
  bool first = space.slabs().size() == 0;
  Bytes most = !config.limit ? ~Bytes{0} : own_limit() > held ? own_limit() - held : 0;
  for (Bytes n : SlabSizes::tries(size, most, driver.memory().free, first)) {
    Status s = space.add_slab(n);
    if (s.ok()) {
      count_reserved();
      if (first) return true;
      std::string line = "dymem: " + std::to_string(space.slabs().size() - 1) + " contiguous slab(s) of " +
                         human_bytes(held) + " in all cannot hold " + human_bytes(size) +
                         " more; a further one of " + human_bytes(n) +
                         " was taken, and no block spans two: set a limit from the start to have one that size\n";
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

BlockId Pool::Impl::try_slabs(Bytes size, StreamIndex by, bool high, std::unique_lock<Lock>& lock) {
  BlockId id = try_slab_fit(size, by, high);
  if (id == kNoBlock) id = try_raise(size, by, high, budget(size));
  if (id == kNoBlock && wait_for_run(home.rise_for(size, by).need, size, by)) id = try_slab_fit(size, by, high);
  if (id == kNoBlock) id = try_raise(size, by, high, space.reserved() + allowance());
  for (int round = 0; id == kNoBlock && round < kSlabRounds && may_map(by) && add_slab(size, lock); round++) {
    id = try_slab_fit(size, by, high);
    if (id == kNoBlock) id = try_raise(size, by, high, space.reserved() + allowance());
  }
  return id;
}

BlockId Pool::Impl::place_in_slab_slow(Bytes size, StreamIndex by, bool high, std::unique_lock<Lock>& lock) {
  if (streams.any_capturing()) {  // nobody is waited for; a mark rises without any call of the driver
    BlockId id = try_slabs(size, by, high, lock);
    if (id != kNoBlock) return id;
    if (!may_map(by)) refuse_during_capture(size);
    stats.num_ooms++;
    throw OutOfMemory(figures(size, by));
  }
  look();
  note_peak();
  BlockId id = try_slabs(size, by, high, lock);
  if (id != kNoBlock) return id;

  stats.num_alloc_retries++;
  if (!streams.single()) {
    for (std::size_t s = 0; s < streams.size(); s++) streams.make_wait(by, StreamIndex(s));
    stats.num_stream_waits++;
    if ((id = try_slabs(size, by, high, lock)) != kNoBlock) return id;
  }
  if (wait_for_everything() && (id = try_slabs(size, by, high, lock)) != kNoBlock) return id;
  // An idle slab too small for the request stands in the way of one that is large enough.
  if (give_back_idle_slabs() && (id = try_slabs(size, by, high, lock)) != kNoBlock) return id;
  for (int round = 0; round < kReclaimRounds && reclaimed(size, lock); round++) {
    if (streams.any_capturing()) break;
    look();
    if ((id = try_slabs(size, by, high, lock)) != kNoBlock) return id;
    if (wait_for_everything() && (id = try_slabs(size, by, high, lock)) != kNoBlock) return id;
  }
  stats.num_ooms++;
  throw OutOfMemory(figures(size, by));
}

}  // namespace dymem
