// Stitching costs time so that memory is saved. A program whose sizes recur stitches now and then, and warm steps hardly
// at all; one whose every large block has another size (caches that grow by a little at a time) stitches all the time,
// at up to a millisecond each, which is many times what it would spend on its allocator otherwise. There the pool grows
// further past the occupied peak than elsewhere until its holes fit again; not under a limit that leaves no such room:
// what would be grown into early is missing later, in granules of the wrong sizes.
//
// Counted in blocks, not by a clock, so that the same calls get the same addresses: a block may cost kStitchUs on
// average; what was spent beyond that is kept as a debt, and relief begins where it exceeds kDebtUs. What is asked is how
// often a program stitches rather than what that takes, so a stitch of gigabytes counts in full up to kFullUs only: it
// takes many in a row to tell a program that does not come to rest from the first steps of one whose blocks are large. And
// finer granules are chosen to save memory, so a stitch of them counts as one of ordinary ones would. Recorded training,
// sequences of varying length included, spends less than 1 µs a block. Decision 0004.
#include <algorithm>
#include <iterator>

#include "pool/granule_sizes.hpp"
#include "pool/impl.hpp"

namespace dymem {

constexpr double kStitchUs = 60, kDebtUs = 60'000;       // a stitch of 1 GiB: some 2,000, of fine granules 4,000
constexpr double kFullUs = 1'000, kBeyond = 0.5;         // so much in full, the rest to this share
constexpr double kFine = double(GranuleSizes::kFinePoolGranule) / double(*std::rbegin(GranuleSizes::kLadder));
constexpr double kRelief = 0.25;  // of the occupied peak

double Pool::Impl::rearranged_us() const {
  return std::max(0.0, rearranged_us_then - kStitchUs * double(calls - rearranged_at));
}

void Pool::Impl::note_rearranged(double us) {
  if (fine_granules()) us *= kFine;
  rearranged_us_then = rearranged_us() + std::min(us, kFullUs) + kBeyond * std::max(0.0, us - kFullUs);
  rearranged_at = calls;
}

BlockId Pool::Impl::try_relief(Bytes size, StreamIndex by, bool high) {
  Bytes up_to = above_peak(kRelief);
  if (rearranged_us() <= kDebtUs || (config.limit && up_to > own_limit())) return kNoBlock;
  return try_grow(kMainArena, size, by, high, std::min(up_to, space.reserved() + allowance()));
}

}  // namespace dymem
