// See forwarded.hpp (F1..F6): allocation, the limit over both allocators, statistics. private_pools.cpp has the rest.
#include "torch/forwarded.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "abi/entry.hpp"
#include "base/pointers.hpp"
#include "torch/inside.hpp"

namespace dymem {
namespace {

// By how much one allocation may make PyTorch's allocator grow: it takes small blocks from segments of 2 MiB and larger
// ones from segments, or pages of expandable segments, of 20 MiB.
constexpr Bytes kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB;
Bytes growth_of(size_t size) { return size <= kMiB ? kSmallSegment : round_up(size, kLargeSegment); }

// How often the other is asked for figures that turn out older than those known, or from before they were reset. Each time
// another thread has come between.
constexpr int kSettleTries = 1000;

void copy(const c10::CachingAllocator::StatArray& from, StatArray& to) {
  for (int p = 0; p < kStatPools; p++) to[p] = {from[p].current, from[p].peak, from[p].allocated, from[p].freed};
}

}  // namespace

thread_local int InsideOther::depth_ = 0;

RelaxedCapture::RelaxedCapture(bool emulated) {
  if (emulated || forked()) return;  // F6: CUDA's own locks may have been held by another thread when this one forked
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess) before_ = mode;
  else (void)cudaGetLastError();
}

