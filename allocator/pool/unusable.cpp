// How much of what is free which request could use, counted when asked: O(free runs + granules), under the pool's lock.
#include "pool/unusable.hpp"

#include <unordered_map>

#include "pool/impl.hpp"

namespace dymem {

UnusableFree Pool::unusable_free() const {
  std::lock_guard lock(impl_->mutex);
  const Impl& p = *impl_;
  UnusableFree out;
  if (p.debug) return out;
  std::unordered_map<BlockId, Bytes> idle;  // by the head of the run
  if (p.config.alias)
    for (GranuleId g = 0; g < p.space.granules(); g++)
      if (const Granule& granule = p.space.granule(g); granule.home && granule.idle() && granule.first != kNoBlock)
        idle[p.home.run_head(granule.first)] += granule.size;
  for (int arena = 0; arena < Space::kArenas; arena++)
    p.home.index(arena).each([&](const FreeIndex::Entry& run) {
      if (const std::size_t slab = p.home.gap_at(run.at); slab != Slabs::kNoSlab)  // what is spare is not reserved
        return out.add(run.size - p.space.slabs()[slab].squeeze);
      const auto found = idle.find(run.head);
      out.add(run.size, found == idle.end() ? 0 : found->second);
    });
  return out;
}

}  // namespace dymem
