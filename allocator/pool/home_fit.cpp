// Home: where a request fits. Best fit by (size, address), whose memory first, and what is endless. See home.hpp.
#include <algorithm>

#include "pool/home.hpp"

namespace dymem {

// Own memory first (own_fit): for blocks from this size on, in runs up to so many times as large, among so many fits.
constexpr Bytes kOwnMin = 8 * kMiB;
constexpr Bytes kOwnRunMost = 4;
constexpr int kOwnFits = 16;
// Among so many holes the outermost is chosen (outermost_fit): 4 to 64 serve recordings alike (decision 0010).
constexpr int kOuterFits = 16;

Place Home::fit(BlockId head, Bytes size, StreamIndex by, bool high) const {
  const Block& h = blocks_[head];
  if (h.run_size < size) return {};
  if (h.run_end == head) {
    if (!streams_.usable(h.last_use, by)) return {};
    return {head, high ? h.at + h.size - size : h.at};
  }
  // Mixed last uses: the smallest (or, at the high end, last) usable stretch that holds it.
  Place best;
  Bytes best_size = ~Bytes{0};
  for (BlockId b = head;;) {
    while (b != kNoBlock && blocks_[b].is_free() && !streams_.usable(blocks_[b].last_use, by)) b = blocks_[b].next;
    if (b == kNoBlock || !blocks_[b].is_free()) break;
    Addr at = blocks_[b].at;
    Bytes n = 0;
    while (b != kNoBlock && blocks_[b].is_free() && streams_.usable(blocks_[b].last_use, by)) {
      n += blocks_[b].size;
      b = blocks_[b].next;
    }
    if (n >= size && n < best_size) {
      best = {head, high ? at + n - size : at};
      best_size = n;
    }
    if (b == kNoBlock || !blocks_[b].is_free()) break;
  }
  return best;
}

template <class F>
void Home::each_run(int arena, Bytes size, bool high, Parts parts, F f) const {
  const FreeIndex& index = arenas_[arena].index;
  if (parts_ || parts == kHighPart) return each_run_of(parts, size, high, f);
  if (!space_.contiguous() || !marks_rise_) {
    index.from(size, [&](const FreeIndex::Entry& e) { return f(e, high); });
    return;
  }
  bool endless = false;
  auto visit = [&](bool want) {
    return index.from(size, [&](const FreeIndex::Entry& e) {
      bool is = e.size != size && space_.slabs().ends_at_mark(e.at + e.size);
      endless |= is;
      return is == want && f(e, high && !is);
    });
  };
  if (!visit(false) && endless && !high) visit(true);  // what belongs at a high end opens the slab instead
}

unsigned Home::part_of(Addr at) const {
  const Slab* s = space_.slabs().parted(at);
  if (!s) return kLowPart;
  if (s->incremental) return kIncrementalPart;
  return at < s->low_end ? kLowPart : at == s->low_end && s->gap() ? kNoPart : kHighPart;
}

// The same where runs are of parts, and gaps are left out: gap_fit is the way to those.
template <class F>
void Home::each_run_of(Parts parts, Bytes size, bool high, F f) const {
  if (!space_.contiguous()) return;
  const Slabs& slabs = space_.slabs();
  bool endless = false;
  auto visit = [&](bool want) {
    return arenas_[kMainArena].index.from(size, [&](const FreeIndex::Entry& e) {
      if (!(part_of(e.at) & parts)) return false;
      bool is = marks_rise_ && e.size != size && slabs.ends_at_mark(e.at + e.size);
      endless |= is;
      return is == want && f(e, high && !is);
    });
  };
  if (!visit(false) && endless && !high) visit(true);
}

// What a stream freed and the GPU has not finished with, it can have at once (stream order) and nobody else can. Taking
// that first leaves what is finished to the streams that could not have the other: a copy stream beside compute then
// finds memory without waiting for the compute that has just been enqueued (decision 0005).
bool Home::own(BlockId b, StreamIndex by) const {
  return blocks_[b].last_use.stream == by && !streams_.finished(blocks_[b].last_use);
}

bool Home::mostly_own(BlockId b, Addr at, Bytes size, StreamIndex by) const {
  Addr end = at + size;
  for (Bytes n = 0; at < end; b = blocks_[b].next) {
    Addr stop = std::min(end, blocks_[b].at + blocks_[b].size);
    if (own(b, by)) n += stop - at;
    if (n > size / 2) return true;
    at = stop;
  }
  return false;
}

Place Home::own_fit(int arena, Bytes size, StreamIndex by, bool high, int tries, Parts parts) const {
  Place found;
  int fits = kOwnFits;
  each_run(arena, size, high, parts, [&](const FreeIndex::Entry& e, bool at_end) {
    if (found && e.size > kOwnRunMost * size) return true;
    if (Place p = fit(e.head, size, by, at_end)) {
      BlockId b = p.head;
      while (blocks_[b].at + blocks_[b].size <= p.at) b = blocks_[b].next;
      p.own = space_.contiguous() ? mostly_own(b, p.at, size, by) : own(b, by);
      if (!found || p.own) found = p;
      if (p.own || --fits == 0) return true;
    }
    return --tries <= 0;
  });
  return found;
}

Place Home::best_fit(int arena, Bytes size, StreamIndex by, bool high, int tries, Parts parts) const {
  if (size >= kOwnMin && streams_.contended()) return own_fit(arena, size, by, high, tries, parts);
  Place found;
  each_run(arena, size, high, parts, [&](const FreeIndex::Entry& e, bool at_end) {
    found = fit(e.head, size, by, at_end);
    return bool(found) || --tries <= 0;
  });
  return found;
}

Place Home::outermost_fit(Bytes size, StreamIndex by, int tries, Parts part) const {
  const bool high = part == kHighPart;
  Place found;
  int fits = kOuterFits;
  arenas_[kMainArena].index.from(size, [&](const FreeIndex::Entry& e) {
    if (part_of(e.at) != part || space_.slabs().ends_at_mark(e.at + e.size)) return false;
    if (Place p = fit(e.head, size, by, high)) {
      if (!found || (high ? p.at > found.at : p.at < found.at)) found = p;
      return --fits == 0;
    }
    return --tries <= 0;
  });
  return found ? found : best_fit(kMainArena, size, by, high, tries, part);  // of slabs that have no two parts
}

Place Home::at_end(Place p, Bytes size, StreamIndex by, bool high) const {
  const Block& last = blocks_[blocks_[p.head].run_end];
  if (high && marks_rise_ && space_.slabs().ends_at_mark(last.at + last.size)) return p;
  return fit(p.head, size, by, high);
}

Bytes Home::largest(int arena, StreamIndex by) const {
  Bytes best = 0;
  arenas_[arena].index.from_largest([&](const FreeIndex::Entry& e) {
    if (e.size <= best) return true;
    if (parts_ && part_of(e.at) == kIncrementalPart) return false;
    Bytes n = 0;
    if (const std::size_t slab = open_ ? gap_at(e.at) : Slabs::kNoSlab; slab != Slabs::kNoSlab) {
      best = std::max(best, largest_in_gap(space_.slabs()[slab], by));
      return false;
    }
    for (BlockId b = e.head;; b = blocks_[b].next) {
      n = streams_.usable(blocks_[b].last_use, by) ? n + blocks_[b].size : 0;
      best = std::max(best, n);
      if (b == blocks_[e.head].run_end) break;
    }
    return false;
  });
  return best;
}

Bytes Home::free_bytes(int arena) const {
  Bytes n = 0;
  arenas_[arena].index.each([&](const FreeIndex::Entry& e) { n += e.size; });
  return n;
}

}  // namespace dymem
