#include "pool/stitcher.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

#include "driver/cost_model.hpp"
#include "pool/granule_sizes.hpp"

namespace dymem {

// Second views cost nothing while they exist, but unmapping them when a granule goes and host memory do.
constexpr std::uint64_t kViewsFree = 256, kViewsPerGranule = 3;
// A region that was not used while so many blocks were handed out (several iterations) has served its time.
constexpr std::uint64_t kCallsOld = 60'000;
constexpr std::size_t kSuffixesTried = 4, kSuffixesTriedThrifty = 16, kExtensionsTried = 8;

Stitcher::Stitcher(Space& space, Home& home, StreamTable& streams) : space_(space), home_(home), streams_(streams) {}

std::uint64_t Stitcher::views_allowed() const { return kViewsFree + kViewsPerGranule * space_.granule_count(); }

bool Stitcher::range_free(const Region& r, std::size_t view, Addr at, Bytes size, StreamIndex by) const {
  Addr end = at + size;
  for (std::size_t i = view; i < r.granules.size() && r.at[i] < end; i++) {
    if (r.granules[i] == kNone) return false;
    const Granule& g = space_.granule(r.granules[i]);
    if (g.pins) return false;
    Addr lo = std::max(at, r.at[i]), hi = std::min(end, r.at[i] + g.size);
    if (g.used == 0) {
      if (!home_.idle_usable(r.granules[i], by)) return false;
    } else if (g.used + (hi - lo) > g.size || !home_.at(g.home + (lo - r.at[i]), hi - lo, by)) {
      return false;
    }
  }
  return true;
}

RegionId Stitcher::region_of(Addr at) const {
  auto it = std::upper_bound(by_address_.begin(), by_address_.end(), at,
                             [&](Addr a, RegionId r) { return a < space_.region(r).base; });
  if (it == by_address_.begin()) return kNone;
  RegionId id = *--it;
  return at < space_.region(id).base + space_.region(id).size ? id : kNone;
}

// The view that holds an address of the region.
static std::size_t view_at(const Region& r, Addr at) {
  return std::size_t(std::upper_bound(r.at.begin(), r.at.end(), at) - r.at.begin()) - 1;
}

BlockId Stitcher::covering(Addr at) const {
  RegionId id = region_of(at);
  if (id == kNone) return kNoBlock;
  const Region& r = space_.region(id);
  std::size_t i = view_at(r, at);
  if (r.granules[i] == kNone) return kNoBlock;
  return home_.covering(space_.granule(r.granules[i]).home + (at - r.at[i]));
}

Stitcher::Spot Stitcher::at(Addr at, Bytes size, StreamIndex by) const {
  RegionId id = region_of(at);
  if (id == kNone) return {};
  const Region& r = space_.region(id);
  if (r.broken || at + size > r.base + r.size || !range_free(r, view_at(r, at), at, size, by)) return {};
  return {id, at};
}

Stitcher::Spot Stitcher::find(Bytes size, StreamIndex by) {
  Spot best;
  Bytes best_room = ~Bytes{0};
  for (RegionId id : by_address_) {
    const Region& r = space_.region(id);
    if (r.broken || r.size < size) continue;
    std::size_t n = r.granules.size();
    // Maximal stretches of wholly free granules, then the free edges of their neighbours.
    for (std::size_t i = 0; i < n;) {
      Bytes whole = 0;
      std::size_t j = i;
      while (j < n && space_.granule(r.granules[j]).idle()) whole += space_.granule(r.granules[j++]).size;
      Bytes before = i > 0 ? space_.granule(r.granules[i - 1]).size - space_.granule(r.granules[i - 1]).used : 0;
      Bytes after = j < n ? space_.granule(r.granules[j]).size - space_.granule(r.granules[j]).used : 0;
      if (whole + before + after >= size && whole + before + after != 0) {
        Bytes suffix = i > 0 && !space_.granule(r.granules[i - 1]).pins ? home_.free_suffix(r.granules[i - 1], by) : 0;
        Bytes prefix = j < n && !space_.granule(r.granules[j]).pins ? home_.free_prefix(r.granules[j], by) : 0;
        Bytes room = suffix + whole + prefix;
        if (room >= size && room < best_room) {
          Addr start = i < n ? r.at[i] - suffix : r.base + r.size - suffix;
          std::size_t first = suffix ? i - 1 : i;
          if (range_free(r, first, start, size, by)) {
            best = {id, start};
            best_room = room;
          }
        }
      }
      i = j + 1;
    }
  }
  return best;
}

Bytes Stitcher::free_tail(const Region& r, StreamIndex by) const {
  Bytes n = 0;
  for (std::size_t i = r.granules.size(); i-- > 0;) {
    const Granule& g = space_.granule(r.granules[i]);
    if (g.pins) break;
    if (g.used == 0 && home_.idle_usable(r.granules[i], by)) {
      n += g.size;
      continue;
    }
    n += home_.free_suffix(r.granules[i], by);
    break;
  }
  return n;
}

std::optional<Stitcher::Plan> Stitcher::plan(Bytes size, StreamIndex by, Bytes room, Bytes allowance, Bytes most,
                                             bool thrifty) const {
  struct Candidate {
    GranuleId id;
    Bytes size;
    unsigned run;  // log2 of the free run it lies in: small runs are given up first
    std::size_t views;
  };
  std::vector<Candidate> idle;
  std::vector<std::pair<Bytes, GranuleId>> suffixes, prefixes;
  for (GranuleId g = 0; g < space_.granules(); g++) {
    const Granule& granule = space_.granule(g);
    if (!granule.home || granule.pins || granule.used == granule.size) continue;
    if (granule.used == 0) {
      if (!home_.idle_usable(g, by)) continue;
      Bytes run = home_.block(home_.run_head(granule.first)).run_size;
      idle.push_back({g, granule.size, unsigned(std::bit_width(run)), granule.regions.size()});
    } else if (granule.size > kGranuleUnit) {
      if (Bytes n = home_.free_suffix(g, by)) suffixes.push_back({n, g});
      if (Bytes n = home_.free_prefix(g, by)) prefixes.push_back({n, g});
    }
  }
  std::stable_sort(idle.begin(), idle.end(), [thrifty](const Candidate& a, const Candidate& b) {
    // Runs are of little use where little is free, and the fewer handles, the less driver time.
    if (thrifty && a.size != b.size) return a.size > b.size;
    return a.run != b.run ? a.run < b.run : a.size > b.size;
  });
  auto larger = [](auto& a, auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; };
  std::sort(suffixes.begin(), suffixes.end(), larger);
  std::sort(prefixes.begin(), prefixes.end(), larger);
  auto view_us = [](Bytes n) { return cost::map_us(n) + cost::access_us(n); };

  std::optional<Plan> best;
  std::vector<RegionId> seen(space_.granules(), kNone);  // granules of the region that would be extended
  auto consider = [&](Bytes head, GranuleId first, RegionId extends) {
    Plan p;
    p.head = head;
    p.extends = extends;
    if (extends != kNone)
      for (GranuleId g : space_.region(extends).granules) seen[g] = extends;
    Bytes got = head;
    if (first != kNone) {
      p.granules.push_back(first);
      p.cost_us += view_us(space_.granule(first).size);
    }
    std::vector<GranuleId> whole;
    for (auto& c : idle) {
      if (got >= size) break;
      if (extends != kNone && seen[c.id] == extends) continue;
      whole.push_back(c.id);
      got += c.size;
    }
    // What is superfluous goes, first what was taken first and fits into the surplus.
    if (got > size)
      for (std::size_t i = 0; i < whole.size();) {
        Bytes n = space_.granule(whole[i]).size;
        if (got - n >= size) {
          got -= n;
          whole.erase(whole.begin() + std::ptrdiff_t(i));
        } else {
          i++;
        }
      }
    auto fits_last = [&](GranuleId g) { return g != first && (extends == kNone || seen[g] != extends); };
    if (thrifty && got > size) {
      // The free start of a granule in use in place of a whole one that would be used in part: the closest fit.
      Bytes surplus = got - size, least_left = ~Bytes{0};
      std::size_t spared = whole.size();
      for (std::size_t i = 0; i < whole.size(); i++) {
        Bytes gap = space_.granule(whole[i]).size - surplus;
        if (i && space_.granule(whole[i - 1]).size == gap + surplus) continue;  // as good as the one before
        auto smallest = std::find_if(prefixes.rbegin(), prefixes.rend(),
                                     [&](auto& prefix) { return prefix.first >= gap && fits_last(prefix.second); });
        if (smallest == prefixes.rend() || smallest->first - gap >= least_left) continue;
        least_left = smallest->first - gap;
        spared = i;
        p.last = smallest->second;
      }
      if (spared < whole.size()) {
        whole.erase(whole.begin() + std::ptrdiff_t(spared));
        p.cost_us += view_us(space_.granule(p.last).size);
        got = size;
      }
    }
    for (GranuleId g : whole) {
      p.granules.push_back(g);
      p.whole_bytes += space_.granule(g).size;
      p.cost_us += view_us(space_.granule(g).size);
    }
    Bytes prefix_bytes = 0;
    if (got < size)
      for (auto& [n, g] : prefixes)
        if (fits_last(g)) {
          p.last = g;
          p.cost_us += view_us(space_.granule(g).size);
          prefix_bytes = std::min(n, size - got);
          got += prefix_bytes;
          break;
        }
    if (got < size) {
      Bytes from_last = p.last != kNone ? prefix_bytes : 0;
      if (from_last && round_up(size - got, kGranuleUnit) == round_up(size - got + from_last, kGranuleUnit)) {
        got -= from_last;  // new granules are whole: the free start of the last one would save none
        p.cost_us -= view_us(space_.granule(p.last).size);
        p.last = kNone;
      }
      p.fresh = GranuleSizes::split(size - got, most);
      for (Bytes n : p.fresh) {
        p.fresh_bytes += n;
        p.cost_us += cost::create_us(n) + 2 * view_us(n);
      }
    }
    if (p.fresh_bytes > allowance) return;
    if (extends != kNone) {
      Bytes more = p.fresh_bytes + (p.last != kNone ? space_.granule(p.last).size : 0);
      for (GranuleId g : p.granules) more += space_.granule(g).size;
      if (space_.region(extends).size + more > space_.region(extends).capacity) return;
    }
    auto rank = [&](const Plan& x) { return std::tuple(x.fresh_bytes, thrifty ? x.whole_bytes : 0, x.cost_us); };
    if (!best || rank(p) < rank(*best)) best = std::move(p);
  };
  consider(0, kNone, kNone);
  for (std::size_t i = 0; i < std::min(thrifty ? kSuffixesTriedThrifty : kSuffixesTried, suffixes.size()); i++)
    consider(suffixes[i].first, suffixes[i].second, kNone);
  std::vector<std::pair<Bytes, RegionId>> tails;
  for (RegionId id : by_address_)
    if (const Region& r = space_.region(id); !r.broken && r.size < r.capacity)
      if (Bytes n = free_tail(r, by); n && n < size) tails.push_back({n, id});
  std::sort(tails.begin(), tails.end(), larger);
  for (std::size_t i = 0; i < std::min(kExtensionsTried, tails.size()); i++)
    consider(tails[i].first, kNone, tails[i].second);
  // Fewer, larger new granules while there is room: they are granules of the main arena like any other.
  if (best && best->fresh_bytes) {
    if (best->extends != kNone) {  // … and addresses to see them at
      const Region& r = space_.region(best->extends);
      Bytes others = best->last != kNone ? space_.granule(best->last).size : 0;
      for (GranuleId g : best->granules) others += space_.granule(g).size;
      room = std::min(room, r.capacity - r.size - others);
    }
    best->fresh = GranuleSizes::split(GranuleSizes::ask(best->fresh_bytes, room, most, false), most);
    best->fresh_bytes = 0;
    for (Bytes n : best->fresh) best->fresh_bytes += n;
  }
  return best;
}

Status Stitcher::stitch(const Plan& plan, Spot* out) {
  std::vector<GranuleId> granules = plan.granules;
  if (!plan.fresh.empty()) {
    Addr where = home_.room_for(kMainArena, plan.fresh_bytes);
    if (!where) return {Code::out_of_memory, "reserve", 0};
    Status s = home_.grow(kMainArena, where, plan.fresh);
    if (!s.ok()) return s;
    for (Addr x = where; x < where + plan.fresh_bytes;) {
      GranuleId g = space_.granule_at(x);
      granules.push_back(g);
      x += space_.granule(g).size;
    }
  }
  if (plan.last != kNone) granules.push_back(plan.last);
  if (plan.extends != kNone) {
    Region& r = space_.region(plan.extends);
    *out = {plan.extends, r.base + r.size - plan.head};
    return space_.extend_region(plan.extends, granules);
  }
  RegionId id = kNone;
  Status s = space_.add_region(granules, &id);
  if (!s.ok()) return s;  // fresh granules stay: free bytes of the main arena
  if (usage_.size() <= id) usage_.resize(id + 1);
  const Region& r = space_.region(id);
  auto it = std::upper_bound(by_address_.begin(), by_address_.end(), r.base,
                             [&](Addr a, RegionId other) { return a < space_.region(other).base; });
  by_address_.insert(it, id);
  Addr at = r.base;
  if (plan.head) at += space_.granule(granules.front()).size - plan.head;
  *out = {id, at};
  return {};
}

BlockId Stitcher::take(Spot spot, Bytes size, StreamIndex by) {
  const Region& r = space_.region(spot.region);
  Addr at = spot.at, end = at + size;
  std::size_t i = view_at(r, at);
  BlockId owner = home_.blocks().make();
  BlockId last = kNoBlock;
  while (at < end) {
    // Views whose granules are neighbours at home too make one piece.
    const Granule* g = &space_.granule(r.granules[i]);
    Addr home_at = g->home + (at - r.at[i]);
    Bytes n = std::min(end, r.at[i] + g->size) - at;
    while (at + n < end && space_.granule(r.granules[i + 1]).home == home_at + n) {
      i++;
      g = &space_.granule(r.granules[i]);
      n = std::min(end, r.at[i] + g->size) - at;
    }
    i++;
    Place place = home_.at(home_at, n, by);
    DYMEM_CHECK(bool(place), "a stitched range is not free at home");
    BlockId piece = home_.take(place, n, BlockKind::lent);
    home_.block(piece).owner = owner;
    if (last == kNoBlock) home_.block(owner).next_piece = piece;
    else home_.block(last).next_piece = piece;
    last = piece;
    at += n;
  }
  Block& b = home_.block(owner);
  b.at = spot.at;
  b.size = size;
  b.kind = BlockKind::stitched;
  b.region = spot.region;
  b.arena = kMainArena;
  usage_[spot.region].held++;
  usage_[spot.region].used_at = now_;
  return owner;
}

void Stitcher::release(BlockId id, LastUse use) {
  RegionId region = home_.block(id).region;
  for (BlockId piece = home_.block(id).next_piece; piece != kNoBlock;) {
    BlockId next = home_.block(piece).next_piece;
    home_.release(piece, use);
    piece = next;
  }
  home_.blocks().drop(id);
  note_release(region, use);
  if (space_.region(region).broken) drop(region);
}

void Stitcher::note_release(RegionId id, LastUse use) {
  Usage& usage = usage_[id];
  usage.held--;
  std::erase_if(usage.last_uses, [&](LastUse u) {
    if (u.stream != use.stream) return streams_.finished(u);
    use.epoch = std::max(use.epoch, u.epoch);  // a block that was pending was freed long ago, others since
    return true;
  });
  usage.last_uses.push_back(use);
}

bool Stitcher::finished(RegionId id) const {
  for (LastUse u : usage_[id].last_uses)
    if (!streams_.finished(u)) return false;
  return true;
}

bool Stitcher::drop(RegionId id) {
  if (usage_[id].held || !finished(id) || streams_.any_capturing() || !space_.drop_region(id).ok()) return false;
  usage_[id] = Usage{};
  std::erase(by_address_, id);
  return true;
}

void Stitcher::retire() {
  std::uint64_t old = now_ > kCallsOld ? now_ - kCallsOld : 0;
  std::vector<std::pair<std::uint64_t, RegionId>> idle;
  for (RegionId id : by_address_) {
    if (usage_[id].held) continue;
    std::uint64_t used_at = space_.region(id).broken ? 0 : usage_[id].used_at;
    if (used_at < old || views() > views_allowed()) idle.push_back({used_at, id});
  }
  waiting_ = false;
  if (idle.empty() || streams_.any_capturing()) return;
  std::sort(idle.begin(), idle.end());
  std::uint64_t target = views_allowed() / 8 * 7;
  for (auto& [used_at, id] : idle) {
    if (used_at >= old && views() <= target) break;
    if (!drop(id)) waiting_ = true;
  }
  // With one stream no events are recorded: ask for one now; what it covers is dropped next time.
  if (waiting_ && !streams_.has_unfinished()) streams_.close_all();
}

void Stitcher::drop_idle() {
  std::vector<RegionId> all = by_address_;
  for (RegionId id : all) drop(id);
}

}  // namespace dymem
