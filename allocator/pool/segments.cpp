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
      PoolSegment& segment = out.emplace_back();
      segment.address = first.at;
      segment.small = first.arena == kSmallArena;
      for (BlockId b = id; b != kNoBlock && at_home(blocks[b]); b = blocks[b].next) {
        const Block& block = blocks[b];
        if (block.is_free() || block.kind == BlockKind::filler) add_free(&segment, block.at, block.size);
        else add(&segment, describe(p, block));
      }
    }
  }
  if (meanwhile) meanwhile();
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.address < b.address; });
  return out;
}

}  // namespace dymem
