// How large the granules are that make up `need` new bytes. Driver time goes by the number of handles, memory lost to
// partly used granules by their size; decision 0003 has the sweep over all recordings behind these constants.
#pragma once
#include <algorithm>
#include <vector>

#include "base/units.hpp"

namespace dymem {

struct GranuleSizes {
  static constexpr Bytes kLadder[] = {2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};
  static constexpr Bytes kAlwaysUpTo = 32 * kMiB;  // sizes up to here are used for any request
  static constexpr Bytes kShare = 12;              // larger ones only up to need / kShare

  // The sizes sum to round_up(need, 2 MiB); largest first.
  static std::vector<Bytes> split(Bytes need) {
    std::vector<Bytes> out;
    need = round_up(need, kGranuleUnit);
    Bytes cap = std::max(kAlwaysUpTo, need / kShare);
    while (need) {
      Bytes pick = kLadder[0];
      for (Bytes l : kLadder)
        if (l <= std::min(cap, need)) pick = l;
      out.push_back(pick);
      need -= pick;
    }
    return out;
  }
  // `need` rounded up to the largest always-used size that fits into `room`: fewer, larger handles while there is room.
  static Bytes ask(Bytes need, Bytes room) {
    Bytes best = round_up(need, kGranuleUnit);
    for (Bytes l : kLadder)
      if (l <= kAlwaysUpTo && round_up(need, l) <= room) best = std::max(best, round_up(need, l));
    return best;
  }
};

}  // namespace dymem
