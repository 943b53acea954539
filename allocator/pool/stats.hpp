// Statistics, exact at every moment. The kinds and names are PyTorch's (torch.cuda.memory_stats), so that the adapter
// copies and nothing is computed twice. Bytes are block bytes (rounded to 512) except `requested`.
#pragma once
#include <cstdint>

#include "base/units.hpp"

namespace dymem {

struct Stat {  // current, peak since reset, and accumulated in both directions
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(std::int64_t n) {
    current += n;
    if (current > peak) peak = current;
    allocated += n;
  }
  void decrease(std::int64_t n) {
    current -= n;
    freed += n;
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

// PyTorch splits most statistics by pool: all, small (<= 1 MiB), large.
enum StatPool : int { kAll = 0, kSmall = 1, kLarge = 2, kStatPools = 3 };
using StatArray = Stat[kStatPools];

struct PoolStats {
  StatArray allocation;                // blocks held by callers (count)
  StatArray segment;                   // granules (contiguous: slabs) held of the device (count)
  StatArray active;                    // blocks held or pending (count)
  StatArray inactive_split;            // free blocks (count)
  StatArray allocated_bytes;           // live bytes
  StatArray reserved_bytes;            // physical bytes held, each granule once
  StatArray active_bytes;              // occupied bytes: live + pending
  StatArray inactive_split_bytes;      // free bytes within granules
  StatArray requested_bytes;           // what callers asked for
  std::int64_t num_alloc_retries = 0;  // mallocs that had to wait, trim or run callbacks at the limit
  std::int64_t num_ooms = 0;
  std::int64_t num_ooms_before_reset = 0;  // of both sides, before their totals last began anew
  std::int64_t num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0;  // granules created
  std::int64_t num_device_free = 0;   // granules destroyed
  Bytes max_split_size = 0;
  Stat forwarded_bytes;       // held by PyTorch's own allocator, for private pools: not in reserved_bytes
  Stat forwarded_live_bytes;  // of these, handed out
  // dymem's own
  std::int64_t occupied_peak = 0;      // of occupied bytes, never reset: what growing goes by
  Stat pending_bytes;                  // freed, still needed by work on some stream
  std::int64_t num_stitches = 0;       // blocks given out through newly mapped views
  std::int64_t num_stitch_reuses = 0;  // blocks given out through views that were already there
  std::int64_t num_sticky_hits = 0;    // blocks given the address they had in the same place of an earlier iteration
  std::int64_t num_stream_waits = 0;   // one stream made to wait for another (see waits.cpp)
  Stat slab_bytes;                     // contiguous backing: bytes of whole slabs, held of the device
  Bytes asleep_bytes = 0;  // of granules whose memory is the device's while they sleep: not in reserved_bytes
  Bytes host_bytes = 0;    // pinned on the host for contents of sleeping granules, kept from one sleep to the next
  Bytes exported_bytes = 0;  // of blocks that other processes were given a handle to
  std::uint64_t views = 0;             // mappings that exist now
  std::uint64_t views_max = 0;
  Bytes va_bytes = 0;  // addresses under views now
  Bytes va_bytes_max = 0;
};

}  // namespace dymem
