// What differs between the versions of torch that the adapter is built against; nowhere else is a version looked at.
//
// torch 2.11 to 2.14 differ in virtual functions that came later. Where a parameter's type came with the function,
// its name cannot be written for the older headers, so the type is read off the function if it is there (and is a
// placeholder if not, which makes the adapter's function an ordinary one that nobody calls). Functions whose parameter
// types are old are declared without `override`, which is right in both cases: the compiler checks nothing, but
// the tests call each of them through torch. No version numbers, so a release in between needs no edit.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <stdexcept>
#include <string>

namespace dymem::torch_compat {

using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;

struct Absent {};

template <class>
struct ArgumentOf;
template <class Class, class Argument>
struct ArgumentOf<void (Class::*)(Argument)> {
  using type = Argument;
};

template <class Allocator>
typename ArgumentOf<decltype(&Allocator::attachOomRejectionObserver)>::type oom_rejection_observer(int);
template <class Allocator>
Absent oom_rejection_observer(...);
// torch 2.12 and later: called when throw_on_cudamalloc_oom refuses a request.
using OomRejectionObserver = decltype(oom_rejection_observer<Base>(0));

template <class Allocator>
c10::DataPtr allocate_with_address(Allocator& allocator, size_t size, void* address) {
  if constexpr (requires { allocator.allocateWithAddress(size, address); })
    return allocator.allocateWithAddress(size, address);
  throw std::invalid_argument("this version of torch has no allocateWithAddress");
}

// torch 2.12 and later: a capture on this device begins or ends.
template <class Allocator>
void mark_capture(Allocator& allocator, c10::DeviceIndex device, bool begins) {
  if constexpr (requires { allocator.markCaptureBegin(device); }) {
    if (begins) allocator.markCaptureBegin(device);
    else allocator.markCaptureEnd(device);
  }
}

// Calls, through torch's own interface, a function that older versions lack; throws std::invalid_argument there.
template <class Allocator>
void call_later_function(Allocator& allocator, const std::string& name) {
  if constexpr (requires { allocator.attachOomRejectionObserver(nullptr); })
    if (name == "attachOomRejectionObserver") return allocator.attachOomRejectionObserver(nullptr);
  if constexpr (requires { allocator.allocateWithAddress(size_t{1}, nullptr); })
    if (name == "allocateWithAddress") return void(allocator.allocateWithAddress(1, nullptr));
  if constexpr (requires { allocator.markCaptureBegin(c10::DeviceIndex{0}); }) {
    if (name == "markCaptureBegin") return allocator.markCaptureBegin(0);
    if (name == "markCaptureEnd") return allocator.markCaptureEnd(0);
  }
  throw std::invalid_argument("this version of torch has no " + name);
}

}  // namespace dymem::torch_compat
