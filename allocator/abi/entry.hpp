// The plain C symbols of libdymem: what torch.cuda.memory.CUDAPluggableAllocator(path, "dymem_malloc", "dymem_free")
// loads (the reduced route), and what its setters take as integers. dymem.install() does not go through here.
//
//   A1  dymem_malloc throws a C++ exception on exhaustion: PyTorch does not look for a null pointer, but turns an
//       exception into a Python error. A request of 0 bytes gives a null pointer, as PyTorch's allocator does. For a stream
//       that is being captured it throws, too: nobody would keep that memory for the graph.
//   A2  What frees never throws: it runs in destructors. In a forked child it does nothing.
// Locks: none of its own.
#pragma once
#include <cstddef>
#include <string>

#include "base/units.hpp"

#define DYMEM_EXPORT __attribute__((visibility("default")))

extern "C" {
DYMEM_EXPORT void* dymem_malloc(std::size_t size, int device, void* stream);
DYMEM_EXPORT void dymem_free(void* address, std::size_t size, int device, void* stream) noexcept;
// For _CUDAPluggableAllocator.set_record_stream_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn.
DYMEM_EXPORT void dymem_record_stream(void* address, void* stream);
DYMEM_EXPORT void dymem_empty_cache();
DYMEM_EXPORT void dymem_set_memory_fraction(double fraction, int device);
DYMEM_EXPORT void* dymem_base_allocation(void* address, std::size_t* size);
}

namespace dymem {

class Pool;

// Shared with the adapter: what both routes do to a pool.
void free_quietly(Addr address) noexcept;  // A2; says so once on stderr when it had to give up
bool free_quietly_if_held(Addr address) noexcept;  // false: no pool holds it, and nothing was said
void complain_of_free(const std::string& why) noexcept;  // on stderr, the first few times
// The pool's limit becomes a fraction of the device's memory, or the configured limit if that is less.
void set_memory_fraction(int device, Pool& pool, double fraction);
double memory_fraction(int device);                           // 1 until set
Bytes trim_all();                                             // every device's idle granules
bool base_allocation(Addr address, Addr* base, Bytes* size);  // the block that holds address

}  // namespace dymem
