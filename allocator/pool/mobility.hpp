// Dymem's classes (HPDC 2020, algorithm 3 and section 3.3.3): where in the pool a block belongs.
#pragma once
#include <cstdint>

namespace dymem {

enum class Mobility : std::uint8_t {
  untagged,   // nothing known, or it outlives the iteration: as movable; in a slab wherever it fits (placement.hpp)
  movable,    // main space, from the low end
  temporary,  // main space, from the high end
  reclaimed,  // incremental space; in a slab as movable, but for two_ends
};

}  // namespace dymem
