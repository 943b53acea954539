// Units and rounding. Bytes and addresses are 64-bit everywhere; sizes of blocks are multiples of 512 B.
#pragma once
#include <cstdint>

namespace dymem {

using Bytes = std::uint64_t;
using Addr = std::uint64_t;      // a device virtual address; 0 = none
using StreamId = std::uint64_t;  // the value of a CUstream; 0 = the legacy default stream
using Nanos = std::int64_t;

constexpr Bytes kKiB = Bytes{1} << 10;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;
constexpr Bytes kTiB = Bytes{1} << 40;

// Every block is a multiple of this, as in PyTorch's allocator, so that "live bytes" compare.
constexpr Bytes kBlockUnit = 512;
// The driver's granularity for physical memory on every card seen so far; asked from the driver all the same.
constexpr Bytes kGranuleUnit = 2 * kMiB;
// As what may be held at most: no limit.
constexpr Bytes kNoLimit = ~Bytes{0};
// Larger requests are refused before any arithmetic on them could overflow.
constexpr Bytes kRequestMax = Bytes{1} << 46;

constexpr Bytes round_up(Bytes x, Bytes unit) { return (x + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes x, Bytes unit) { return x / unit * unit; }
constexpr Bytes block_size(Bytes requested) { return requested == 0 ? kBlockUnit : round_up(requested, kBlockUnit); }

}  // namespace dymem
