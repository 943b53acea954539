// Home on the contiguous backing: a slab's mark rises, and a slab that is wholly idle goes. See home.hpp.
#include "pool/home.hpp"

#include <algorithm>

namespace dymem {

constexpr int kRunsTried = 64;

Home::Rise Home::rise_for(Bytes size, StreamIndex by) const {
  Rise best;
  for (std::size_t i = 0; i < space_.slabs().size(); i++) {
    const Slab& slab = space_.slabs()[i];
    Bytes have = 0;
    for (BlockId b = slab.mark ? covering(slab.end() - 1) : kNoBlock; b != kNoBlock && have < size; b = blocks_[b].prev) {
      if (!blocks_[b].is_free() || !streams_.usable(blocks_[b].last_use, by)) break;
      have += blocks_[b].size;
    }
    if (have > size) have = size;
    Bytes need = size - have;
    if (need > slab.room() || (best && slab.room() >= best.room)) continue;
    best = {i, need, slab.room(), slab.end() - have};
  }
  return best;
}

void Home::raise(std::size_t i, Bytes bytes) {
  const Slab& slab = space_.slabs()[i];
  Addr from = slab.end();
  BlockId left = slab.mark ? covering(from - 1) : kNoBlock;
  std::vector<GranuleId> cells;
  space_.raise(i, bytes, &cells);
  BlockId fresh = blocks_.make();
  Block& b = blocks_[fresh];
  b.at = from;
  b.size = bytes;
  b.kind = BlockKind::free;
  b.arena = kMainArena;
  b.prev = left;
  if (left != kNoBlock) blocks_[left].next = fresh;
  for (GranuleId id : cells) space_.granule(id).first = fresh;
  insert_free(fresh);
}

bool Home::slab_free(std::size_t i) const {
  for (GranuleId id : space_.slabs()[i].cells)
    if (!space_.granule(id).idle()) return false;
  return true;
}

bool Home::slab_idle(std::size_t i) const {
  for (GranuleId id : space_.slabs()[i].cells)
    if (!idle_finished(id)) return false;
  return true;
}

Epoch Home::run_after(Bytes size, StreamIndex by, StreamIndex on, Epoch most) const {
  Epoch found = 0;
  int tries = kRunsTried;
  arenas_[kMainArena].index.from(size, [&](const FreeIndex::Entry& e) {
    Bytes n = 0;
    Epoch after = 0;
    for (BlockId b = e.head; n < size && b != kNoBlock && blocks_[b].is_free(); b = blocks_[b].next) {
      LastUse use = blocks_[b].last_use;
      bool now = streams_.usable(use, by);
      if (!now && (use.stream != on || use.epoch > most)) {
        n = after = 0;
        continue;
      }
      n += blocks_[b].size;
      if (!now) after = std::max(after, use.epoch);
    }
    if (n >= size && after) found = after;
    return found || --tries == 0;
  });
  return found;
}

Status Home::give_back_slab(std::size_t i) {
  const Slab& slab = space_.slabs()[i];
  if (!slab.mark) return space_.give_back_slab(i);
  // One run covers all of it: it becomes one block, and that one goes with the slab.
  BlockId whole = take({run_head(covering(slab.base)), slab.base}, slab.mark, BlockKind::lent);
  Status s = space_.give_back_slab(i);
  if (s.ok()) blocks_.drop(whole);
  else release(whole, {});  // still there, finished
  return s;
}

}  // namespace dymem
