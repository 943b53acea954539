// What a user may set of a pool. One list of keys: dymem.Config, DYMEM_CONF and `dymem run` use the same names.
#pragma once
#include "base/backing.hpp"
#include "base/units.hpp"

namespace dymem {

// How blocks of the classes share a slab, and granules as far as that has a meaning there (placement.hpp). What is
// untagged lies by best fit under best_fit and grouped.
enum class Placement : std::uint8_t {
  best_fit,  // no classes (CNMeM)
  two_ends,  // the paper's: movable from the low end, temporary from the high end, neither in the other's part
  by_size,   // no classes: small blocks from the high end, others from the low end
  grouped,   // movable in the low part only; temporary at the high end, or in what is free of the low part
};

struct PoolConfig {
  Bytes limit = 0;  // bytes the pool may hold of the device; 0 = none
  Backing backing = Backing::automatic;
  bool alias = true;   // stitch idle granules by mapping them a second time; false: unmap and map again
  bool wait = true;    // a copy or collective stream waits (on the device) for memory that the busiest stream
                       // freed a while ago, before the pool grows past its budget; false: it grows
  bool debug = false;  // one mapping per block, with guard pages: for compute-sanitizer
  // Growing beyond the running peak of occupied bytes, before stitching: peak * (1 + grow_ratio) + grow_slack; five
  // times grow_ratio where several streams are at work.
  double grow_ratio = 0.003;
  Bytes grow_slack = 8 * kMiB;
  Placement placement = Placement::grouped;  // for comparisons: no key of the user's
};

}  // namespace dymem
