// What a driver says of a call that its contract forbids, or that this device cannot do, whichever driver it is.
#pragma once
#include "driver/cuda_abi.hpp"
#include "driver/driver.hpp"

namespace dymem {

inline Status invalid(const char* call) { return {Code::invalid, call, cuda_abi::kErrorInvalidValue}; }
inline Status unsupported(const char* call) { return {Code::unsupported, call, cuda_abi::kErrorNotSupported}; }

}  // namespace dymem
