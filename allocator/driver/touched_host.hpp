// Host memory that is there: anonymous pages, huge where the system has them, written once before they are used.
// A driver pins pages that exist several times faster than it makes pinned ones (decision 0006), and a machine that is
// short of memory is told so by whoever pins them, not by a fault later.
#pragma once
#include "base/units.hpp"

namespace dymem {

// 0, or errno; nothing is left behind then. `out` is aligned to 2 MiB.
int map_host(Bytes size, void** out);
void unmap_host(void* base, Bytes size);
// Writes to every page, with as many threads as help; the bytes are zeros before and after.
void touch_host(void* base, Bytes size);

}  // namespace dymem