RelaxedCapture::~RelaxedCapture() {
  if (before_ < 0) return;
  auto mode = static_cast<cudaStreamCaptureMode>(before_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

PoolStats figures_of(const c10::CachingDeviceAllocator::DeviceStats& from) {
  PoolStats to;
  copy(from.allocation, to.allocation);
  copy(from.segment, to.segment);
  copy(from.active, to.active);
  copy(from.inactive_split, to.inactive_split);
  copy(from.allocated_bytes, to.allocated_bytes);
  copy(from.reserved_bytes, to.reserved_bytes);
  copy(from.active_bytes, to.active_bytes);
  copy(from.inactive_split_bytes, to.inactive_split_bytes);
  copy(from.requested_bytes, to.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
  return to;
}

// Bytes of the limit set aside while the other allocator is called; gone when what it took is known.
class Forwarded::Claim {
 public:
  Claim(Forwarded& forwarded, int device, Pool& pool, Bytes more)
      : forwarded_(forwarded), device_(device), pool_(pool), claimed_(pool.claim_forwarded(more)) {
    try {
      forwarded.cap(device, pool);
    } catch (...) {
      pool.end_forwarded(claimed_);  // a cap that it leaves too high comes down with the next call
      throw;
    }
  }
  ~Claim() {
    bool settled = false;
    try {
      settled = forwarded_.settle(device_);
    } catch (...) {  // its figures will be asked for again
    }
    if (!pool_.end_forwarded(claimed_, settled)) return;
    try {
      forwarded_.cap(device_, pool_);
    } catch (...) {  // the pool goes without until a call comes down, or none is under way
    }
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  Forwarded& forwarded_;
  const int device_;
  Pool& pool_;
  const Bytes claimed_;
};

native::CUDAAllocator& Forwarded::start() {
  native::CUDAAllocator* const other = other_.load();
  if (!other) {
    const std::string sentence =
        "dymem: private pools (torch.cuda.graph, torch.cuda.MemPool) need a GPU, and the emulated driver has none.";
    TORCH_CHECK_NOT_IMPLEMENTED(false, sentence);
  }
  if (started()) return *other;
  std::vector<std::function<void(native::CUDAAllocator&)>> calls;
  {
    std::lock_guard lock(start_mutex_);
    if (started()) return *other;
    int count = device_count_.load();
    if (count == 0) count = emulated_ ? dymem::device_count() : c10::cuda::device_count();
    other->init(count);
    device_count_.store(count);
    calls.swap(waiting_);
    started_.store(true, std::memory_order_release);
    draining_ = !calls.empty();
  }
  InsideOther inside;
  std::exception_ptr failed;  // the first that was: the others are made all the same
  while (!calls.empty()) {    // those that come meanwhile queue behind them
    for (const auto& call : std::exchange(calls, {})) try {
        call(*other);
      } catch (...) {
        if (!failed) failed = std::current_exception();
      }
    std::lock_guard lock(start_mutex_);
    calls.swap(waiting_);
    draining_ = !calls.empty();
  }
  if (failed) std::rethrow_exception(failed);
  return *other;
}

// --------------------------------------------------------------------------------------------- allocating and freeing

void* Forwarded::call_malloc(size_t size, int device, cudaStream_t stream) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  if (emulated_) return other.raw_alloc_with_stream(size, stream);
  c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  return other.raw_alloc_with_stream(size, stream);
}

void* Forwarded::malloc(size_t size, int device, cudaStream_t stream) {
  if (InsideOther::now())
    throw InvalidArgument(
        "dymem: the allocator of a MemPool asked PyTorch for memory, which is what asked it: it must take its memory "
        "from CUDA, or be left out.");
  Pool& pool = dymem::pool(device);
  for (bool again = false;; again = true) {
    void* pointer = nullptr;
    {
      Claim claim(*this, device, pool, again ? kNoLimit : growth_of(size));
      try {
        pointer = call_malloc(size, device, stream);
      } catch (const c10::OutOfMemoryError&) {
        if (!again) absorbed_[device].fetch_add(1);
      }
      if (pointer) remember(pointer, device);
    }
    if (pointer) return pointer;
    if (again) out_of_memory(size, device, pool);
    RelaxedCapture relaxed(emulated_);
    pool.trim();
  }
}

void* Forwarded::malloc_spare(size_t size, int device, cudaStream_t stream) {
  if (spare_count_.load(std::memory_order_relaxed) == 0 || InsideOther::now()) return nullptr;
  Pool& pool = dymem::pool(device);
  void* pointer = nullptr;
  try {
    Claim claim(*this, device, pool, 0);
    pointer = call_malloc(size, device, stream);
    remember(pointer, device);
  } catch (const c10::Error&) {
  }
  absorbed_[device].fetch_add(1);  // a failure of the other's or, if it could serve, of our pool's
  return pointer;
}

void Forwarded::out_of_memory(size_t size, int device, Pool& pool) {
  const PoolStats s = pool.stats();
  const DeviceMemory memory = pool.driver().memory();
  OutOfMemoryFigures f;
  f.requested = size;
  f.live = static_cast<Bytes>(s.allocated_bytes[kAll].current);
  f.pending = static_cast<Bytes>(s.pending_bytes.current);
  f.reserved = static_cast<Bytes>(s.reserved_bytes[kAll].current);
  f.private_pools = static_cast<Bytes>(s.forwarded_bytes.current);
  f.limit = pool.limit();
  f.device_free = memory.free;
  f.device_total = memory.total;
  f.device = device;
  throw OutOfMemory(
      f, "CUDA out of memory (dymem). Tried to allocate " + human_bytes(size) + " in a private pool (of a CUDA graph or a " +
             "MemPool) on GPU " + std::to_string(device) + ": private pools hold " + human_bytes(f.private_pools) + ", " +
             human_bytes(static_cast<Bytes>(s.forwarded_live_bytes.current)) + " of it live; outside of them live " +
             human_bytes(f.live) + ", pending " + human_bytes(f.pending) + ", reserved " + human_bytes(f.reserved) +
             ", limit " + (f.limit ? human_bytes(f.limit) : std::string("none")) + ", device " +
             human_bytes(f.device_free) + " free of " + human_bytes(f.device_total) +
             ". Let go of graphs and pools that are no longer used, let graphs share one pool, or use a smaller batch.");
}

c10::DataPtr Forwarded::allocate_with_address(size_t size, void* address) {
  native::CUDAAllocator& other = start();
  c10::DataPtr data;
  {
    const int current = emulated_ ? 0 : c10::cuda::current_device();
    Claim claim(*this, current, pool(current), growth_of(size));
    InsideOther inside;
    data = torch_compat::allocate_with_address(other, size, address);
  }
  const c10::Device device = data.device();
  void* const pointer = data.get();
  remember(pointer, device.index());
  data.release_context();
  return {pointer, pointer, deleter_, device};
}

void Forwarded::remember(void* pointer, int device) {
  try {
    std::lock_guard lock(held_mutex_);
    held_[pointer] = {device, ++remembered_};
    held_count_.store(held_.size(), std::memory_order_relaxed);
    return;
  } catch (const std::bad_alloc&) {
  }
  InsideOther inside;
  other_.load()->raw_delete(pointer);
  throw std::bad_alloc();
}

bool Forwarded::forget(const void* pointer, int* device) {
  if (held_count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(held_mutex_);
  const auto found = held_.find(pointer);
  if (found == held_.end()) return false;
  *device = found->second.device;
  held_.erase(found);
  held_count_.store(held_.size(), std::memory_order_relaxed);
  return true;
}

bool Forwarded::holds(const void* pointer) const {
  if (held_count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(held_mutex_);
  return held_.count(pointer) != 0;
}

bool Forwarded::free_quietly(void* pointer) noexcept {
  int device = 0;
  if (forked()) return true;
  if (!forget(pointer, &device)) return false;
  try {
    {
      InsideOther inside;
      other_.load()->raw_delete(pointer);
    }
    settle(device);
  } catch (const c10::Error& error) {
    complain_of_free(error.what_without_backtrace());
  } catch (const std::exception& error) {
    complain_of_free(error.what());
  } catch (...) {
    complain_of_free("unknown error.");
  }
  return true;
}

void Forwarded::record_stream(void* pointer, c10::cuda::CUDAStream stream) {
  native::CUDAAllocator& other = start();
  int device = 0;
  {
    std::lock_guard lock(held_mutex_);
    const auto found = held_.find(pointer);
    if (found == held_.end()) return;
    device = found->second.device;
  }
  const auto index = static_cast<c10::DeviceIndex>(device);
  // The other allocator only looks at data with its own deleter; this one is never run.
  c10::DataPtr view(pointer, pointer, other.raw_deleter(), {c10::DeviceType::CUDA, index});
  try {
    InsideOther inside;
    other.recordStream(view, stream);
  } catch (...) {
    view.release_context();
    throw;
  }
  view.release_context();
}

void* Forwarded::base_allocation(void* pointer, size_t* size) {
  InsideOther inside;
  return other_.load()->getBaseAllocation(pointer, size);
}

// What is asked for may be allocated in an open pool: then what lies idle there counts.
void Forwarded::cache_info(c10::DeviceIndex device, size_t* largest) {
  if (!started() || !any_open()) return;
  size_t found = 1;  // zero would ask for a guess
  InsideOther inside;
  other_.load()->cacheInfo(device, &found);
  *largest = std::max(*largest, found);
}

// ------------------------------------------------------------------------------------------ the limit over both, trimming

// What the other allocator takes fractions of.
Bytes Forwarded::total_memory(int device) {
  Bytes known = totals_[device].load();
  if (known) return known;
  if (emulated_) {
    known = pool(device).driver().memory().total;
  } else {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    known = properties.totalGlobalMem;
  }
  totals_[device].store(known);
  return known;
}

void Forwarded::cap(int device, Pool& pool) {
  native::CUDAAllocator& other = start();
  std::lock_guard lock(cap_mutexes_[device]);
  Bytes& last = caps_[device];
  const auto [most, fell] = pool.give_forwarded_cap();
  if (last != most) {
    const double total = static_cast<double>(total_memory(device));
    // Half a byte more, so that rounding the product down gives the very number.
    const double fraction = most == kNoLimit ? 1.0 : std::min(1.0, (static_cast<double>(most) + 0.5) / total);
    last = kUnknownCap;  // should it fail
    InsideOther inside;
    other.setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
    last = most;
  }
  if (!fell) return;
  if (settle(device)) pool.forwarded_lowered(most);  // what was taken under the higher cap is known
}

bool Forwarded::settle(int device) {
  Pool* const pool = pool_if_made(device);
  if (!pool || !started()) return false;
  for (int tries = 0; tries < kSettleTries; tries++) {
    const std::uint64_t era = pool->forwarded_era();
    PoolStats figures;
    {
      InsideOther inside;
      figures = figures_of(other_.load()->getDeviceStats(static_cast<c10::DeviceIndex>(device)));
    }
    const std::int64_t absorbed = absorbed_[device].load();
    figures.num_ooms -= absorbed;
    figures.num_alloc_retries += absorbed;
    if (pool->settle_forwarded(figures, era)) return true;
    std::this_thread::yield();
  }
  return false;
}

void Forwarded::settle_all() {
  for (int device = 0; device < device_count_.load() && device < kDevicesMax; device++) settle(device);
}

void Forwarded::empty_cache(c10::MempoolId_t id) {
  if (!started()) return;
  {
    InsideOther inside;
    other_.load()->emptyCache(id);
  }
  settle_all();
}

Bytes Forwarded::reclaim(int device) {
  Pool* const pool = pool_if_made(device);
  if (!started() || !pool || InsideOther::now()) return 0;
  settle(device);  // calls that ended unsettled leave their claims until then
  const auto held = [&] { return pool->stats().forwarded_bytes.current; };
  const auto before = held();
  if (before) empty_cache({0, 0});
  return static_cast<Bytes>(std::max<std::int64_t>(0, before - held()));
}

// --------------------------------------------------------------------------------------------------------- statistics

void Forwarded::device_stats(int device, Pool* pool, c10::CachingDeviceAllocator::DeviceStats* to) {
  if (!started() || !pool || device >= device_count_.load()) return;
  settle(device);
  InsideOther inside;
  *to = other_.load()->getDeviceStats(static_cast<c10::DeviceIndex>(device));
}

void Forwarded::reset_stats(int device, Pool* pool, bool peaks) {
  const bool forwards = started() && device < device_count_.load();
  if (forwards) {
    InsideOther inside;
    if (peaks) other_.load()->resetPeakStats(static_cast<c10::DeviceIndex>(device));
    else other_.load()->resetAccumulatedStats(static_cast<c10::DeviceIndex>(device));
    if (!peaks) absorbed_[device].store(0);
  }
  if (pool && peaks) pool->reset_peak_stats();
  if (pool && !peaks) pool->reset_accumulated_stats();
  if (forwards) settle(device);
}

}  // namespace dymem
