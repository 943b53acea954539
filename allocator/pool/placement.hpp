// Where in a slab a block of a class goes: which holes it may have, in which order, and at which end. Pure.
//
// An open slab (slabs.hpp) has a low part and a high part with the gap between them. Holes of the parts named here are
// tried in turn, best fit in each or, of the holes that fit best, the outermost: the farthest from the gap. Failing that
// the block goes to the gap, at the end of the part it belongs to. The gap is always last, so where a block goes does
// not depend on how large the slab is: `size - squeeze` is what a slab must have. In a hole a block lies at the same
// end as it would in the gap, a tiny one at the other.
#pragma once
#include "base/units.hpp"
#include "pool/config.hpp"
#include "pool/mobility.hpp"

namespace dymem {

// The incremental part is a slab of its own, which only two_ends has (the paper's incremental space, outside the main
// one).
enum Parts : std::uint8_t {
  kNoPart = 0,
  kLowPart = 1,
  kHighPart = 2,
  kAnyPart = 3,
  kIncrementalPart = 4,
  kEveryPart = 7,  // where a request fits nowhere else
};

enum class Choice : std::uint8_t {
  best,       // the hole that fits best
  opposite,   // the same, at its other end
  outermost,  // of the holes that fit best the outermost, at its outer end; of one part
};

struct PartsFor {
  Parts first = kAnyPart, then = kNoPart;
  bool high = false;  // at the high ends of holes and of the gap
  Choice in_first = Choice::best, in_then = Choice::best;
};

constexpr Bytes kBySizeMax = kMiB;  // PyTorch's border between small and large

// Below this a block is tiny beside those that decide how large a slab must be: statistics, biases, gradients of them.
// Decision 0010 says what other borders do.
constexpr Bytes kTinyMax = 32 * kKiB;

// Blocks that go to the incremental part while there is room in it, and elsewhere lie as movable ones.
constexpr bool incremental(Placement placement, Mobility mobility) {
  return placement == Placement::two_ends && mobility == Mobility::reclaimed;
}

// `at_ends`: outermost holes are worth looking for. That is where some slab is open; where streams beside the one that
// does most of the work do much, they need what is finished, and its own memory comes first (decision 0005).
constexpr PartsFor parts_for(Placement placement, Mobility mobility, Bytes size, bool at_ends) {
  const bool temporary = mobility == Mobility::temporary;
  switch (placement) {
    case Placement::best_fit:
      return {};
    case Placement::two_ends:
      return temporary ? PartsFor{kHighPart, kNoPart, true} : PartsFor{kLowPart, kNoPart, false};
    case Placement::by_size:
      return size <= kBySizeMax ? PartsFor{kHighPart, kNoPart, true} : PartsFor{kLowPart, kNoPart, false};
    case Placement::grouped:
      break;
  }
  // What lives long never goes among what is short-lived, where it would hold the high part open; what is short-lived
  // may go anywhere, since it will be gone soon, its own part first and far from the gap, which so is wide again when it
  // is gone. What has no class beside others that do has outlived its iteration most often: at either end of the slab it
  // is least in the way. Where nothing has a class there are no parts.
  // Tiny blocks keep out of the way of large ones: in the smallest hole of either part, and there at the end from which
  // large ones of their class do not come. What is left of a hole stays in one piece then, where tiny gradients would
  // else lie at the front of every hole that activations leave.
  const bool tiny = size < kTinyMax;
  if (tiny && (temporary || (at_ends && mobility != Mobility::untagged)))
    return {kAnyPart, kNoPart, temporary, Choice::opposite};
  if (temporary) return {kHighPart, kLowPart, true, at_ends ? Choice::outermost : Choice::best};
  if (mobility != Mobility::untagged) return {kLowPart, kNoPart, false};
  return at_ends ? PartsFor{kHighPart, kLowPart, false, Choice::outermost, Choice::outermost} : PartsFor{};
}

// Granules: temporary blocks from here on lie at the high ends of runs. Smaller ones hold whole granules open there
// that the low end could have shared, and those cannot be stitched (decision 0010).
constexpr Bytes kHighMin = 8 * kMiB;

// What a class counts as on granules, where addresses tell little and which blocks share granules tells all. Each
// class's own end is an arena apart there: the incremental one, with what is reclaimed. Small blocks have an arena of
// their own anyway.
constexpr Mobility on_granules(Placement placement, Mobility mobility, Bytes size) {
  if (placement == Placement::best_fit || placement == Placement::by_size) return Mobility::untagged;
  if (mobility != Mobility::temporary) return mobility;
  if (placement == Placement::two_ends) return Mobility::reclaimed;
  return size < kHighMin ? Mobility::untagged : mobility;
}

}  // namespace dymem
