// Granules asleep: the device has their memory back, while their records, their home addresses and the views of them
// that blocks need stay reserved. Waking creates new memory and maps it at every one of those addresses.
//
//   Z1  A granule is awake, or asleep and *emptied* (handle 0: the device has its memory), or asleep and *held* (its
//       memory is ours, mapped or not: the driver failed in the middle and would not undo).
//   Z2  put() and wake() are all or nothing; where the driver lets neither finish nor undo, put() leaves every granule
//       asleep and held: no byte is lost, and wake() maps what is missing.
//   Z3  Space::reserved(), views and granule counts are those of what is mapped: nothing for emptied granules.
//   Z4  A view is unmapped once and mapped once: views of a sleeping granule are in unmapped_ or mapped.
// Lock: the pool's. Cost: driver calls for every view and handle of the granules.
#pragma once
#include <functional>
#include <unordered_set>
#include <vector>

#include "space/space.hpp"

namespace dymem {

class Dormitory {
 public:
  Dormitory(Space& space, Driver& driver) : space_(space), driver_(driver) {}
  ~Dormitory();  // forgets all, so that the space can be taken down

  bool empty() const { return count_ == 0; }
  bool holds(GranuleId id) const { return id < asleep_.size() && asleep_[id]; }
  bool emptied(GranuleId id) const { return holds(id) && space_.granule(id).handle == 0; }
  Bytes bytes() const { return bytes_; }  // of the granules asleep

  // Puts granules to sleep. No work uses them. Views in regions that no block needs (`needed` says no) are given up for
  // good. `stuck`: the call failed and could not be undone (Z2).
  using NeedsView = std::function<bool(RegionId region, std::size_t view)>;
  Status put(const std::vector<GranuleId>& granules, const NeedsView& needed, bool* stuck);
  // Makes them usable again: memory, views, and then `restore` for their contents; all or nothing. Where restoring fails
  // with copies still under way, nothing is unmapped: the granules stay asleep and held.
  struct Restored {
    Status status;
    bool under_way;
  };
  Status wake(const std::vector<GranuleId>& granules, const std::function<Restored()>& restore);
  // An emptied granule that nothing needs any more: its views go; once its home bytes are free and removed, forget().
  void give_up_views(GranuleId id);
  void forget(GranuleId id);

 private:
  struct View {
    Addr at;
    Bytes size;
    GranuleId granule;
    std::uint64_t group;  // views of one group may be mapped or unmapped in one call: home, or one region
  };
  using Run = std::vector<View>;  // adjacent, in one group
  std::vector<Run> runs(const std::vector<GranuleId>& granules) const;
  Status drop_unneeded(GranuleId id, const NeedsView& needed);
  Status unmap(const Run& run);
  Status map(const Run& run);
  void mark(GranuleId id, bool asleep);
  static Addr begin(const Run& run) { return run.front().at; }
  static Bytes size(const Run& run) { return run.back().at + run.back().size - run.front().at; }

  Space& space_;
  Driver& driver_;
  std::vector<bool> asleep_;            // by granule
  std::unordered_set<Addr> unmapped_;   // views of sleeping granules that are not mapped
  std::size_t count_ = 0;
  Bytes bytes_ = 0;
};

}  // namespace dymem
