// Sleeping and waking of a pool (sleep.hpp says what they promise; W1..W5). See asleep.hpp for the state.
#include "pool/sleep.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_set>

#include "pool/impl.hpp"

namespace dymem {
namespace {

// A gap of up to so many bytes between contents is copied along: cheaper than one more copy (a copy of a few bytes takes
// about as long as this many bytes at full speed).
constexpr Bytes kGapCopied = 256 * kKiB;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string sentence(const Status& status) {
  return std::string(status.call) + " failed with code " + std::to_string(status.native);
}

}  // namespace

// What is held at a home block: the block a caller knows, or none (free, filler, freed while asleep).
const Block* Pool::Impl::holder(BlockId id) const {
  const Block& b = home.block(id);
  const Block& owner = b.kind == BlockKind::lent ? home.block(b.owner) : b;
  if (owner.kind == BlockKind::live || owner.kind == BlockKind::stitched) return &owner;
  return nullptr;
}

// f(home block, where its bytes in the granule begin, how many) by address, until f says false.
template <class F>
void Pool::Impl::each_part(GranuleId id, F f) const {
  const Addr start = space.granule(id).home, end = start + space.granule(id).size;
  for (BlockId b = space.granule(id).first; b != kNoBlock && home.block(b).at < end;) {
    const Block& block = home.block(b);
    const BlockId next = block.next;
    const Addr from = std::max(start, block.at), to = std::min(end, block.at + block.size);
    if (to > from && !f(b, from, to - from)) return;
    b = next;
  }
}

std::vector<GranuleId> Pool::Impl::falling_asleep(const SleepRequest& request, SleepReport* report) const {
  std::vector<GranuleId> chosen;
  for (GranuleId g = 0; g < space.granules(); g++) {
    if (!space.granule(g).home || asleep.dormitory.holds(g)) continue;
    if (request.everything) {
      chosen.push_back(g);
      continue;
    }
    bool all = true;
    Bytes wanted = 0;
    each_part(g, [&](BlockId id, Addr, Bytes n) {
      if (home.block(id).is_free()) return true;
      const Block* block = holder(id);
      if (block && block->tag != kUntagged && request.tags[block->tag]) wanted += n;
      else all = false;
      return true;
    });
    if (wanted && all) chosen.push_back(g);
    else report->stayed += wanted;
  }
  std::sort(chosen.begin(), chosen.end(),
            [&](GranuleId a, GranuleId b) { return space.granule(a).home < space.granule(b).home; });
  return chosen;
}

std::vector<Asleep::Content> Pool::Impl::kept_contents(const std::vector<GranuleId>& granules,
                                                       const SleepRequest& request, SleepReport* report) const {
  std::vector<Asleep::Content> kept;
  for (GranuleId g : granules)
    each_part(g, [&](BlockId id, Addr at, Bytes n) {
      const Block* block = holder(id);
      if (!block) return true;  // freed while asleep, across a granule that was awake
      const Tag tag = block->tag;
      const bool keep = request.keep_everything || (tag == kUntagged ? !request.drop_untagged : request.kept[tag]);
      if (keep) kept.push_back({g, at, n, {}}), report->copied += n;
      else report->dropped += n;
      return true;
    });
  return kept;
}

// Bytes between two contents that are copied along, since both lie in one granule; 0 if they are copied apart.
static Bytes gap_copied(const Asleep::Content& a, const Asleep::Content& b) {
  const Bytes gap = b.at - (a.at + a.size);
  return a.granule == b.granule && gap <= kGapCopied ? gap : 0;
}

// Gives every content its place on the host: adjacent there as on the device, as far as a slab reaches.
Status Pool::Impl::place_contents(std::vector<Asleep::Content>* contents) {
  Bytes total = 0;
  for (std::size_t i = 0; i < contents->size(); i++)
    total += (*contents)[i].size + (i ? gap_copied((*contents)[i - 1], (*contents)[i]) : 0);
  if (const Status status = asleep.stage.grow(total); !status.ok()) return status;
  std::vector<Asleep::Content> placed;
  placed.reserve(contents->size() + 64);
  for (std::size_t i = 0; i < contents->size(); i++) {
    const Asleep::Content& content = (*contents)[i];
    const Bytes gap = i ? gap_copied((*contents)[i - 1], content) : 0;
    if (gap && asleep.stage.room_here() > gap) {  // it is copied with the content before it
      HostStage::Piece filler = asleep.stage.take(gap);
      if (placed.back().host.slab == filler.slab && placed.back().host.at + placed.back().host.size == filler.at)
        placed.back().host.size += gap;
      else asleep.stage.give(filler);
    }
    for (Bytes done = 0; done < content.size;) {
      const HostStage::Piece piece = asleep.stage.take(content.size - done);
      placed.push_back({content.granule, content.at + done, piece.size, piece});
      done += piece.size;
    }
  }
  *contents = std::move(placed);
  return {};
}

void Pool::Impl::give_contents(const std::vector<Asleep::Content>& contents) {
  for (const auto& content : contents) asleep.stage.give(content.host);
}

// Enqueues the copies, merged where both sides are adjacent, and waits for them; also when one could not be enqueued.
// If waiting fails (twice), they may still be under way: asleep.copying.
Status Pool::Impl::copy_contents(const std::vector<Asleep::Content>& contents, bool to_host) {
  Status status;
  for (std::size_t i = 0; status.ok() && i < contents.size();) {
    const Asleep::Content& first = contents[i];
    Bytes n = first.host.size;
    std::size_t j = i + 1;
    while (j < contents.size() && contents[j].host.slab == first.host.slab && contents[j].at == first.at + n &&
           contents[j].host.at == first.host.at + n)
      n += contents[j++].host.size;
    status = to_host ? driver.copy_to_host(first.host.at, first.at, n, 0)
                     : driver.copy_to_device(first.at, first.host.at, n, 0);
    i = j;
  }
  Status waited = driver.synchronize();
  if (!waited.ok() && status.ok()) status = waited;
  if (!waited.ok()) waited = driver.synchronize();
  asleep.copying = !waited.ok();
  return status;
}

void Pool::Impl::settle_copies() {
  if (!asleep.copying) return;
  driver.synchronize().expect_ok();
  asleep.copying = false;
}

// Makes every free byte of the granule a filler's (Y1).
void Pool::Impl::hide_free(GranuleId id) {
  const Granule& g = space.granule(id);
  const Addr end = g.home + g.size;
  for (Addr x = g.home; x < end;) {
    const BlockId b = home.covering(x);
    if (!home.block(b).is_free()) {
      x = home.block(b).at + home.block(b).size;
      continue;
    }
    const BlockId head = home.run_head(b);
    const Addr stop = std::min(end, home.block(head).at + home.block(head).run_size);
    asleep.fillers.push_back(home.take({head, x}, stop - x, BlockKind::filler));
    asleep.filler_bytes += stop - x;
    x = stop;
  }
}

void Pool::Impl::refuse_sleep() const {
  if (debug)
    throw SleepError("dymem: sleep is not served in debug mode, where every block is mapped on its own; use debug:off");
  if (space.contiguous())
    throw SleepError(
        "dymem: sleep needs backing:vmm; a contiguous slab cannot give its memory back and keep its addresses");
  if (streams.any_capturing() || driver.is_capturing(0))
    throw SleepError("dymem: a stream is being captured; call sleep and wake before or after the capture");
}

void Pool::Impl::refuse_pinned(const std::vector<GranuleId>& granules) const {
  for (GranuleId g : granules)
    if (space.granule(g).pins)
      throw SleepError("dymem: a pinned block cannot sleep, since others use its physical memory; unpin it, or "
                       "free what was shared with another process, first");
}

SleepReport Pool::Impl::sleep(const SleepRequest& request) {
  const auto began = std::chrono::steady_clock::now();
  SleepReport report;
  refuse_sleep();
  if (asleep.everything) return report;
  driver.synchronize().expect_ok();
  asleep.copying = false;
  streams.synchronize_all();
  progressed();
  if (request.everything) trim();
  const std::vector<GranuleId> granules = falling_asleep(request, &report);
  refuse_pinned(granules);
  // 1. Contents to the host: until here nothing has changed.
  std::vector<Asleep::Content> contents = kept_contents(granules, request, &report);
  const auto pinning = std::chrono::steady_clock::now();
  if (const Status status = place_contents(&contents); !status.ok())
    throw SleepError("dymem: sleep needs " + human_bytes(report.copied) + " of pinned host memory and there is less (" +
                     sentence(status) + "); nothing was changed: drop what need not be kept, or free host memory");
  report.host_seconds = seconds_since(pinning);
  const auto copying = std::chrono::steady_clock::now();
  if (const Status status = copy_contents(contents, true); !status.ok()) {
    give_contents(contents);
    throw DriverError(status.call, status.native, "nothing was changed and the pool is awake");
  }
  report.copy_seconds = seconds_since(copying);
  // 2. The memory to the device.
  bool stuck = false;
  const Status status = asleep.dormitory.put(granules, views_in_use(), &stuck);
  if (!status.ok()) give_contents(contents);  // nothing was given back: the contents are where they were
  if (!status.ok() && !stuck) {
    count_reserved();
    throw DriverError(status.call, status.native, "the pool is awake and whole");
  }
  // 3. Bookkeeping.
  for (GranuleId g : granules) hide_free(g);
  if (status.ok()) {
    asleep.contents.insert(asleep.contents.end(), contents.begin(), contents.end());
    std::sort(asleep.contents.begin(), asleep.contents.end(), [](auto& a, auto& b) { return a.at < b.at; });
    for (GranuleId g : granules) report.memory += space.granule(g).size;
  }
  asleep.everything = request.everything;
  asleep.last = granules;
  report.changed = request.everything || !granules.empty();
  slow_free = debug || !asleep.dormitory.empty();
  device_limit = ~Bytes{0};
  count_reserved();
  if (stuck)
    throw DriverError(status.call, status.native,
                      "it failed in the middle of sleep, and memory that was unmapped could not be mapped again: no byte "
                      "is lost, call wake once the driver works");
  report.seconds = seconds_since(began);
  return report;
}

// Views in regions that a held (or pending) stitched block lies in.
Dormitory::NeedsView Pool::Impl::views_in_use() const {
  auto used = std::make_shared<std::unordered_set<std::uint64_t>>();
  const BlockTable& blocks = home.blocks();
  for (BlockId id = 0; id < blocks.capacity(); id++) {
    const Block& b = blocks[id];
    if (b.kind != BlockKind::stitched && b.kind != BlockKind::stitched_pending) continue;
    const Region& region = space.region(b.region);
    for (std::size_t i = 0; i < region.granules.size(); i++)
      if (region.granules[i] != kNone && region.at[i] < b.at + b.size &&
          b.at < region.at[i] + space.granule(region.granules[i]).size)
        used->insert(std::uint64_t{b.region} << 32 | i);
  }
  return [used](RegionId region, std::size_t view) { return used->count(std::uint64_t{region} << 32 | view) != 0; };
}

// The home granules of a block: f(granule) until it says false.
template <class F>
bool Pool::Impl::all_granules(const Block& b, F f) const {
  const auto range = [&](Addr at, Addr end) {
    while (at < end) {
      const GranuleId g = space.granule_at(at);
      if (!f(g)) return false;
      at = space.granule(g).home + space.granule(g).size;
    }
    return true;
  };
  if (b.kind != BlockKind::stitched && b.kind != BlockKind::stitched_pending) return range(b.at, b.at + b.size);
  for (BlockId piece = b.next_piece; piece != kNoBlock; piece = home.block(piece).next_piece)
    if (!range(home.block(piece).at, home.block(piece).at + home.block(piece).size)) return false;
  return true;
}

bool Pool::Impl::touches_sleep(const Block& b) const {
  return !all_granules(b, [&](GranuleId g) { return !asleep.dormitory.holds(g); });
}

// Which sleeping granules wake, and which of them nothing needs any more: all that was held in them was freed.
void Pool::Impl::waking(const WakeRequest& request, std::vector<GranuleId>* needed, std::vector<GranuleId>* empty) const {
  std::vector<bool> wakes(space.granules()), held(space.granules());
  if (request.undo)
    for (GranuleId g : asleep.last)
      if (g < space.granules() && asleep.dormitory.holds(g)) wakes[g] = true;
  for (GranuleId g = 0; g < space.granules(); g++) {
    if (!asleep.dormitory.holds(g)) continue;
    if (request.everything && !request.undo) wakes[g] = true;
    each_part(g, [&](BlockId id, Addr, Bytes) {
      const Block* block = holder(id);
      if (!block) return true;
      held[g] = true;
      if (!request.undo && (block->tag == kUntagged || request.tags[block->tag])) wakes[g] = true;
      return !wakes[g];
    });
    if (!held[g] || !asleep.dormitory.emptied(g)) wakes[g] = true;  // costs nothing, or only mapping
  }
  // What was freed across a granule that goes on sleeping cannot be released yet: then its granules are needed.
  for (const Pending& p : pending) {
    if (!p.asleep) continue;
    const Block& b = home.block(p.id);
    const bool whole = all_granules(b, [&](GranuleId g) { return !asleep.dormitory.holds(g) || wakes[g]; });
    if (!whole)
      all_granules(b, [&](GranuleId g) {
        if (asleep.dormitory.holds(g) && !held[g] && asleep.dormitory.emptied(g)) wakes[g] = false;
        return true;
      });
  }
  for (GranuleId g = 0; g < space.granules(); g++)
    if (wakes[g]) (held[g] || !asleep.dormitory.emptied(g) || needs_memory(g, wakes) ? needed : empty)->push_back(g);
}

// Nothing is held in the granule, yet a block that was freed in it cannot be released in this wake.
bool Pool::Impl::needs_memory(GranuleId id, const std::vector<bool>& wakes) const {
  bool needs = false;
  each_part(id, [&](BlockId b, Addr, Bytes) {
    const Block& block = home.block(b);
    if (block.kind == BlockKind::filler) return true;
    const Block& owner = block.kind == BlockKind::lent ? home.block(block.owner) : block;
    needs = !all_granules(owner, [&](GranuleId g) { return !asleep.dormitory.holds(g) || wakes[g]; });
    return !needs;
  });
  return needs;
}

SleepReport Pool::Impl::wake(const WakeRequest& request, std::unique_lock<Lock>& lock) {
  const auto began = std::chrono::steady_clock::now();
  SleepReport report;
  std::vector<GranuleId> needed, empty;
  Bytes wanted = 0;
  for (int round = 0;; round++) {  // after each wait everything anew: others may have woken much of it
    if (asleep.dormitory.empty() && !asleep.everything) return report;
    refuse_sleep();
    settle_copies();
    needed.clear();
    empty.clear();
    waking(request, &needed, &empty);
    wanted = 0;
    for (GranuleId g : needed) wanted += asleep.dormitory.emptied(g) ? space.granule(g).size : 0;
    const auto over_limit = [&] { return config.limit && wanted && space.reserved() + wanted > own_limit(); };
    if (over_limit()) trim();
    if (!over_limit()) break;
    if (round < kReclaimRounds && claims_came_back(space.reserved() + wanted, lock)) continue;
    throw OutOfMemory(figures(wanted, 0), "dymem: waking takes " + human_bytes(wanted) + " and the pool's limit of " +
                                              human_bytes(config.limit) + " leaves less; it stays asleep and whole: "
                                              "raise the limit or free other memory, and call wake again");
  }
  // 1. Memory, views, contents: all or nothing.
  std::vector<bool> wakes(space.granules());
  for (GranuleId g : needed) wakes[g] = true;
  std::vector<Asleep::Content> contents;
  for (const Asleep::Content& content : asleep.contents)
    if (wakes[content.granule] && holder(home.covering(content.at))) contents.push_back(content);
  const auto restore = [&] {
    const auto copying = std::chrono::steady_clock::now();
    const Status status = copy_contents(contents, false);
    report.copy_seconds = seconds_since(copying);
    return Dormitory::Restored{status, asleep.copying};
  };
  Status status = asleep.dormitory.wake(needed, restore);
  const auto short_of_memory = [&] { return status.code == Code::out_of_memory && !asleep.copying; };
  if (short_of_memory() && trim()) status = asleep.dormitory.wake(needed, restore);
  count_reserved();  // memory that copies may still be using was not given back
  if (short_of_memory())
    throw OutOfMemory(figures(wanted, 0), "dymem: waking takes " + human_bytes(wanted) + " and GPU " +
                                              std::to_string(driver.device()) + " has " +
                                              human_bytes(driver.memory().free) + " free; the pool stays asleep and "
                                              "whole: free memory there (another process?), and call wake again");
  if (!status.ok()) throw DriverError(status.call, status.native, "the pool stays asleep and whole: call wake again");
  // 2. Bookkeeping: from here on nothing fails.
  for (const auto& content : contents) report.copied += content.size;
  report.memory = wanted;
  for (GranuleId g : empty) asleep.dormitory.give_up_views(g), wakes[g] = true;
  const auto still_asleep = [&](GranuleId g) { return asleep.dormitory.holds(g) && !wakes[g]; };
  std::erase_if(asleep.fillers, [&](BlockId id) {
    if (still_asleep(space.granule_at(home.block(id).at))) return false;
    asleep.filler_bytes -= home.block(id).size;
    home.release(id, LastUse{});
    return true;
  });
  for (Pending& p : pending)
    if (p.asleep && all_granules(home.block(p.id), [&](GranuleId g) { return !still_asleep(g); })) {
      p.asleep = false;
      p.own.epoch = 0;  // nothing can have used it since: it was asleep
      p.waits.clear();
    }
  complete_pending();
  for (GranuleId g : empty) {
    home.remove(g);
    asleep.dormitory.forget(g);
  }
  std::erase_if(asleep.contents, [&](const Asleep::Content& content) {
    if (!wakes[content.granule]) return false;
    asleep.stage.give(content.host);
    return true;
  });
  asleep.everything = false;
  slow_free = debug || !asleep.dormitory.empty();
  device_limit = ~Bytes{0};
  count_reserved();
  report.seconds = seconds_since(began);
  return report;
}

void Pool::Impl::refuse_while_asleep() const {
  if (asleep.everything)
    throw SleepError("dymem: the pool is asleep and hands out nothing; call dymem.wake() first");
}

// ---------------------------------------------------------------------------------------------------- the facade

SleepReport Pool::sleep(const SleepRequest& request) {
  std::lock_guard lock(impl_->mutex);
  return impl_->sleep(request);
}

void Pool::refuse_sleep(const SleepRequest& request) const {
  std::lock_guard lock(impl_->mutex);
  impl_->refuse_sleep();
  SleepReport report;
  if (!impl_->asleep.everything) impl_->refuse_pinned(impl_->falling_asleep(request, &report));
}

SleepReport Pool::wake(const WakeRequest& request) {
  std::unique_lock lock(impl_->mutex);
  return impl_->wake(request, lock);
}

Bytes Pool::free_host_slabs() {
  std::lock_guard lock(impl_->mutex);
  impl_->settle_copies();
  return impl_->asleep.stage.free_idle();
}

}  // namespace dymem
