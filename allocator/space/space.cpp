#include "space/space.hpp"

#include <algorithm>
#include <cstdlib>

namespace dymem {

// Home addresses for the main, incremental and small arenas, as multiples of the device's memory. The main window is
// far larger than the device: what is given back leaves gaps, and filling them first keeps the window from running out.
constexpr Bytes kMainTimes = 8, kIncrementalTimes = 2, kSmallTimes = 1;
constexpr Bytes kAliasPiece = kTiB;
constexpr Bytes kRegionRoom = 4;

void Space::Free::operator()(std::uint32_t* p) const { std::free(p); }

Space::Space(Driver& driver, Backing backing)
    : driver_(driver), unit_(driver.granularity()), slabs_(driver), alias_(driver, kAliasPiece), leftovers_(driver) {
  bool vmm = driver.has_vmm() && backing != Backing::contiguous;
  if (backing == Backing::vmm && !vmm)
    throw InvalidArgument(
        "dymem: backing:vmm was asked for, but this device has no virtual memory management; "
        "use backing:auto");
  contiguous_ = !vmm;
  if (contiguous_) return;  // the first request makes the first slab
  DYMEM_CHECK(unit_ == kGranuleUnit, "granularity " + std::to_string(unit_));
  Bytes total = round_up(std::max(driver.memory().total, kGiB), kGranuleUnit);
  Bytes times = kMainTimes;
  for (;;) {  // less where the address space is scarce
    home_size_ = total * (times + kIncrementalTimes + kSmallTimes);
    Status s = driver_.reserve(home_size_, &base_);
    if (s.ok()) break;
    if (times > 1) times /= 2;
    else if (total > kGiB) total = round_up(total / 2, kGranuleUnit);
    else s.expect_ok();
  }
  windows_[0] = {base_, base_ + total * times};
  windows_[1] = {windows_[0].hi, windows_[0].hi + total * kIncrementalTimes};
  windows_[2] = {windows_[1].hi, windows_[1].hi + total * kSmallTimes};
  slots_ = home_size_ / kGranuleUnit;
  slot_.reset(static_cast<std::uint32_t*>(std::calloc(slots_, sizeof(std::uint32_t))));
  DYMEM_CHECK(slot_ != nullptr, "no host memory for the granule table");
}

Space::~Space() {
  if (contiguous_) return;
  for (RegionId r = 0; r < regions_.size(); r++)
    if (regions_[r].base) (void)drop_region(r);
  for (GranuleId g = 0; g < granules_.size(); g++)
    if (granules_[g].home) (void)give_back(g);
  (void)leftovers_.sweep();
  (void)driver_.release_addresses(base_, home_size_);
}

void Space::count_view(Bytes size) {
  views_max_ = std::max(views_max_, ++views_);
  va_max_ = std::max(va_max_, va_ += size);
}

void Space::uncount_view(Bytes size) {
  views_--;
  va_ -= size;
}

int Space::arena_of(Addr home) const {
  int a = 0;
  while (home < windows_[a].lo || home >= windows_[a].hi) a++;
  return a;
}

void Space::count_home(const Granule& g, int by) {
  int a = arena_of(g.home);
  arena_granules_[a] += std::uint64_t(std::int64_t(by));
  arena_bytes_[a] += Bytes(std::int64_t(by) * std::int64_t(g.size));
}

void Space::count_memory(const Granule& g, int by) {
  count_home(g, by);
  reserved_ += Bytes(std::int64_t(by) * std::int64_t(g.size));
  granule_count_ += std::size_t(std::ptrdiff_t(by));
  (by > 0 ? created_ : destroyed_)++;
}

void Space::set_slots(Addr at, Bytes size, std::uint32_t value) {
  for (std::uint64_t i = (at - base_) / kGranuleUnit, n = i + size / kGranuleUnit; i < n; i++) slot_[i] = value;
}

GranuleId Space::make_granule() {
  GranuleId id = GranuleId(granules_.size());
  if (spare_granules_.empty()) {
    granules_.emplace_back();
  } else {
    id = spare_granules_.back();
    spare_granules_.pop_back();
    granules_[id] = Granule{};
  }
  granules_[id].pins = keep_;
  return id;
}

void Space::keep_granules() {
  if (keep_) return;
  keep_ = true;
  for (Granule& g : granules_)
    if (g.home) g.pins++;
}

Status Space::add_home(Addr at, const std::vector<Bytes>& sizes, std::vector<GranuleId>* out) {
  std::vector<Handle> handles;
  Addr x = at;
  Status s = sweep();
  if (!s.ok()) return s;
  for (Bytes size : sizes) {
    Handle h = 0;
    s = driver_.create(size, &h);
    if (!s.ok()) break;
    s = driver_.map(x, size, h);
    if (!s.ok()) {
      leftovers_.destroy(h);
      break;
    }
    handles.push_back(h);
    x += size;
  }
  if (s.ok()) s = driver_.set_access(at, x - at);
  if (!s.ok()) {
    if (x > at) leftovers_.unmap(at, x - at);
    for (Handle h : handles) leftovers_.destroy(h);
    return s;
  }
  x = at;
  for (std::size_t i = 0; i < sizes.size(); i++) {
    GranuleId id = make_granule();
    Granule& g = granules_[id];
    g.handle = handles[i];
    g.home = x;
    g.size = sizes[i];
    set_slots(x, sizes[i], id + 1);
    x += sizes[i];
    reserved_ += sizes[i];
    granule_count_++;
    created_++;
    count_home(g, 1);
    count_view(sizes[i]);
    told(TraceKind::segment_alloc, g.home, g.size);
    if (out) out->push_back(id);
  }
  return {};
}

void Space::forget(GranuleId id) {
  Granule& g = granules_[id];
  told(TraceKind::segment_free, g.home, g.size);
  count_home(g, -1);
  set_slots(g.home, g.size, 0);
  reserved_ -= g.size;
  granule_count_--;
  destroyed_++;
  g = Granule{};
  spare_granules_.push_back(id);
}

Status Space::give_back(GranuleId id) {
  Granule& g = granules_[id];
  DYMEM_CHECK(!contiguous_, "a slab cannot be given back in parts");
  // Alias views first: each is a whole mapping of its own, so the region around it stays mapped.
  while (!g.regions.empty()) {
    Region& region = regions_[g.regions.front()];
    for (std::size_t i = 0; i < region.granules.size(); i++)
      if (region.granules[i] == id) {
        Status s = driver_.unmap(region.at[i], g.size);
        if (!s.ok()) return s;
        uncount_view(g.size);
        region.granules[i] = kNone;
        region.broken = true;
      }
    g.regions.erase(g.regions.begin());  // one by one: of what is kept, the regions that still see it
  }
  Status s = driver_.unmap(g.home, g.size);
  if (!s.ok()) return s;
  uncount_view(g.size);
  leftovers_.destroy(g.handle);
  forget(id);
  return {};
}

Status Space::move_home(GranuleId id, Addr at) {
  Granule& g = granules_[id];
  Status s = sweep();
  if (!s.ok()) return s;
  s = driver_.map(at, g.size, g.handle);
  if (s.ok()) {
    s = driver_.set_access(at, g.size);
    if (!s.ok()) leftovers_.unmap(at, g.size);
  }
  if (!s.ok()) return s;
  s = driver_.unmap(g.home, g.size);
  if (!s.ok()) {
    leftovers_.unmap(at, g.size);
    return s;
  }
  told(TraceKind::segment_free, g.home, g.size);
  told(TraceKind::segment_alloc, at, g.size);
  set_slots(g.home, g.size, 0);
  count_home(g, -1);
  g.home = at;
  count_home(g, 1);
  set_slots(at, g.size, id + 1);
  return {};
}

Status Space::add_slab(Bytes size, bool incremental) {
  Status s = slabs_.add(size);
  if (!s.ok()) return s;
  slabs_[slabs_.size() - 1].incremental = incremental;
  granule_count_++;
  created_++;
  count_view(size);
  return s;
}

void Space::raise(std::size_t i, Bytes bytes, std::vector<GranuleId>* fresh) {
  Slab& slab = slabs_[i];
  DYMEM_CHECK(bytes <= slab.room(), "a slab's mark cannot rise past its end");
  reserved_ += bytes;
  told(TraceKind::segment_alloc, slab.end(), bytes);
  add_cells(slab, bytes, fresh);
}

void Space::add_cells(Slab& slab, Bytes bytes, std::vector<GranuleId>* fresh) {
  while (bytes) {
    if (slab.mark % kCell == 0) {
      GranuleId id = make_granule();
      granules_[id].home = slab.end();
      slab.cells.push_back(id);
      fresh->push_back(id);
    }
    Bytes n = std::min(bytes, kCell - slab.mark % kCell);
    granules_[slab.cells.back()].size += n;
    slab.mark += n;
    bytes -= n;
  }
}

void Space::open_slab(std::size_t i, Addr low_end, std::vector<GranuleId>* fresh) {
  Slab& slab = slabs_[i];
  DYMEM_CHECK(!slab.open, "a slab is opened once");
  slab.spare = slab.end();
  slab.squeeze = slab.room();
  add_cells(slab, slab.room(), fresh);
  slab.open = true;
  slab.low_end = low_end;
  slab.high_start = slab.end();
}

void Space::set_gap(std::size_t i, Addr low_end, Addr high_start) {
  Slab& slab = slabs_[i];
  slab.low_end = low_end;
  slab.high_start = high_start;
  const Addr from = slab.spare, to = from + slab.squeeze;
  if (low_end <= from && to <= high_start) return;
  // What is spare moves into the gap that is left, or shrinks with it; bytes come and go where it was and where it is.
  const Bytes squeeze = std::min(slab.squeeze, slab.gap());
  reserved_ += slab.squeeze - squeeze;
  slab.squeeze = squeeze;
  slab.spare = std::min(std::max(from, low_end), high_start - squeeze);
  const Addr now = slab.spare, end = now + squeeze;
  auto tell = [&](TraceKind kind, Addr a, Addr b) {
    if (a < b) told(kind, a, b - a);
  };
  tell(TraceKind::segment_alloc, from, std::min(to, now));
  tell(TraceKind::segment_alloc, std::max(from, end), to);
  tell(TraceKind::segment_free, now, std::min(end, from));
  tell(TraceKind::segment_free, std::max(now, to), end);
}

Status Space::give_back_slab(std::size_t i) {
  const Slab before = slabs_[i];
  Status s = slabs_.give_back(i);
  if (!s.ok()) return s;
  // What was spare was never told of.
  const Addr spare = before.open ? before.spare : before.end(), end = before.end();
  if (spare > before.base) told(TraceKind::segment_free, before.base, spare - before.base);
  if (const Addr from = spare + before.squeeze; from < end) told(TraceKind::segment_free, from, end - from);
  for (GranuleId id : before.cells) {
    granules_[id] = Granule{};
    spare_granules_.push_back(id);
  }
  reserved_ -= before.needed();
  granule_count_--;
  destroyed_++;
  uncount_view(before.size);
  return s;
}

Status Space::extend_region(RegionId id, const std::vector<GranuleId>& granules) {
  Region& r = regions_[id];
  Addr from = r.base + r.size, x = from;
  Status s = sweep();
  if (!s.ok()) return s;
  for (GranuleId g : granules) {
    s = driver_.map(x, granules_[g].size, granules_[g].handle);
    if (!s.ok()) break;
    x += granules_[g].size;
  }
  if (s.ok()) s = driver_.set_access(from, x - from);
  if (!s.ok()) {
    if (x > from) leftovers_.unmap(from, x - from);
    return s;
  }
  for (GranuleId g : granules) {
    r.granules.push_back(g);
    r.at.push_back(r.base + r.size);
    r.size += granules_[g].size;
    granules_[g].regions.push_back(id);
    count_view(granules_[g].size);
  }
  return {};
}

Status Space::add_region(const std::vector<GranuleId>& granules, RegionId* out) {
  Bytes size = 0;
  for (GranuleId g : granules) size += granules_[g].size;
  // Addresses are practically free: room to extend the region later.
  Bytes capacity = size * kRegionRoom;
  Addr base = 0;
  Status s = alias_.take(capacity, &base);
  if (!s.ok()) s = alias_.take(capacity = size, &base);
  if (!s.ok()) return s;
  RegionId id;
  if (spare_regions_.empty()) {
    id = RegionId(regions_.size());
    regions_.emplace_back();
  } else {
    id = spare_regions_.back();
    spare_regions_.pop_back();
  }
  regions_[id] = Region{};
  regions_[id].base = base;
  regions_[id].capacity = capacity;
  s = extend_region(id, granules);
  if (!s.ok()) {
    regions_[id] = Region{};
    spare_regions_.push_back(id);
    alias_.give(base, capacity);
    return s;
  }
  *out = id;
  return {};
}

Status Space::drop_region(RegionId id) {
  Region& r = regions_[id];
  // Adjacent whole mappings in as few calls as the gaps allow.
  std::size_t n = r.granules.size();
  for (std::size_t i = 0; i < n;) {
    if (r.granules[i] == kNone) {
      i++;
      continue;
    }
    std::size_t j = i;
    Bytes span = 0;
    while (j < n && r.granules[j] != kNone) span += granules_[r.granules[j++]].size;
    Status s = driver_.unmap(r.at[i], span);
    if (!s.ok()) {
      r.broken = true;  // some of its views may be gone already
      return s;
    }
    for (std::size_t k = i; k < j; k++) {
      Granule& g = granules_[r.granules[k]];
      uncount_view(g.size);
      std::erase(g.regions, id);
      r.granules[k] = kNone;
    }
    i = j;
  }
  alias_.give(r.base, r.capacity);
  regions_[id] = Region{};
  spare_regions_.push_back(id);
  return {};
}

bool Space::owns(Addr at) const {
  if (contiguous_) return slabs_.of(at) != Slabs::kNoSlab;
  return (at >= base_ && at < base_ + home_size_) || alias_.owns(at);
}

}  // namespace dymem
