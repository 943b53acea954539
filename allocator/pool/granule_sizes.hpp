// How large the granules are that make up `need` new bytes. Driver time goes by the number of handles, memory lost to
// partly used granules by their size. Granules no larger than the request that makes them keep every freed block
// stitchable; small pools take larger ones, because their steps are short and a handle costs the same; large pools take
// smaller ones, because their steps are long and their blocks meet in more granules. Decision 0004 has the sweep over all
// recordings behind these constants.
#pragma once
#include <algorithm>
#include <bit>
#include <vector>

#include "base/units.hpp"

namespace dymem {

struct GranuleSizes {
  static constexpr Bytes kLadder[] = {2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB};

  // The largest granule for a request of `size` bytes when the pool holds `reserved`. Under a limit memory is what is
  // short: smaller ones, so that less is lost to granules that are used in part, the smaller the limit; and at least two
  // to a block, so that a block of another size which comes to lie there strands half of one at most.
  static constexpr Bytes kSmallPool = kGiB, kSmallPoolGranule = 8 * kMiB;
  static constexpr Bytes kFinePool = 8 * kGiB, kFinePoolGranule = 16 * kMiB;
  static constexpr Bytes kLimitedLeast = 8 * kMiB, kLimitedMost = 16 * kMiB, kLimitedHandles = 512;
  static Bytes most(Bytes size, Bytes reserved, Bytes limit, bool fine) {
    if (limit) return std::min(size / 2, std::clamp(std::bit_floor(limit / kLimitedHandles), kLimitedLeast, kLimitedMost));
    if (reserved < kSmallPool) return std::max(size, kSmallPoolGranule);
    return fine ? std::min(size, kFinePoolGranule) : size;
  }
  // Without a limit: large pools that stitch for one stream. With several, what waits for others is more than what is
  // stranded; where granules are moved instead, each of them costs an unmapping as well.
  static bool fine(Bytes reserved, Bytes limit, bool stitches, bool one_stream) {
    return !limit && stitches && one_stream && reserved >= kFinePool;
  }

  // The sizes sum to round_up(need, 2 MiB); largest first.
  static std::vector<Bytes> split(Bytes need, Bytes most) {
    std::vector<Bytes> out;
    need = round_up(need, kGranuleUnit);
    while (need) {
      Bytes pick = kLadder[0];
      for (Bytes l : kLadder)
        if (l <= std::min(most, need)) pick = l;
      out.push_back(pick);
      need -= pick;
    }
    return out;
  }
  // `need` rounded up to the largest size that fits into `room`: fewer, larger handles while there is room.
  // Not where memory counts more (a limit, a large pool): granules that end where the block does are whole when it
  // goes.
  static constexpr Bytes kLargePool = 16 * kGiB, kRounded = 8 * kMiB;
  static Bytes ask(Bytes need, Bytes room, Bytes most, bool exact) {
    Bytes best = round_up(need, kGranuleUnit);
    if (exact && need > kRounded) return best;
    for (Bytes l : kLadder)
      if (l <= most && round_up(need, l) <= room) best = std::max(best, round_up(need, l));
    return best;
  }
  static bool exact(Bytes reserved, bool limited) { return limited || reserved >= kLargePool; }
};

}  // namespace dymem
