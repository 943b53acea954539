// Recounts everything from the blocks and names the invariant that does not hold. Cost: O(blocks + granules).
#include <algorithm>
#include <string>
#include <unordered_set>

#include "pool/impl.hpp"

namespace dymem {

static std::string number(std::uint64_t n) { return std::to_string(n); }

void Home::audit(std::vector<std::string>* broken) const {
  auto say = [&](const std::string& s) { broken->push_back(s); };
  std::size_t heads[Space::kArenas] = {};
  const std::unordered_set<BlockId> listed(mixed_.begin(), mixed_.end());
  for (GranuleId g = 0; g < space_.granules(); g++) {
    const Granule& granule = space_.granule(g);
    if (!granule.home) continue;
    Addr end = granule.home + granule.size, x = granule.home;
    Bytes used = 0;
    BlockId b = granule.first;
    if (b == kNoBlock || blocks_[b].at > x || blocks_[b].at + blocks_[b].size <= x) {
      say("H1: granule " + number(g) + " names a block that does not cover its start");
      continue;
    }
    while (x < end) {
      if (b == kNoBlock || blocks_[b].at > x) {
        say("B1: home address " + number(x) + " lies in no block");
        break;
      }
      const Block& block = blocks_[b];
      Addr stop = std::min(end, block.at + block.size);
      if (!block.is_free()) used += stop - x;
      if (block.next != kNoBlock && (blocks_[block.next].prev != b || blocks_[block.next].at != block.at + block.size))
        say("B1: block " + number(b) + " and its next do not touch");
      if (block.at >= granule.home && block.is_free() && (block.prev == kNoBlock || !blocks_[block.prev].is_free())) {
        heads[block.arena]++;
        Bytes run = 0;
        BlockId tail = b;
        for (BlockId n = b; n != kNoBlock && blocks_[n].is_free(); n = blocks_[n].next) {
          run += blocks_[n].size;
          tail = n;
        }
        if (block.run_size != run || block.run_end != tail || blocks_[tail].run_end != b)
          say("B2: run at " + number(block.at) + " is " + number(run) + " bytes, recorded as " +
              number(block.run_size));
        if (tail != b && !listed.count(b)) say("B4: settle() does not know the run at " + number(block.at));
      }
      x = stop;
      b = block.next;
    }
    if (used != granule.used)
      say("H1: granule " + number(g) + " has " + number(used) + " used bytes, recorded as " + number(granule.used));
  }
  for (int a = 0; a < Space::kArenas; a++) {
    if (heads[a] != arenas_[a].index.size())
      say("B2: arena " + number(std::uint64_t(a)) + " has " + number(heads[a]) + " runs, " +
          number(arenas_[a].index.size()) + " are indexed");
    arenas_[a].index.each([&](const FreeIndex::Entry& e) {
      const Block& h = blocks_[e.head];
      if (!h.is_free() || h.at != e.at || h.run_size != e.size) say("B2: the index names a run that is not there");
    });
  }
}

void Home::audit_gap(const Slab& slab, std::vector<std::string>* broken) const {
  auto say = [&](const char* what) { broken->push_back(std::string("S3: ") + what); };
  if (slab.mark != slab.size) say("an open slab has a mark that can rise");
  if (slab.low_end < slab.base || slab.high_start < slab.low_end || slab.high_start > slab.end())
    return say("a gap leaves its slab");
  if (slab.squeeze > slab.gap() || slab.spare < slab.low_end || slab.spare + slab.squeeze > slab.high_start)
    say("spare bytes lie outside the gap");
  if (slab.gap()) {
    const BlockId head = covering(slab.low_end);
    const Block& h = blocks_[head];
    if (!h.is_free() || h.at != slab.low_end || h.run_size != slab.gap() || run_head(head) != head)
      say("the gap is no whole run");
    return;
  }
  for (Addr at : {slab.low_end - 1, slab.high_start})
    if (at >= slab.base && at < slab.end() && blocks_[covering(at)].is_free()) say("free bytes touch an empty gap");
}

void Stitcher::audit(std::vector<std::string>* broken) const {
  std::vector<std::uint32_t> held(space_.regions());
  const BlockTable& blocks = home_.blocks();
  std::vector<bool> owned(blocks.capacity());
  for (BlockId id = 0; id < blocks.capacity(); id++) {
    const Block& b = blocks[id];
    if (b.kind != BlockKind::stitched && b.kind != BlockKind::stitched_pending) continue;
    held[b.region]++;
    const Region& r = space_.region(b.region);
    Addr at = b.at;
    for (BlockId p = b.next_piece; p != kNoBlock; p = blocks[p].next_piece) {
      const Block& piece = blocks[p];
      owned[p] = true;
      if (piece.kind != BlockKind::lent || piece.owner != id) broken->push_back("B4: a piece is not lent to its block");
      std::size_t i = std::size_t(std::upper_bound(r.at.begin(), r.at.end(), at) - r.at.begin()) - 1;
      if (r.granules[i] == kNone || space_.granule(r.granules[i]).home + (at - r.at[i]) != piece.at)
        broken->push_back("B4: a piece is not what its region shows there");
      at += piece.size;
    }
    if (at != b.at + b.size) broken->push_back("B4: the pieces of a stitched block do not sum to its size");
  }
  for (BlockId id = 0; id < blocks.capacity(); id++)
    if (blocks[id].kind == BlockKind::lent && !owned[id]) broken->push_back("B4: a lent block has no owner");
  for (RegionId id : by_address_)
    if (usage_[id].held != held[id]) broken->push_back("T1: a region counts its blocks wrongly");
}

std::vector<std::string> Pool::audit() const {
  std::lock_guard lock(impl_->mutex);
  const Impl& p = *impl_;
  std::vector<std::string> broken;
  PoolStats stats = p.stats;
  p.counters.fill(&stats);
  const BlockTable& blocks = p.home.blocks();
  Bytes live = 0, pending = 0, requested = 0;
  std::int64_t live_count = 0, pending_count = 0;
  for (BlockId id = 0; id < blocks.capacity(); id++) {
    const Block& b = blocks[id];
    if (b.kind == BlockKind::live || b.kind == BlockKind::stitched) {
      live += b.size;
      requested += b.requested();
      live_count++;
      if (p.held.find(b.at) != id) broken.push_back("a held block is not found by its address");
    } else if (b.kind == BlockKind::pending || b.kind == BlockKind::stitched_pending) {
      pending += b.size;
      pending_count++;
    }
  }
  auto same = [&](const char* what, std::int64_t counted, std::int64_t recorded) {
    if (counted != recorded)
      broken.push_back(std::string(what) + ": counted " + std::to_string(counted) + ", recorded " +
                       std::to_string(recorded));
  };
  same("live bytes", std::int64_t(live), stats.allocated_bytes[kAll].current);
  same("live blocks", live_count, stats.allocation[kAll].current);
  same("requested bytes", std::int64_t(requested), stats.requested_bytes[kAll].current);
  same("pending bytes", std::int64_t(pending), stats.pending_bytes.current);
  same("pending blocks", pending_count, std::int64_t(p.pending.size()));
  same("occupied bytes", std::int64_t(live + pending), stats.active_bytes[kAll].current);
  same("blocks in the address map", live_count, std::int64_t(p.held.size()));
  if (!p.debug) {
    Bytes reserved = 0, used = 0;
    for (GranuleId g = 0; g < p.space.granules(); g++)
      if (p.space.granule(g).home) {
        if (!p.asleep.dormitory.emptied(g)) reserved += p.space.granule(g).size;
        used += p.space.granule(g).used;
        if (p.asleep.dormitory.holds(g) && p.space.granule(g).used != p.space.granule(g).size)
          broken.push_back("Y1: a sleeping granule has free bytes that are not hidden");
      }
    Bytes fillers = 0;
    for (BlockId id : p.asleep.fillers) {
      fillers += blocks[id].size;
      if (blocks[id].kind != BlockKind::filler || !p.asleep.dormitory.holds(p.space.granule_at(blocks[id].at)))
        broken.push_back("Y1: a filler lies in no sleeping granule");
    }
    for (std::size_t i = 0; i < p.space.slabs().size(); i++) reserved -= p.space.slabs()[i].squeeze;
    same("bytes of fillers (Y1)", std::int64_t(fillers), std::int64_t(p.asleep.filler_bytes));
    same("reserved bytes (P1)", std::int64_t(reserved), std::int64_t(p.space.reserved()));
    same("reserved bytes in the statistics", std::int64_t(reserved), stats.reserved_bytes[kAll].current);
    const Bytes small = p.space.arena_bytes(kSmallArena);
    same("small reserved bytes in the statistics", std::int64_t(small), stats.reserved_bytes[kSmall].current);
    same("large reserved bytes in the statistics", std::int64_t(reserved - small), stats.reserved_bytes[kLarge].current);
    same("small segments in the statistics", std::int64_t(p.space.arena_granules(kSmallArena)),
         stats.segment[kSmall].current);
    same("used bytes of granules", std::int64_t(used), std::int64_t(live + pending + fillers));

    Bytes marks = 0, held = 0;
    for (std::size_t i = 0; i < p.space.slabs().size(); i++) {
      const Slab& slab = p.space.slabs()[i];
      marks += slab.needed();
      held += slab.size;
      if (slab.mark > slab.size) broken.push_back("S1: a slab's mark lies past its end");
      if (slab.open) p.home.audit_gap(slab, &broken);
      for (Addr edge : {slab.base, slab.end()}) {  // no block begins before the slab or ends past its mark
        BlockId id = slab.mark ? p.home.covering(edge == slab.base ? edge : edge - 1) : kNoBlock;
        if (id == kNoBlock) continue;
        const Block& b = p.home.block(id);
        if (b.at < slab.base || b.at + b.size > slab.end() || (edge == slab.base ? b.prev : b.next) != kNoBlock)
          broken.push_back("S2: a block or a link leaves its slab");
      }
    }
    if (p.space.contiguous()) same("bytes below marks (S1)", std::int64_t(marks), std::int64_t(reserved));
    same("bytes of slabs", std::int64_t(held), stats.slab_bytes.current);

    p.home.audit(&broken);
    p.stitcher.audit(&broken);
  }
  return broken;
}

BlockInfo describe(const Pool::Impl& pool, const Block& b) {
  BlockInfo i;
  i.address = b.at;
  i.size = b.size;
  i.requested = b.is_free() ? 0 : b.requested();
  i.stream = pool.streams.size() ? pool.streams.id(b.last_use.stream) : 0;
  i.mobility = Mobility(b.mobility);
  i.stitched = b.kind == BlockKind::stitched || b.kind == BlockKind::stitched_pending;
  bool live = b.kind == BlockKind::live || b.kind == BlockKind::stitched;
  if (!b.is_free()) i.number = b.trace_number - 1;  // 0 - 1 = kUnnumbered
  i.state = b.is_free() ? BlockState::free : live ? BlockState::live : BlockState::pending;
  return i;
}

std::vector<BlockInfo> Pool::blocks() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<BlockInfo> out;
  const BlockTable& blocks = impl_->home.blocks();
  for (BlockId id = 0; id < blocks.capacity(); id++)
    if (BlockKind kind = blocks[id].kind;
        kind != BlockKind::unused && kind != BlockKind::lent && kind != BlockKind::filler)
      out.push_back(describe(*impl_, blocks[id]));
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.address < b.address; });
  return out;
}

}  // namespace dymem
