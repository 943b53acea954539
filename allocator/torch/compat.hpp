// What differs between the versions of torch that the adapter is built against; nowhere else is a version looked at.
//
// torch 2.11 to 2.14 differ in virtual functions that came later. Where a parameter's type came with the function,
// its name cannot be written for the older headers, so the type is read off the function if it is there (and is a
// placeholder if not, which makes the adapter's function an ordinary one that nobody calls). Functions whose parameter
// types are old are declared without `override`, which is right in both cases: the compiler checks nothing, but
// the tests call each of them through torch. No version numbers, so a release in between needs no edit.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

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

template <class Function>
OomRejectionObserver rejection_observer(Function function) {
  if constexpr (std::is_constructible_v<OomRejectionObserver, Function>) return OomRejectionObserver(std::move(function));
  else return {};
}

template <class Observer>
void call_rejection_observer(const Observer& observer, std::int64_t device, size_t asked, size_t live, size_t total) {
  if constexpr (std::is_invocable_v<Observer, std::int64_t, size_t, size_t, size_t>)
    observer(device, asked, live, total);
}

// PYTORCH_ALLOC_CONF=throw_on_cudamalloc_oom:True
template <class Config = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig>
bool throw_on_oom() {
  if constexpr (requires { Config::throw_on_cudamalloc_oom(); }) return Config::throw_on_cudamalloc_oom();
  else return false;
}

// The number of the trace action "annotate" (torch 2.12 and later), or -1.
template <class Entry>
constexpr int annotate_action() {
  if constexpr (requires { Entry::ANNOTATE; }) return static_cast<int>(Entry::ANNOTATE);
  else return -1;
}

// Is the text of setUserMetadata() the calling thread's, or the current device's as in the first versions that had it?
template <class Allocator>
constexpr bool metadata_of_thread() {
  return requires(Allocator& allocator) { allocator.supportsUserMetadata(); };
}
constexpr bool kMetadataOfThread = metadata_of_thread<Base>();

// Fields of AllocatorConfigInfo that came later.
template <class Info, class Config = c10::CachingAllocator::AcceleratorAllocatorConfig>
void fill_later_config(Info& info) {
  if constexpr (requires { info.max_round_threshold; }) {
    info.max_round_threshold = Config::pinned_max_round_threshold();
    info.max_cached_size = Config::pinned_max_cached_size();
  }
}

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

}  // namespace dymem::torch_compat
