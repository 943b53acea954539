// Addresses and streams as numbers, and as the pointers that CUDA's interfaces speak of.
#pragma once
#include <cstdint>

#include "base/units.hpp"

namespace dymem {

inline Addr to_addr(const void* pointer) { return reinterpret_cast<Addr>(pointer); }
inline StreamId to_stream(const void* stream) { return reinterpret_cast<StreamId>(stream); }
inline std::uintptr_t as_integer(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
inline void* as_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace dymem
