// How a held block is named to other processes: what Pool::export_memory() answers.
//
//   vmm         the granules behind the block, under a token that cannot be guessed. Blocks in the same granules share a
//               token, so that a receiver maps a granule once however many small tensors of it are sent.
//   contiguous  the slab that holds the block, under the driver's ticket.
// A receiver sees the granules (or the slab) whole, the block's neighbours included.
#pragma once
#include <array>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

using ExportToken = std::array<unsigned char, 16>;

struct ExportedMemory {
  ExportToken token = {};
  std::vector<Bytes> granules;  // their sizes, in the order of the block's addresses; empty: `slab` says it
  SlabTicket slab;
  Bytes offset = 0;  // of the block in them
};

}  // namespace dymem
