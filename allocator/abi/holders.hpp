// Memory of the process's pools held by others than PyTorch (CuPy, programs in C), each under a name of its own, so that
// statistics can tell who holds what. What no name holds is PyTorch's.
//
//   H1  Bytes held under a name are those of the pool's blocks, rounded as live bytes are: names and PyTorch add up.
//   H2  Only what hold() gave can be released here, once; anything else is refused by a sentence.
//   H3  In a forked child releasing does nothing: the memory is the parent's.
// Locks: one mutex of its own around the books, never held while a pool is called. Costs a look-up in a hash table and
// an allocation from the heap for each call: not a path for millions of calls a second.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/units.hpp"

namespace dymem {

struct Held {
  std::int64_t bytes = 0, peak_bytes = 0, blocks = 0;
};

// Ready for work enqueued on `stream` from now on; 0 bytes give no memory (0). Throws as Pool::malloc, and
// InvalidArgument for a name that is empty, "torch" or longer than 64 characters, or more than 64 names.
Addr hold(Bytes bytes, int device, StreamId stream, const std::string& holder);
void release(Addr address);                         // 0 is fine
void release_quietly(Addr address) noexcept;        // for destructors, also while the process ends; see free_quietly
void use_on_stream(Addr address, StreamId stream);  // freeing waits for what is enqueued there by then
std::map<std::string, Held> held_by_others(int device);

}  // namespace dymem
