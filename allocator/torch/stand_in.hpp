// For tests without a GPU: an allocator that stands where PyTorch's own would stand behind forwarded.hpp. Blocks are
// memory of the host, each a segment of its own; private pools, filters, use counts, checkpoints, a cap, the order in
// which memory is looked for and the callbacks it runs under its lock are as PyTorch's allocator does them.
//
// Every call first takes and lets go of each lock of ours: a caller that holds one hangs and fails the test (F1).
#pragma once
#include <pybind11/pybind11.h>

namespace dymem {

void bind_stand_in(pybind11::module_& m);

}  // namespace dymem
