#include "space/dormitory.hpp"

#include <algorithm>

namespace dymem {

Dormitory::~Dormitory() {
  for (GranuleId id = 0; id < asleep_.size(); id++) {
    if (!asleep_[id]) continue;
    for (const Run& run : runs({id}))
      for (const View& view : run)
        if (!unmapped_.count(view.at)) space_.leftovers_.unmap(view.at, view.size);
    if (Handle handle = space_.granule(id).handle) space_.leftovers_.destroy(handle);
    give_up_views(id);
    forget(id);
  }
}

void Dormitory::mark(GranuleId id, bool asleep) {
  if (asleep_.size() <= id) asleep_.resize(id + 1);
  if (asleep_[id] == asleep) return;
  asleep_[id] = asleep;
  const Bytes size = space_.granule(id).size;
  if (asleep) count_++, bytes_ += size;
  else count_--, bytes_ -= size;
}

std::vector<Dormitory::Run> Dormitory::runs(const std::vector<GranuleId>& granules) const {
  std::vector<View> views;
  for (GranuleId id : granules) {
    const Granule& g = space_.granule(id);
    views.push_back({g.home, g.size, id, 0});
    for (RegionId r : g.regions) {
      const Region& region = space_.region(r);
      for (std::size_t i = 0; i < region.granules.size(); i++)
        if (region.granules[i] == id) views.push_back({region.at[i], g.size, id, 1 + std::uint64_t{r}});
    }
  }
  std::sort(views.begin(), views.end(), [](const View& a, const View& b) { return a.at < b.at; });
  std::vector<Run> all;
  for (const View& view : views) {
    const bool joins = !all.empty() && all.back().back().group == view.group &&
                       all.back().back().at + all.back().back().size == view.at;
    if (!joins) all.emplace_back();
    all.back().push_back(view);
  }
  return all;
}

Status Dormitory::unmap(const Run& run) {
  const Status status = driver_.unmap(begin(run), size(run));
  if (!status.ok()) return status;
  for (const View& view : run) {
    space_.uncount_view(view.size);
    unmapped_.insert(view.at);
  }
  return status;
}

// What the driver will not take back of a run that failed is the space's leftovers: swept before the next try.
Status Dormitory::map(const Run& run) {
  Status status;
  Addr end = begin(run);
  for (const View& view : run) {
    status = driver_.map(view.at, view.size, space_.granule(view.granule).handle);
    if (!status.ok()) break;
    end = view.at + view.size;
  }
  if (status.ok()) status = driver_.set_access(begin(run), size(run));
  if (!status.ok()) {
    if (end > begin(run)) space_.leftovers_.unmap(begin(run), end - begin(run));
    return status;
  }
  for (const View& view : run) {
    space_.count_view(view.size);
    unmapped_.erase(view.at);
  }
  return status;
}

Status Dormitory::drop_unneeded(GranuleId id, const NeedsView& needed) {
  Granule& g = space_.granule(id);
  for (std::size_t k = 0; k < g.regions.size();) {
    Region& region = space_.region(g.regions[k]);
    const auto i = std::size_t(std::find(region.granules.begin(), region.granules.end(), id) - region.granules.begin());
    if (needed(g.regions[k], i)) {
      k++;
      continue;
    }
    const Status status = driver_.unmap(region.at[i], g.size);
    if (!status.ok()) return status;
    space_.uncount_view(g.size);
    region.granules[i] = kNone;
    region.broken = true;
    g.regions.erase(g.regions.begin() + std::ptrdiff_t(k));
  }
  return {};
}

Status Dormitory::put(const std::vector<GranuleId>& granules, const NeedsView& needed, bool* stuck) {
  *stuck = false;
  Status status = space_.sweep();
  for (std::size_t i = 0; status.ok() && i < granules.size(); i++) status = drop_unneeded(granules[i], needed);
  if (!status.ok()) return status;
  const std::vector<Run> all = runs(granules);
  std::size_t done = 0;
  for (; done < all.size(); done++)
    if (status = unmap(all[done]); !status.ok()) break;
  if (!status.ok()) {
    while (done-- > 0)
      if (!map(all[done]).ok()) *stuck = true;
    if (*stuck)
      for (GranuleId id : granules) mark(id, true);
    return status;
  }
  for (GranuleId id : granules) {
    Granule& g = space_.granule(id);
    space_.leftovers_.destroy(g.handle);
    g.handle = 0;
    space_.count_memory(g, -1);
    mark(id, true);
  }
  return {};
}

Status Dormitory::wake(const std::vector<GranuleId>& granules, const std::function<Restored()>& restore) {
  Status status = space_.sweep();
  if (!status.ok()) return status;
  std::vector<GranuleId> fresh;
  std::vector<Run> mapped;
  for (GranuleId id : granules) {
    Granule& g = space_.granule(id);
    if (g.handle) continue;
    status = driver_.create(g.size, &g.handle);
    if (!status.ok()) {
      g.handle = 0;
      break;
    }
    fresh.push_back(id);
  }
  if (status.ok()) {
    for (Run& run : runs(granules)) {
      // Of granules that are held some views are mapped: the rest of the run is mapped in pieces.
      std::erase_if(run, [&](const View& view) { return !unmapped_.count(view.at); });
      for (std::size_t i = 0; status.ok() && i < run.size();) {
        std::size_t j = i + 1;
        while (j < run.size() && run[j - 1].at + run[j - 1].size == run[j].at) j++;
        mapped.emplace_back(run.begin() + std::ptrdiff_t(i), run.begin() + std::ptrdiff_t(j));
        status = map(mapped.back());
        if (!status.ok()) mapped.pop_back();
        i = j;
      }
      if (!status.ok()) break;
    }
  }
  bool under_way = false;
  if (status.ok()) {
    const Restored restored = restore();
    status = restored.status;
    under_way = restored.under_way;
  }
  if (!status.ok() && !under_way) {
    for (const Run& run : mapped) {
      space_.leftovers_.unmap(begin(run), size(run));
      for (const View& view : run) {
        space_.uncount_view(view.size);
        unmapped_.insert(view.at);
      }
    }
    for (GranuleId id : fresh) {
      space_.leftovers_.destroy(space_.granule(id).handle);
      space_.granule(id).handle = 0;
    }
    return status;
  }
  for (GranuleId id : fresh) space_.count_memory(space_.granule(id), 1);
  if (status.ok())
    for (GranuleId id : granules) mark(id, false);
  return status;
}

void Dormitory::give_up_views(GranuleId id) {
  Granule& g = space_.granule(id);
  for (RegionId r : g.regions) {
    Region& region = space_.region(r);
    for (std::size_t i = 0; i < region.granules.size(); i++)
      if (region.granules[i] == id) {
        unmapped_.erase(region.at[i]);
        region.granules[i] = kNone;
        region.broken = true;
      }
  }
  g.regions.clear();
}

void Dormitory::forget(GranuleId id) {
  Granule& g = space_.granule(id);
  space_.told(TraceKind::segment_free, g.home, g.size);
  mark(id, false);
  unmapped_.erase(g.home);
  space_.set_slots(g.home, g.size, 0);
  g = Granule{};
  space_.spare_granules_.push_back(id);
}

}  // namespace dymem
