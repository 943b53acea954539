// What a pool remembers of its sleeping granules: which they are, what hides their free bytes, where contents wait.
// Nothing outside pool/ includes this. The work is in sleep.cpp. Lock: the pool's.
//
//   Y1  Every byte of a sleeping granule lies in a block that is not free: what no caller held when it fell asleep is in
//       fillers (BlockKind::filler), what was freed since is pending (Pool::Impl::Pending::asleep).
//   Y2  contents are in order of address; each lies in one sleeping, emptied granule and in one block that was held.
#pragma once
#include <vector>

#include "pool/block.hpp"
#include "pool/host_stage.hpp"
#include "space/dormitory.hpp"

namespace dymem {

struct Asleep {
  Asleep(Space& space, Driver& driver) : dormitory(space, driver), stage(driver) {}

  struct Content {
    GranuleId granule;
    Addr at;
    Bytes size;
    HostStage::Piece host;  // may be larger: a small gap behind it is copied along
  };

  Dormitory dormitory;
  HostStage stage;
  std::vector<BlockId> fillers;
  std::vector<Content> contents;
  Bytes filler_bytes = 0;
  std::vector<GranuleId> last;  // what the last sleep() put to sleep; may be awake since
  bool everything = false;  // nothing may be handed out
  bool copying = false;     // copies may be under way, since the driver failed when it was asked to wait for them
};

}  // namespace dymem
