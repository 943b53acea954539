#include "pool/home.hpp"

#include <algorithm>

namespace dymem {

constexpr Bytes kOlderJoined = 8 * kMiB;
// A block that grows the arena does not start in a sliver at the end of the granule before: it would hold that granule
// for its first bytes, and leave its own last one to the next block; a small one there then keeps all of it.
constexpr Bytes kSliver = kGranuleUnit, kSliverShare = 8;
// Nor, even where slivers are for the taking, behind a block this small in comparison, which outlives what is beside it as
// often as not (comb).
constexpr Bytes kSmallBefore = 4 * kMiB, kSmallBeforeShare = 4;

Home::Home(Space& space, StreamTable& streams) : space_(space), streams_(streams) {
  for (int a = 0; a < Space::kArenas; a++) {
    auto w = space.window(a);
    arenas_[a].lo = arenas_[a].end = w.lo;
    arenas_[a].hi = w.hi;
  }
}

int Home::arena_of(Addr at) const {
  if (space_.contiguous()) return space_.granule_at(at) != kNone ? kMainArena : -1;
  for (int a = 0; a < Space::kArenas; a++)
    if (at >= arenas_[a].lo && at < arenas_[a].hi) return a;
  return -1;
}

void Home::index_run(BlockId head, BlockId tail, Bytes run_size) {
  Block& h = blocks_[head];
  h.run_size = run_size;
  h.run_end = tail;
  blocks_[tail].run_end = head;
  arenas_[h.arena].index.insert(run_size, h.at, head);
  if (head != tail) list_mixed(head);
}

void Home::list_mixed(BlockId head) {
  mixed_.push_back(head);
  if (mixed_.size() >= mixed_max_) {  // nothing settled for long: drop what is listed twice
    std::sort(mixed_.begin(), mixed_.end());
    mixed_.erase(std::unique(mixed_.begin(), mixed_.end()), mixed_.end());
    mixed_max_ = std::max(kMixedMin, 2 * mixed_.size());
  }
}

void Home::unindex_run(BlockId head) {
  Block& h = blocks_[head];
  arenas_[h.arena].index.erase(h.run_size, h.at);
}

bool Home::may_join(const Block& x, const Block& y) const {
  LastUse a = x.last_use, b = y.last_use;
  if (a == b) return true;
  bool a_finished = streams_.finished(a), b_finished = streams_.finished(b);
  if (a_finished && b_finished) return true;
  if (a.stream != b.stream) return false;
  // Not in an open slab: all of its gap would count as used by whoever freed a block beside it, once there are others.
  if (streams_.single() && !open_) return true;
  if (a_finished || b_finished) return false;  // anyone may have that part now
  // One stream, two epochs: the older part would count as used as late as the younger one. Worth it where it is small;
  // large ones stay apart, since other streams can have them sooner.
  Bytes older = a.epoch < b.epoch ? x.size : y.size;
  return older <= kOlderJoined;
}

LastUse Home::joined(LastUse a, LastUse b) const {
  if (streams_.finished(a)) return b;
  if (streams_.finished(b)) return a;
  return a.epoch >= b.epoch ? a : b;  // same stream
}

void Home::hint(BlockId id, Addr from, Bytes size) {
  Addr end = from + size;
  GranuleId g = space_.granule_at(from);
  if (g == kNone) return;
  Addr start = space_.granule(g).home;
  if (start < from) start += space_.granule(g).size;
  while (start < end) {
    Granule& granule = space_.granule(space_.granule_at(start));
    granule.first = id;
    start += granule.size;
  }
}

void Home::use(Addr at, Bytes size, bool used, BlockId id) {
  Addr end = at + size;
  for (Addr x = at; x < end;) {
    Granule& g = space_.granule(space_.granule_at(x));
    Addr stop = std::min(end, g.home + g.size);
    g.used += used ? stop - x : x - stop;
    if (g.home >= at) g.first = id;
    x = stop;
  }
}

// Splits at `at`. The larger part keeps the record, so that re-hinting costs the smaller one.
BlockId Home::split(BlockId id, Addr at) {
  BlockId fresh = blocks_.make();
  Block& b = blocks_[id];
  Block& n = blocks_[fresh];
  Bytes low = at - b.at, high = b.size - low;
  n.last_use = b.last_use;
  n.kind = b.kind;
  n.arena = b.arena;
  if (low < high) {  // the fresh record is the low part
    n.at = b.at;
    n.size = low;
    n.prev = b.prev;
    n.next = id;
    if (n.prev != kNoBlock) blocks_[n.prev].next = fresh;
    b.prev = fresh;
    b.at = at;
    b.size = high;
    hint(fresh, n.at, low);
    return id;
  }
  n.at = at;
  n.size = high;
  n.prev = id;
  n.next = b.next;
  if (n.next != kNoBlock) blocks_[n.next].prev = fresh;
  b.next = fresh;
  b.size = low;
  hint(fresh, at, high);
  return fresh;
}

BlockId Home::join(BlockId a, BlockId b) {
  Block& x = blocks_[a];
  Block& y = blocks_[b];
  LastUse use = joined(x.last_use, y.last_use);
  if (x.size >= y.size) {
    hint(a, y.at, y.size);
    x.size += y.size;
    x.next = y.next;
    if (x.next != kNoBlock) blocks_[x.next].prev = a;
    x.last_use = use;
    blocks_.drop(b);
    return a;
  }
  hint(b, x.at, x.size);
  y.at = x.at;
  y.size += x.size;
  y.prev = x.prev;
  if (y.prev != kNoBlock) blocks_[y.prev].next = b;
  y.last_use = use;
  blocks_.drop(a);
  return b;
}

BlockId Home::run_head(BlockId id) const {
  while (blocks_[id].prev != kNoBlock && blocks_[blocks_[id].prev].is_free()) id = blocks_[id].prev;
  return id;
}

BlockId Home::covering(Addr at) const {
  GranuleId g = space_.granule_at(at);
  if (g == kNone) return kNoBlock;
  BlockId b = space_.granule(g).first;
  while (b != kNoBlock && blocks_[b].at + blocks_[b].size <= at) b = blocks_[b].next;
  return b;
}

Place Home::at(Addr at, Bytes size, StreamIndex by) const {
  BlockId b = covering(at);
  if (b == kNoBlock || !blocks_[b].is_free()) return {};
  BlockId head = b;
  for (Addr end = at + size;;) {
    if (b == kNoBlock || !blocks_[b].is_free() || !streams_.usable(blocks_[b].last_use, by)) return {};
    if (blocks_[b].at + blocks_[b].size >= end) break;
    b = blocks_[b].next;
  }
  return {run_head(head), at};
}

BlockId Home::take_low(BlockId head, Bytes size, BlockKind kind) {
  Block* h = &blocks_[head];
  FreeIndex& index = arenas_[h->arena].index;
  BlockId out = head;
  if (h->size == size) {
    index.erase(size, h->at);
    h->run_size = 0;
    h->run_end = kNoBlock;
  } else {  // the rest keeps the record: it stays the head of its run, which may have more blocks
    out = blocks_.make();
    h = &blocks_[head];
    Block& b = blocks_[out];
    b.at = h->at;
    b.size = size;
    b.prev = h->prev;
    b.next = head;
    if (b.prev != kNoBlock) blocks_[b.prev].next = out;
    b.arena = h->arena;
    index.move(h->run_size, h->at, h->run_size - size, h->at + size, head);
    h->prev = out;
    h->at += size;
    h->size -= size;
    h->run_size -= size;
  }
  Block& b = blocks_[out];
  b.kind = kind;
  use(b.at, size, true, out);
  return out;
}

BlockId Home::take(Place place, Bytes size, BlockKind kind) {
  if (const Block& h = blocks_[place.head]; h.at == place.at && (h.run_end == place.head || h.size > size))
    return take_low(place.head, size, kind);
  BlockId head = place.head;
  Addr at = place.at, end = at + size;
  Bytes run_size = blocks_[head].run_size;
  Addr run_at = blocks_[head].at;
  BlockId tail = blocks_[head].run_end;
  unindex_run(head);

  BlockId b = head;
  while (blocks_[b].at + blocks_[b].size <= at) b = blocks_[b].next;
  if (blocks_[b].at < at) {
    bool was_tail = b == tail;
    b = split(b, at);
    // The record of either part may be the old one; what lies beyond is unchanged.
    if (was_tail) tail = b;
  }
  BlockId left_tail = blocks_[b].at > run_at ? blocks_[b].prev : kNoBlock;
  // Join what the block spans into one record, whatever the last uses were: they are usable by its owner.
  while (blocks_[b].at + blocks_[b].size < end) {
    BlockId n = blocks_[b].next;
    bool was_tail = n == tail;
    if (blocks_[n].at + blocks_[n].size > end) {
      bool tail_split = was_tail;
      BlockId upper = split(n, end);
      if (tail_split) tail = upper;
      n = blocks_[b].next;
      was_tail = false;
    }
    b = join(b, n);
    if (was_tail) tail = b;
  }
  if (blocks_[b].at + blocks_[b].size > end) {
    bool was_tail = b == tail;
    BlockId upper = split(b, end);
    if (was_tail) tail = upper;
    b = blocks_[upper].prev;
  }
  if (left_tail != kNoBlock) {
    BlockId left_head = left_tail;
    while (blocks_[left_head].at > run_at) left_head = blocks_[left_head].prev;
    index_run(left_head, left_tail, at - run_at);
  }
  if (run_at + run_size > end) index_run(blocks_[b].next, tail, run_at + run_size - end);
  Block& out = blocks_[b];
  out.kind = kind;
  out.run_size = 0;
  out.run_end = kNoBlock;
  use(at, size, true, b);
  return b;
}

void Home::release(BlockId id, LastUse last_use) {
  Block& b = blocks_[id];
  if (__builtin_expect(open_, 0)) widen_gap(b);
  b.kind = BlockKind::free;
  b.last_use = last_use;
  b.slack = 0;
  b.run_end = b.next_piece = kNoBlock;
  b.uses = 0;
  b.run_size = 0;
  b.pins = 0;
  if (release_plain(id)) return;
  use(b.at, b.size, false, id);
  insert_free(id);
}

bool Home::release_plain(BlockId id) {
  Block& b = blocks_[id];
  FreeIndex& index = arenas_[b.arena].index;
  BlockId left = b.prev, right = b.next;
  if (left != kNoBlock && !blocks_[left].is_free()) left = kNoBlock;
  if (right != kNoBlock && !blocks_[right].is_free()) right = kNoBlock;
  for (BlockId n : {left, right})
    if (n != kNoBlock && (blocks_[n].run_end != n || !may_join(blocks_[n], b))) return false;
  if (left != kNoBlock && right != kNoBlock) {
    Block &l = blocks_[left], &r = blocks_[right];
    if (!may_join(l, r)) return false;
    LastUse use_of_all = joined(joined(l.last_use, b.last_use), r.last_use);
    Bytes all = l.size + b.size + r.size;
    BlockId rest = l.size >= r.size ? left : right;  // its record stays: the fewest granules are told
    use(b.at, b.size, false, rest);
    index.erase(l.size, l.at);
    index.erase(r.size, r.at);
    if (rest == left) {
      hint(left, r.at, r.size);
      l.next = r.next;
      if (l.next != kNoBlock) blocks_[l.next].prev = left;
    } else {
      hint(right, l.at, l.size);
      r.at = l.at;
      r.prev = l.prev;
      if (r.prev != kNoBlock) blocks_[r.prev].next = right;
    }
    Block& kept = blocks_[rest];
    kept.size = kept.run_size = all;
    kept.last_use = use_of_all;
    index.insert(all, kept.at, rest);
    blocks_.drop(rest == left ? right : left);
    blocks_.drop(id);
    return true;
  }
  if (left != kNoBlock) {
    Block& l = blocks_[left];
    use(b.at, b.size, false, left);
    index.move(l.size, l.at, l.size + b.size, l.at, left);
    l.size += b.size;
    l.run_size = l.size;
    l.last_use = joined(l.last_use, b.last_use);
    l.next = b.next;
    if (l.next != kNoBlock) blocks_[l.next].prev = left;
    blocks_.drop(id);
    return true;
  }
  if (right != kNoBlock) {
    Block& r = blocks_[right];
    use(b.at, b.size, false, right);
    index.move(r.size, r.at, r.size + b.size, b.at, right);
    r.at = b.at;
    r.size += b.size;
    r.run_size = r.size;
    r.last_use = joined(r.last_use, b.last_use);
    r.prev = b.prev;
    if (r.prev != kNoBlock) blocks_[r.prev].next = right;
    blocks_.drop(id);
    return true;
  }
  use(b.at, b.size, false, id);
  b.run_size = b.size;
  b.run_end = id;
  index.insert(b.size, b.at, id);
  return true;
}

void Home::insert_free(BlockId id) {
  FreeIndex& index = arenas_[blocks_[id].arena].index;
  BlockId left = blocks_[id].prev, right = blocks_[id].next;
  if (left != kNoBlock && !blocks_[left].is_free()) left = kNoBlock;
  if (right != kNoBlock && !blocks_[right].is_free()) right = kNoBlock;
  BlockId head = id, tail = id;
  Bytes run_size = blocks_[id].size;
  // The run as the index knows it so far, if either neighbour has one: its entry is moved, not made anew.
  BlockId known = kNoBlock;
  Bytes known_size = 0;
  Addr known_at = 0;
  bool listed = false;  // in mixed_ already, by the record that stays its head
  if (left != kNoBlock) {
    head = known = blocks_[left].run_end;
    known_size = blocks_[head].run_size;
    known_at = blocks_[head].at;
    run_size += known_size;
    listed = head != left;
    if (may_join(blocks_[left], blocks_[id])) {
      bool was_head = left == head;
      id = join(left, id);
      tail = id;
      if (was_head) head = id;
    }
  }
  if (right != kNoBlock) {
    Bytes right_size = blocks_[right].run_size;
    run_size += right_size;
    tail = blocks_[right].run_end;
    if (known == kNoBlock) {
      known = right;
      known_size = right_size;
      known_at = blocks_[right].at;
    } else {
      index.erase(right_size, blocks_[right].at);
    }
    if (may_join(blocks_[id], blocks_[right])) {
      bool was_head = id == head, was_tail = right == tail;
      id = join(id, right);
      if (was_head) head = id;
      if (was_tail) tail = id;
    }
  }
  Block& h = blocks_[head];
  h.run_size = run_size;
  h.run_end = tail;
  blocks_[tail].run_end = head;
  if (known == kNoBlock) index.insert(run_size, h.at, head);
  else index.move(known_size, known_at, run_size, h.at, head);
  if (head != tail && !listed) list_mixed(head);
}

Status Home::grow(int arena, Addr where, const std::vector<Bytes>& sizes) {
  std::vector<GranuleId> fresh;
  Status s = space_.add_home(where, sizes, &fresh);
  if (!s.ok()) return s;
  for (GranuleId g : fresh) adopt(arena, g);
  return {};
}

void Home::adopt(int arena, GranuleId id) {
  Granule& g = space_.granule(id);
  BlockId fresh = blocks_.make();
  Block& b = blocks_[fresh];
  b.at = g.home;
  b.size = g.size;
  b.kind = BlockKind::free;
  b.arena = std::uint8_t(arena);
  b.last_use = {};
  g.first = fresh;
  g.used = 0;
  if (BlockId left = g.home > arenas_[arena].lo ? covering(g.home - 1) : kNoBlock; left != kNoBlock) {
    b.prev = left;
    blocks_[left].next = fresh;
  }
  Addr end = b.at + b.size;
  if (end < arenas_[arena].hi)
    if (GranuleId r = space_.granule_at(end); r != kNone && space_.granule(r).first != kNone) {
      b.next = space_.granule(r).first;
      blocks_[b.next].prev = fresh;
    }
  Arena& a = arenas_[arena];
  if (end > a.end) {
    if (b.at > a.end) a.gaps += b.at - a.end;
    a.end = end;
  } else {
    a.gaps -= b.size;
  }
  insert_free(fresh);
}

void Home::remove(GranuleId id) {
  Granule& g = space_.granule(id);
  BlockId b = covering(g.home);
  BlockId whole = take({run_head(b), g.home}, g.size, BlockKind::lent);
  Block& w = blocks_[whole];
  if (w.prev != kNoBlock) blocks_[w.prev].next = kNoBlock;
  if (w.next != kNoBlock) blocks_[w.next].prev = kNoBlock;
  Arena& arena = arenas_[w.arena];
  // The end falls back to the last granule that is left, so that growing continues there.
  if (arena.end == w.at + w.size) {
    Addr end = w.at;
    while (end > arena.lo && space_.granule_at(end - 1) == kNone) end -= kGranuleUnit;
    arena.gaps -= w.at - end;
    arena.end = end;
  } else {
    arena.gaps += w.size;
  }
  g.used = 0;
  g.first = kNone;
  blocks_.drop(whole);
}

Bytes Home::free_before(const Arena& a, Addr at, StreamIndex by) const {
  if (at == a.lo) return 0;
  Bytes n = 0;
  for (BlockId b = covering(at - 1); b != kNoBlock; b = blocks_[b].prev) {
    if (!blocks_[b].is_free() || !streams_.usable(blocks_[b].last_use, by)) break;
    n += blocks_[b].size;
  }
  return n;
}

// Calls f(address, bytes) on the gaps that giving back left, lowest first, until it returns true.
template <class F>
void Home::each_gap(const Arena& a, F f) const {
  for (Addr x = a.lo; x < a.end;) {
    GranuleId g = space_.granule_at(x);
    if (g != kNone) {
      x = space_.granule(g).home + space_.granule(g).size;
      continue;
    }
    Addr y = x;
    while (y < a.end && space_.granule_at(y) == kNone) y += kGranuleUnit;
    if (f(x, y - x)) return;
    x = y;
  }
}

bool Home::small_before(Addr at, Bytes size) const {
  const BlockId b = covering(at - 1);
  return b != kNoBlock && blocks_[b].size < std::min(kSmallBefore, size / kSmallBeforeShare);
}

Home::Site Home::growth_site(int arena, Bytes size, StreamIndex by, Start start) const {
  const Arena& a = arenas_[arena];
  auto site = [&](Addr at, Bytes room) {
    Site s{at, 0, room, std::min(free_before(a, at, by), size)};
    const bool sliver = arena == kMainArena && s.have < kSliver && s.have < size / kSliverShare;
    if (sliver && s.have && (start == Start::past_slivers || small_before(at - s.have, size))) s.have = 0;
    s.need = round_up(size - s.have, kGranuleUnit);
    return s;
  };
  Site best;
  if (a.gaps)
    each_gap(a, [&](Addr at, Bytes room) {
      Site s = site(at, room);
      if (s.need <= s.room && (!best.need || s.room < best.room)) best = s;
      return false;
    });
  return best.need ? best : site(a.end, a.hi - a.end);
}

Addr Home::room_for(int arena, Bytes bytes) const {
  const Arena& a = arenas_[arena];
  Addr found = 0;
  if (a.gaps)
    each_gap(a, [&](Addr at, Bytes room) {
      if (room >= bytes) found = at;
      return found != 0;
    });
  if (!found && a.hi - a.end >= bytes) found = a.end;
  return found;
}

Bytes Home::free_prefix(GranuleId id, StreamIndex by) const {
  const Granule& g = space_.granule(id);
  Addr end = g.home + g.size;
  Bytes n = 0;
  for (BlockId b = g.first; b != kNoBlock && blocks_[b].at < end; b = blocks_[b].next) {
    if (!blocks_[b].is_free() || !streams_.usable(blocks_[b].last_use, by)) break;
    n = std::min(end, blocks_[b].at + blocks_[b].size) - g.home;
  }
  return n;
}

Bytes Home::free_suffix(GranuleId id, StreamIndex by) const {
  const Granule& g = space_.granule(id);
  Addr end = g.home + g.size;
  Bytes n = 0;
  for (BlockId b = covering(end - 1); b != kNoBlock && blocks_[b].at + blocks_[b].size > g.home; b = blocks_[b].prev) {
    if (!blocks_[b].is_free() || !streams_.usable(blocks_[b].last_use, by)) break;
    n = end - std::max(g.home, blocks_[b].at);
  }
  return n;
}

bool Home::idle_usable(GranuleId id, StreamIndex by) const {
  const Granule& g = space_.granule(id);
  if (!g.home || !g.idle()) return false;
  for (BlockId b = g.first; b != kNoBlock && blocks_[b].at < g.home + g.size; b = blocks_[b].next)
    if (!streams_.usable(blocks_[b].last_use, by)) return false;
  return true;
}

std::optional<Epoch> Home::idle_after(GranuleId id, StreamIndex by, StreamIndex on) const {
  const Granule& g = space_.granule(id);
  if (!g.home || !g.idle()) return {};
  Epoch after = 0;
  for (BlockId b = g.first; b != kNoBlock && blocks_[b].at < g.home + g.size; b = blocks_[b].next) {
    LastUse use = blocks_[b].last_use;
    if (streams_.usable(use, by)) continue;
    if (use.stream != on) return {};
    after = std::max(after, use.epoch);
  }
  return after;
}

bool Home::idle_finished(GranuleId id) const {
  const Granule& g = space_.granule(id);
  if (!g.home || !g.idle()) return false;
  for (BlockId b = g.first; b != kNoBlock && blocks_[b].at < g.home + g.size; b = blocks_[b].next)
    if (!streams_.finished(blocks_[b].last_use)) return false;
  return true;
}

void Home::settle() {
  std::vector<BlockId>& mixed = settling_;  // two lists in turns: neither loses its room
  mixed.clear();
  mixed.swap(mixed_);
  std::sort(mixed.begin(), mixed.end());
  mixed.erase(std::unique(mixed.begin(), mixed.end()), mixed.end());
  std::erase_if(mixed, [&](BlockId id) {  // records get reused: only heads of runs of several blocks count
    const Block& b = blocks_[id];
    return !b.is_free() || b.run_end == id || (b.prev != kNoBlock && blocks_[b.prev].is_free());
  });
  for (BlockId head : mixed) {
    Bytes run_size = blocks_[head].run_size;
    BlockId tail = blocks_[head].run_end;
    Addr end = blocks_[tail].at + blocks_[tail].size;
    unindex_run(head);
    BlockId b = head, first = head;
    while (blocks_[b].at + blocks_[b].size < end) {
      BlockId n = blocks_[b].next;
      if (may_join(blocks_[b], blocks_[n])) {
        bool was_first = b == first;
        b = join(b, n);
        if (was_first) first = b;
      } else {
        b = n;
      }
    }
    index_run(first, b, run_size);
  }
}

}  // namespace dymem
