// Our errors as PyTorch's.
#pragma once
#include <c10/util/Exception.h>

#include <string>

namespace dymem {

// Sentences are put together by the caller and not by TORCH_CHECK, whose formatting of numbers (standard streams,
// inlined into this library) was seen to crash with torch 2.11 and g++ 13.3; the cause is not known, only that this
// does not.
[[noreturn]] inline void raise(const std::string& sentence) { TORCH_CHECK(false, sentence); }

}  // namespace dymem
