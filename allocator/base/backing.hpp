// Where physical memory comes from; one noun in C++, Python and docs.
#pragma once
#include <cstdint>

namespace dymem {

enum class Backing : std::uint8_t {
  automatic,   // vmm where the device has it, else contiguous
  vmm,         // granules
  contiguous,  // slabs; reserved = their high-water marks (CNMeM's shape)
};

}  // namespace dymem
