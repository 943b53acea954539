// Where every byte of the pool is to be seen, for snapshots: home addresses that nothing is lent from, and stitched
// blocks. Cost: O(blocks), under the pool's lock.
#include <algorithm>

#include "pool/impl.hpp"

namespace dymem {
namespace {

bool stitched(const Block& b) { return b.kind == BlockKind::stitched || b.kind == BlockKind::stitched_pending; }

// Blocks that lie at their own addresses and are somebody's or free.
bool at_home(const Block& b) {
  return b.kind == BlockKind::free || b.kind == BlockKind::live || b.kind == BlockKind::pending ||
         b.kind == BlockKind::filler;
}

const Slab* open_slab_of(const Slabs& slabs, Addr at) {
  const std::size_t i = slabs.of(at);
  return i != Slabs::kNoSlab && slabs[i].open ? &slabs[i] : nullptr;
}

void add_free(PoolSegment* segment, Addr at, Bytes size) {
  if (segment->blocks.empty() || segment->blocks.back().state != BlockState::free) {
    segment->blocks.emplace_back().address = at;
  }
  segment->blocks.back().size += size;
  segment->size += size;
}

void add(PoolSegment* segment, const BlockInfo& block) {
  segment->blocks.push_back(block);
  segment->size += block.size;
}

}  // namespace

std::vector<PoolSegment> Pool::segments(const std::function<void()>& meanwhile) const {
  std::lock_guard lock(impl_->mutex);
  const Impl& p = *impl_;
  const BlockTable& blocks = p.home.blocks();
  std::vector<PoolSegment> out;
  for (BlockId id = 0; id < blocks.capacity(); id++) {
    const Block& first = blocks[id];
    if (p.debug) {
      if (first.kind == BlockKind::unused) continue;
      const Bytes mapped = round_up(first.size, kGranuleUnit);
      PoolSegment& segment = out.emplace_back();
      segment.address = first.at + first.size - mapped;
      if (mapped > first.size) add_free(&segment, segment.address, mapped - first.size);
      add(&segment, describe(p, first));
    } else if (stitched(first)) {
      PoolSegment& segment = out.emplace_back();
      segment.address = first.at;
      segment.stitched = true;
      add(&segment, describe(p, first));
    } else if (at_home(first) && (first.prev == kNoBlock || !at_home(blocks[first.prev]))) {
      const Slab* open = open_slab_of(p.space.slabs(), first.at);
      const Addr spare = open ? open->spare : ~Addr{0}, spare_end = open ? spare + open->squeeze : spare;
      auto begin = [&](Addr at) {
        PoolSegment& segment = out.emplace_back();
        segment.address = at;
        segment.small = first.arena == kSmallArena;
      };
      bool fresh = true;
      auto part = [&](Addr from, Addr to, const BlockInfo* held) {  // nothing of it is spare
        if (from >= to) return;
        if (fresh) begin(from);
        fresh = false;
        if (held) add(&out.back(), *held);
        else add_free(&out.back(), from, to - from);
      };
      for (BlockId b = id; b != kNoBlock && at_home(blocks[b]); b = blocks[b].next) {
        const Block& block = blocks[b];
        const Addr end = block.at + block.size;
        if (!block.is_free() && block.kind != BlockKind::filler) {
          const BlockInfo held = describe(p, block);
          part(block.at, end, &held);
          continue;
        }
        part(block.at, std::min(end, spare), nullptr);
        if (spare < spare_end && block.at < spare_end && end > spare) fresh = true;  // what follows is not adjacent
        part(std::max(block.at, spare_end), open ? end : 0, nullptr);
      }
    }
  }
  if (meanwhile) meanwhile();
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.address < b.address; });
  return out;
}

}  // namespace dymem
