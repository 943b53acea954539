// What happens when no free run fits: the order in which memory is found, up to the limit and past it.
//
//   1  what other streams have finished with by now
//   2  views that are there already
//   3  growing, while reserved stays within the running peak of occupied bytes plus a little (budget)
//      … or, where stitching does not come to rest, further (relief.cpp)
//   4  stitching: idle granules seen as one piece; new granules only for what is missing, up to the limit; growing all
//      the same where past the budget that saves no memory;
//      before growing past the budget a stream waits for others where that is expected to take no time; before growing
//      far past it a lesser stream waits for the busiest one (on the device; decision 0005)
//   -- at the limit, or when the device refuses:
//   5  let this stream wait for the others (on the device), then 1-4 again
//   6  wait for pending frees (on the host), then 1-4 again
//   7  the reclaim callback (PyTorch's), or bytes that calls of private pools have claimed and do not take (claims.cpp, also
//      during captures), unlocked, then 1-4 and 6 again
//   8  OutOfMemory with every figure; the pool stays usable
#include <algorithm>

#include "base/capture.hpp"
#include "driver/cost_model.hpp"
#include "pool/granule_sizes.hpp"
#include "pool/impl.hpp"

namespace dymem {

Bytes Pool::Impl::limit_left() const {
  const Bytes own = reserved();
  return config.limit > own ? config.limit - own : 0;
}

Bytes Pool::Impl::own_limit() const {
  if (!config.limit) return 0;
  const Bytes other = claims.most(joint.reserved());
  return config.limit > other ? config.limit - other : 1;
}

Bytes Pool::Impl::allowance() const {
  const Bytes limit = own_limit();
  Bytes cap = std::min(limit ? limit : ~Bytes{0}, device_limit);
  return cap > space.reserved() ? cap - space.reserved() : 0;
}

// What waits for other streams comes and goes from step to step, so a tight budget would have every step stitch.
constexpr double kSeveralStreams = 5;

Bytes Pool::Impl::budget(Bytes size) const {
  Bytes peak = counters.occupied() + size;
  // Under a limit a peak that was does not count: granules made early for it would be used in part by what comes first.
  if (!config.limit) peak = std::max(peak, counters.occupied_peak());
  double ratio = config.grow_ratio * (streams.single() ? 1 : kSeveralStreams);
  Bytes b = peak + Bytes(double(peak) * ratio) + config.grow_slack;
  return std::min(b, space.reserved() + allowance());
}

// Where less than this share of what the pool may hold is left, stitching spares whole granules.
constexpr Bytes kNearShare = 64;

bool Pool::Impl::near_limit() const {
  Bytes left = allowance();
  return left < (space.reserved() + left) / kNearShare;
}

BlockId Pool::Impl::try_fit(int arena, Bytes size, StreamIndex by, bool high) {
  Place p = home.best_fit(arena, size, by, high, 1 << 20);
  return p ? home.take(p, size, BlockKind::live) : kNoBlock;
}

BlockId Pool::Impl::try_views(Bytes size, StreamIndex by) {
  if (!config.alias) return kNoBlock;
  Stitcher::Spot s = stitcher.find(size, by);
  if (!s) return kNoBlock;
  stats.num_stitch_reuses++;
  return stitcher.take(s, size, by);
}

// The device refused `asked` bytes: remember how much it can have left, so that the next try asks for less or goes the
// way of the limit at once.
void Pool::Impl::refused(const Status& s, Bytes asked) {
  if (s.code != Code::out_of_memory) s.expect_ok();
  Bytes left =
      std::min(round_down(driver.memory().free, kGranuleUnit), asked > kGranuleUnit ? asked - kGranuleUnit : 0);
  device_limit = space.reserved() + left;
}

BlockId Pool::Impl::try_grow(int arena, Bytes size, StreamIndex by, bool high, Bytes up_to) {
  return try_grow_at(home.growth_site(arena, size, by, Home::Start::past_slivers), arena, size, by, high, up_to);
}

Bytes Pool::Impl::most_granule(Bytes size) const {
  return GranuleSizes::most(size, space.reserved(), own_limit(), fine_granules());
}

bool Pool::Impl::fine_granules() const {
  return GranuleSizes::fine(space.reserved(), config.limit, config.alias, streams.single());
}

BlockId Pool::Impl::try_grow_at(Home::Site site, int arena, Bytes size, StreamIndex by, bool high, Bytes up_to) {
  if (!site.need) return try_fit(arena, size, by, high);  // a stitch that failed half-way left new granules there
  if (site.need > site.room || space.reserved() + site.need > up_to) return kNoBlock;
  Bytes reserved_now = space.reserved();
  bool limited = config.limit != 0;
  Bytes most = most_granule(size), ask = site.need;
  if (arena != kSmallArena)
    ask = GranuleSizes::ask(ask, up_to - reserved_now, most, GranuleSizes::exact(reserved_now, limited));
  ask = std::min(ask, site.room);
  Status s = home.grow(arena, site.at, GranuleSizes::split(ask, most));
  if (s.code == Code::out_of_memory && ask > site.need)
    s = home.grow(arena, site.at, GranuleSizes::split(site.need, most));
  if (!s.ok()) {
    refused(s, site.need);
    return kNoBlock;
  }
  count_reserved();
  Addr at = site.at - site.have;
  Place p = high ? home.best_fit(arena, size, by, true) : home.at(at, size, by);
  if (!p) p = home.best_fit(arena, size, by, high, 1 << 20);
  DYMEM_CHECK(bool(p), "the arena grew and the request still fits nowhere");
  return home.take(p, size, BlockKind::live);
}

BlockId Pool::Impl::try_stitch(Bytes size, StreamIndex by, bool high, Bytes allowed) {
  if (!config.alias) return kNoBlock;
  Bytes up_to = budget(size);
  Bytes room = up_to > space.reserved() ? up_to - space.reserved() : 0;
  Bytes most = most_granule(size);
  auto stitched = [&] { return stitcher.plan(size, by, room, allowed, most, near_limit()); };
  auto plan = stitched();
  auto fresh = [&] { return plan ? plan->fresh_bytes : size; };  // no plan: nothing to stitch, all of it would be new
  if (fresh() > room && wait_where_free(fresh(), by)) {
    if (BlockId id = try_fit(kMainArena, size, by, false); id != kNoBlock) return id;
    plan = stitched();
  }
  if (fresh() > room && wait_for_busiest(fresh(), size, by)) {
    if (BlockId id = try_fit(kMainArena, size, by, false); id != kNoBlock) return id;
    plan = stitched();
  }
  if (!plan) return kNoBlock;
  if (plan->fresh_bytes > room) {
    // Past the budget a stitch that finds nothing idle would put the block on new granules of its own, rounded up; grown,
    // it starts in what is free before it. That, and any stitch of more new bytes than growing takes, saves no memory.
    const Home::Site site = home.growth_site(kMainArena, size, by, Home::Start::in_slivers);
    if ((plan->all_new() || site.need < plan->fresh_bytes) && site.need <= site.room)
      return try_grow_at(site, kMainArena, size, by, high, std::max(up_to, space.reserved() + site.need));
  }
  Stitcher::Spot spot;
  Bytes before = space.reserved();
  Status s = stitcher.stitch(*plan, &spot);
  count_reserved();
  if (!s.ok()) {
    // With its granules made it was addresses that ran out, not memory: nothing to remember of the device.
    if (space.reserved() == before) refused(s, plan->fresh_bytes);
    return kNoBlock;
  }
  stats.num_stitches++;
  note_rearranged(plan->cost_us);
  BlockId id = stitcher.take(spot, size, by);
  stitcher.retire();
  return id;
}

BlockId Pool::Impl::try_move(int arena, Bytes size, StreamIndex by) {
  if (config.alias || streams.any_capturing()) return kNoBlock;
  Home::Site site = home.growth_site(arena, size, by, Home::Start::past_slivers);
  std::vector<GranuleId> idle;
  Bytes got = 0;
  for (GranuleId g = 0; g < space.granules(); g++) {
    const Granule& granule = space.granule(g);
    // Not what lies right before the site: it is part of the run already.
    if (!granule.home || !granule.idle()) continue;
    if (granule.home + granule.size > site.at - site.have && granule.home < site.at) continue;
    if (!home.idle_usable(g, by)) continue;
    idle.push_back(g);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [&](GranuleId a, GranuleId b) { return space.granule(a).size > space.granule(b).size; });
  std::vector<GranuleId> chosen;
  for (GranuleId g : idle) {
    if (got >= site.need) break;
    chosen.push_back(g);
    got += space.granule(g).size;
  }
  Bytes rest = got < site.need ? site.need - got : 0;
  if (chosen.empty() || got + rest > site.room || rest > allowance()) return kNoBlock;
  if (rest) {  // new granules behind those that will move, first: this may be refused
    Status s = home.grow(arena, site.at + got, GranuleSizes::split(rest, ~Bytes{0}));
    count_reserved();
    if (!s.ok()) {
      refused(s, rest);
      return kNoBlock;
    }
  }
  // Pages may only be unmapped when the GPU has finished with them.
  for (GranuleId g : chosen)
    if (!home.idle_finished(g)) {
      streams.synchronize_all();
      stats.num_sync_all_streams++;
      break;
    }
  Addr at = site.at;
  for (GranuleId g : chosen) {
    int from = home.arena_of(space.granule(g).home);
    Addr old = space.granule(g).home;
    home.remove(g);
    Status s = space.move_home(g, at);
    if (!s.ok()) {
      home.adopt(from, g);
      DYMEM_CHECK(space.granule(g).home == old, "a granule moved although the move failed");
      count_reserved();  // those before it changed arenas
      s.expect_ok();
    }
    home.adopt(arena, g);
    at += space.granule(g).size;
    note_rearranged(cost::map_us(space.granule(g).size) + cost::access_us(space.granule(g).size) +
                    cost::unmap_us(space.granule(g).size));
  }
  count_reserved();  // granules may have changed arenas
  Place p = home.best_fit(arena, size, by, false, 1 << 20);
  return p ? home.take(p, size, BlockKind::live) : kNoBlock;
}

BlockId Pool::Impl::try_all(int arena, Bytes size, StreamIndex by, bool high) {
  BlockId id = try_fit(arena, size, by, high);
  if (id == kNoBlock && arena != kMainArena) {
    id = try_grow(arena, size, by, high, arena == kSmallArena ? space.reserved() + allowance() : budget(size));
    // A full small or incremental arena borrows from the main one.
    if (id == kNoBlock) id = try_fit(kMainArena, size, by, high);
  }
  if (id == kNoBlock) id = try_views(size, by);
  if (id == kNoBlock) id = try_grow(kMainArena, size, by, high, budget(size));
  if (id == kNoBlock) id = try_relief(size, by, high);
  if (id == kNoBlock) id = try_stitch(size, by, high, allowance());
  if (id == kNoBlock) id = try_move(kMainArena, size, by);
  if (id == kNoBlock) id = try_grow(kMainArena, size, by, high, space.reserved() + allowance());
  if (id == kNoBlock) id = try_beside(arena, size, by, high);
  return id;
}

// Arenas keep unlike blocks apart as long as there is room; at the limit a run that is free in another one serves.
BlockId Pool::Impl::try_beside(int arena, Bytes size, StreamIndex by, bool high) {
  BlockId id = kNoBlock;
  for (int other = 0; id == kNoBlock && other < Space::kArenas; other++)
    if (other != arena && other != kMainArena) id = try_fit(other, size, by, high);
  return id;
}

void refuse_during_capture(Bytes size) {
  throw InvalidArgument("dymem: a stream is being captured and no free block of " + human_bytes(size) +
                        " fits; memory is not mapped during a capture: run the step once before capturing it");
}

void Pool::Impl::look() {
  if (streams.single() && pending.empty() && !streams.has_unfinished()) return;
  streams.close_due();
  if (streams.poll()) progressed();
}

BlockId Pool::Impl::place_slow(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock) {
  refuse_while_asleep();
  settle_copies();
  stitcher.set_now(counters.handed_out());
  note_peak();
  bool high = mobility == Mobility::temporary;
  int arena = size <= kSmallMax ? kSmallArena : mobility == Mobility::reclaimed ? kIncrementalArena : kMainArena;
  BlockId id = kNoBlock;
  for (int round = 0; streams.any_capturing(); round++) {
    if ((id = try_during_capture(arena, size, by, high)) != kNoBlock) return id;
    wait_or_fail(size, by, round, lock);
  }
  look();
  if (stitcher.waits_to_retire()) stitcher.retire();
  id = try_all(arena, size, by, high);
  if (id != kNoBlock) return id;

  stats.num_alloc_retries++;
  // What the device refused earlier may be there now.
  if (device_limit != ~Bytes{0}) {
    device_limit = ~Bytes{0};
    if ((id = try_all(arena, size, by, high)) != kNoBlock) return id;
  }
  if (!streams.single()) {
    for (std::size_t s = 0; s < streams.size(); s++) streams.make_wait(by, StreamIndex(s));
    stats.num_stream_waits++;
    if ((id = try_all(arena, size, by, high)) != kNoBlock) return id;
  }
  if (wait_for_everything() && (id = try_all(arena, size, by, high)) != kNoBlock) return id;
  for (int round = 0; round < kReclaimRounds && reclaimed(size, lock); round++) {
    if (streams.any_capturing()) break;
    look();
    if ((id = try_all(arena, size, by, high)) != kNoBlock) return id;
    // What the callback freed may belong to other streams.
    if (wait_for_everything() && (id = try_all(arena, size, by, high)) != kNoBlock) return id;
  }
  stats.num_ooms++;
  throw OutOfMemory(figures(size, by));
}

// On the host; false where there is nobody to wait for.
bool Pool::Impl::wait_for_everything() {
  if (pending.empty() && streams.single()) return false;
  streams.synchronize_all();
  stats.num_sync_all_streams++;
  progressed();
  return true;
}

bool Pool::Impl::may_map(StreamIndex by) const {
  return !streams.any_capturing() || (may_map_in_capture() && !driver.is_capturing(streams.id(by)));
}

// Nothing may be asked of streams or waited for; memory is mapped for streams beside the capture, by threads that may.
BlockId Pool::Impl::try_during_capture(int arena, Bytes size, StreamIndex by, bool high) {
  BlockId id = try_fit(arena, size, by, high);
  if (id == kNoBlock && arena != kMainArena) id = try_fit(kMainArena, size, by, high);
  if (id == kNoBlock) id = try_views(size, by);
  if (id != kNoBlock) return id;
  if (!may_map(by)) {
    if ((id = try_beside(arena, size, by, high)) != kNoBlock) return id;
    refuse_during_capture(size);
  }
  if (arena != kMainArena) id = try_grow(arena, size, by, high, space.reserved() + allowance());
  if (id == kNoBlock) id = try_grow(kMainArena, size, by, high, budget(size));
  if (id == kNoBlock) id = try_stitch(size, by, high, allowance());
  if (id == kNoBlock) id = try_grow(kMainArena, size, by, high, space.reserved() + allowance());
  return id != kNoBlock ? id : try_beside(arena, size, by, high);
}

// During a capture, where no callback is run.
void Pool::Impl::wait_or_fail(Bytes size, StreamIndex by, int round, std::unique_lock<Lock>& lock) {
  if (round < kReclaimRounds && claims_came_back(counters.occupied() + size, lock)) {
    refuse_while_asleep();
    settle_copies();
    return;
  }
  stats.num_ooms++;
  throw OutOfMemory(figures(size, by));
}

// Runs the callback without the lock, then waits for what is set aside; false when neither had anything to give.
bool Pool::Impl::reclaimed(Bytes size, std::unique_lock<Lock>& lock) {
  Bytes freed = 0;
  const Bytes aside = set_aside();  // the callback may learn that it was claimed for nothing
  if (reclaim) {
    struct Relock {
      std::unique_lock<Lock>& lock;
      ~Relock() { lock.lock(); }
    };
    ReclaimCallback current = reclaim;
    lock.unlock();
    const Relock relock{lock};
    ReclaimCallback callback;
    callback.swap(current);  // ends before the lock is taken: it may be the last of Python's, and take the GIL for that
    freed = callback(size);
  }
  if (freed == 0 && set_aside() >= aside && !claims_came_back(counters.occupied() + size, lock)) return false;
  refuse_while_asleep();  // another thread, or the callback, may have put the pool to sleep
  settle_copies();
  device_limit = ~Bytes{0};
  return true;
}

BlockId Pool::Impl::place_guarded(Bytes size, std::unique_lock<Lock>& lock) {
  if (streams.any_capturing()) refuse_during_capture(size);
  int round = 0;
  do {
    Addr at = 0;
    Bytes mapped = round_up(size, kGranuleUnit);
    Status s{Code::out_of_memory, "limit", 0};
    if (!config.limit || debug->reserved() + mapped <= own_limit()) s = debug->take(size, &at);
    if (s.code == Code::out_of_memory && !pending.empty()) {
      streams.synchronize_all();
      complete_pending();
      if (!config.limit || debug->reserved() + mapped <= own_limit()) s = debug->take(size, &at);
    }
    if (s.ok()) {
      BlockId id = home.blocks().make();
      Block& b = home.block(id);
      b.at = at;
      b.size = size;
      b.kind = BlockKind::live;
      if (recorder) recorder->segment(TraceKind::segment_alloc, at + size - mapped, mapped, false);
      count_reserved();
      return id;
    }
    if (s.code != Code::out_of_memory) s.expect_ok();
    stats.num_alloc_retries++;
  } while (round++ < kReclaimRounds && reclaimed(size, lock));
  stats.num_ooms++;
  throw OutOfMemory(figures(size, 0));
}

OutOfMemoryFigures Pool::Impl::figures(Bytes requested, StreamIndex by) const {
  OutOfMemoryFigures f;
  f.requested = requested;
  f.live = counters.live();
  f.pending = counters.pending();
  f.reserved = reserved();
  f.limit = config.limit;
  f.private_pools = joint.reserved();
  // Stitching makes one piece of all idle granules, so that is the largest block to be had.
  Bytes idle = 0;
  if (config.alias && !debug)
    for (GranuleId g = 0; g < space.granules(); g++)
      if (home.idle_usable(g, by)) idle += space.granule(g).size;
  f.largest_free = idle;
  for (int a = 0; a < Space::kArenas; a++) f.largest_free = std::max(f.largest_free, home.largest(a, by));
  f.joins = config.alias && !space.contiguous();
  f.apart = bool(debug);
  f.kept = keeps_granules;
  f.shared = exports.bytes();
  DeviceMemory m = driver.memory();
  f.device_free = m.free;
  f.device_total = m.total;
  f.device = driver.device();
  Bytes occupied = counters.occupied_peak();
  f.overhead = occupied ? double(reserved_peak) / double(occupied) - 1 : 0;
  return f;
}

Bytes Pool::Impl::trim() {
  if (streams.any_capturing()) return 0;
  Bytes before = reserved();
  settle_copies();
  streams.synchronize_all();
  progressed();
  space.sweep().expect_ok();
  if (space.contiguous()) {
    give_back_idle_slabs();
  } else if (!debug) {  // debug blocks go when freed
    stitcher.drop_idle();
    for (GranuleId g = 0; g < space.granules(); g++) {
      if (!home.idle_finished(g)) continue;
      int arena = home.arena_of(space.granule(g).home);
      home.remove(g);
      Status s = space.give_back(g);
      if (!s.ok()) {
        home.adopt(arena, g);  // still there, at its home
        count_reserved();
        s.expect_ok();
      }
    }
    device_limit = ~Bytes{0};
    count_reserved();
  }
  return before - reserved();
}

}  // namespace dymem
