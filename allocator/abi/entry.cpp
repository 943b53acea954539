// See entry.hpp (A1, A2).
#include "abi/entry.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>

#include "abi/registry.hpp"
#include "base/pointers.hpp"

namespace dymem {
namespace {

constexpr int kCudaDeinitialized = 4;  // CUDA_ERROR_DEINITIALIZED: the process is on its way out

std::atomic<double>* fractions() {
  static std::atomic<double>* const values = [] {
    auto* made = new std::atomic<double>[kDevicesMax];
    for (int i = 0; i < kDevicesMax; ++i) made[i] = 1.0;
    return made;
  }();
  return values;
}

void warn_reduced_route() noexcept {
  static std::atomic<bool> told{false};
  if (told.load(std::memory_order_relaxed) || told.exchange(true)) return;
  std::fprintf(
      stderr,
      "dymem: loaded through CUDAPluggableAllocator, the reduced route: PyTorch's memory statistics raise, "
      "record_stream and empty_cache do nothing unless registered (dymem_record_stream, dymem_empty_cache), and CUDA "
      "graphs are refused; call dymem.install() instead for all of it.\n");
}

}  // namespace

// Frees that fail are told of a few times, not once per tensor of a large model.
void complain_of_free(const std::string& why) noexcept {
  static std::atomic<int> told{0};
  if (told.fetch_add(1) < 3) std::fprintf(stderr, "dymem: a block could not be freed and is kept: %s\n", why.c_str());
}

bool free_quietly_if_held(Addr address) noexcept {
  try {
    Pool* const owner = pool_of(address);
    return owner ? owner->free_if_held(address) : forked();
  } catch (const DriverError& error) {
    if (error.code != kCudaDeinitialized) complain_of_free(error.what());
  } catch (const std::exception& error) {
    complain_of_free(error.what());
  } catch (...) {
    complain_of_free("unknown error.");
  }
  return true;
}

void free_quietly(Addr address) noexcept {
  if (!free_quietly_if_held(address))
    complain_of_free("dymem: free of " + human_address(address) +
                     ", which is not a block that is held: freed twice, or from another allocator");
}

void set_memory_fraction(int device, Pool& pool, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    char text[40];  // all its digits: rounded, what is a little above 1 would read as 1
    const std::string number(text, std::to_chars(text, text + sizeof text, fraction).ptr);
    throw InvalidArgument("dymem: the memory fraction must be from 0 to 1, not " + number + ".");
  }
  static std::mutex* const mutex = new std::mutex;  // two that set it leave limit and fraction of one of them
  std::lock_guard lock(*mutex);
  const Bytes configured = process_config().pool.limit;
  const Bytes total = pool.driver().memory().total;
  // A limit of 0 means none: a fraction of 0 becomes the smallest limit there is, all of the device becomes none.
  const Bytes share = std::max<Bytes>(1, static_cast<Bytes>(fraction * static_cast<double>(total)));
  if (fraction == 1.0) pool.set_limit(configured);
  else pool.set_limit(configured ? std::min(configured, share) : share);
  fractions()[device] = fraction;
}

double memory_fraction(int device) {
  if (device < 0 || device >= kDevicesMax)
    throw InvalidArgument("dymem: there is no device " + std::to_string(device) + "; devices are numbered from 0.");
  return fractions()[device].load();
}

Bytes trim_all() {
  const ForeignCall call;
  Bytes given_back = 0;
  for (int device = 0; device < kDevicesMax; ++device)
    if (Pool* made = pool_if_made(device)) given_back += made->trim();
  return given_back;
}

bool base_allocation(Addr address, Addr* base, Bytes* size) {
  BlockInfo block;
  Pool* owner = pool_of(address);
  if (!owner || !owner->find(address, &block)) return false;
  *base = block.address;
  *size = block.size;
  return true;
}

}  // namespace dymem

using namespace dymem;

void* dymem_malloc(std::size_t size, int device, void* stream) {
  warn_reduced_route();
  if (size == 0) return nullptr;
  Pool* made = pool_if_made(device);
  Pool& from = made ? *made : pool(device);
  // PyTorch says nothing of private pools on this route, so a replay would write to what others have by then.
  if (from.driver().is_capturing(to_stream(stream)))
    throw InvalidArgument("dymem: loaded through CUDAPluggableAllocator it cannot keep the memory of captured CUDA graphs for "
                          "them; call dymem.install() instead, which does.");
  return reinterpret_cast<void*>(from.malloc(size, to_stream(stream)));
}

void dymem_free(void* address, std::size_t, int, void*) noexcept {
  if (address) free_quietly(to_addr(address));
}

void dymem_record_stream(void* address, void* stream) {
  if (!address) return;
  if (Pool* owner = pool_of(to_addr(address))) owner->record_stream(to_addr(address), to_stream(stream));
}

void dymem_empty_cache() { trim_all(); }

void dymem_set_memory_fraction(double fraction, int device) { set_memory_fraction(device, pool(device), fraction); }

void* dymem_base_allocation(void* address, std::size_t* size) {
  Addr base = 0;
  Bytes bytes = 0;
  if (!base_allocation(to_addr(address), &base, &bytes))
    throw InvalidArgument("dymem: no block that dymem handed out holds this address.");
  if (size) *size = bytes;
  return reinterpret_cast<void*>(base);
}
