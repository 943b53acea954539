// Home on the contiguous backing: a slab's mark rises, and a slab that is wholly idle goes. See home.hpp.
#include "pool/home.hpp"

#include <algorithm>

namespace dymem {

constexpr int kRunsTried = 64;

Home::Rise Home::rise_for(Bytes size, StreamIndex by, bool incremental) const {
  Rise best;
  for (std::size_t i = 0; i < space_.slabs().size(); i++) {
    const Slab& slab = space_.slabs()[i];
    if (slab.open || slab.incremental != incremental) continue;
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
  const Addr from = space_.slabs()[i].end();
  std::vector<GranuleId> cells;
  space_.raise(i, bytes, &cells);
  add_free(i, from, bytes, cells);
}

// The bytes from a slab's old mark on, as a free block that is finished.
void Home::add_free(std::size_t i, Addr from, Bytes bytes, const std::vector<GranuleId>& cells) {
  const Slab& slab = space_.slabs()[i];
  BlockId left = from > slab.base ? covering(from - 1) : kNoBlock;
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

void Home::open_slab(std::size_t i) {
  const Slab& slab = space_.slabs()[i];
  const Addr from = slab.end();
  const Bytes room = slab.room();
  Addr low_end = from;
  if (BlockId last = slab.mark ? covering(from - 1) : kNoBlock; last != kNoBlock && blocks_[last].is_free())
    low_end = blocks_[run_head(last)].at;
  std::vector<GranuleId> cells;
  space_.open_slab(i, low_end, &cells);
  open_ = parts_ = true;
  if (room) add_free(i, from, room, cells);
}

Bytes Home::largest_in_gap(const Slab& slab, StreamIndex by) const {
  const Addr most = slab.high_start - slab.squeeze;  // where a block ends at the latest
  Bytes best = 0;
  Addr from = slab.low_end;
  for (BlockId b = covering(slab.low_end); b != kNoBlock && blocks_[b].is_free(); b = blocks_[b].next) {
    const Addr end = blocks_[b].at + blocks_[b].size;
    if (!streams_.usable(blocks_[b].last_use, by)) from = end;
    else if (const Addr stop = std::min(end, most); stop > from) best = std::max(best, stop - from);
  }
  return best;
}

Bytes Home::spanned(const Slab& slab) const {
  if (slab.open) return slab.size - slab.gap();
  const BlockId last = slab.mark ? covering(slab.end() - 1) : kNoBlock;
  if (last == kNoBlock || !blocks_[last].is_free()) return slab.mark;
  return blocks_[blocks_[last].run_end].at - slab.base;
}

std::size_t Home::gap_at(Addr run) const {
  const Slabs& slabs = space_.slabs();
  for (std::size_t i = 0; i < slabs.size(); i++)
    if (slabs[i].open && slabs[i].low_end == run && slabs[i].gap()) return i;
  return Slabs::kNoSlab;
}

Home::GapPlace Home::gap_fit(std::size_t i, Bytes size, StreamIndex by, bool high) const {
  const Slab& slab = space_.slabs()[i];
  if (slab.gap() < size) return {};
  // Stretches that `by` may use, from the end in question: the first that holds it.
  const BlockId head = covering(slab.low_end), tail = blocks_[head].run_end;
  Bytes n = 0;
  for (BlockId b = high ? tail : head;; b = high ? blocks_[b].prev : blocks_[b].next) {
    const Block& block = blocks_[b];
    n = streams_.usable(block.last_use, by) ? n + block.size : 0;
    if (n >= size) {
      const Addr at = high ? block.at + n - size : block.at + block.size - n;
      return {{head, at}, high ? slab.low_end : at + size, high ? at : slab.high_start};
    }
    if (b == (high ? head : tail)) return {};
  }
}

BlockId Home::take_gap(std::size_t i, const GapPlace& where, Bytes size) {
  BlockId id = take(where.place, size, BlockKind::live);
  space_.set_gap(i, where.low_end, where.high_start);
  return id;
}

void Home::widen_gap(const Block& b) {
  for (std::size_t i = 0; i < space_.slabs().size(); i++) {
    const Slab& slab = space_.slabs()[i];
    if (!slab.open || b.at - slab.base >= slab.size) continue;
    Addr low = slab.low_end, high = slab.high_start;
    if (b.at + b.size == low) {
      const BlockId left = b.prev;  // the last of its run, if it is free
      low = left != kNoBlock && blocks_[left].is_free() ? blocks_[blocks_[left].run_end].at : b.at;
    } else if (b.at == high) {
      const BlockId right = b.next;
      high = b.at + b.size;
      if (right != kNoBlock && blocks_[right].is_free()) high += blocks_[right].run_size;
    } else {
      return;
    }
    space_.set_gap(i, low, high);
  }
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
  else release(whole, {});  // still there, finished; an open one's gap is all of it, as before
  open_ = space_.slabs().any_open();
  parts_ = open_ || space_.slabs().any_incremental();
  return s;
}

}  // namespace dymem
