// See adapter.hpp (T1..T5): allocation, freeing, statistics, settings.
#include "torch/adapter.hpp"

#include <Python.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "abi/entry.hpp"
#include "abi/peer_driver.hpp"
#include "base/pointers.hpp"
#include "torch/following.hpp"
#include "torch/history.hpp"
#include "torch/inside.hpp"
#include "torch/raise.hpp"
#include "torch/searching.hpp"
#include "torch/watching.hpp"

namespace dymem {
namespace {

c10::Device cuda_device(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

const c10::impl::PyInterpreter* gpu_trace() { return c10::impl::GPUTrace::get_trace(); }

// The profiler (profile_memory=True) wants the totals with each change; they are only asked for while it runs.
void report_to_profiler(void* pointer, std::int64_t bytes, int device, Pool& pool) {
  const PoolStats stats = pool.stats();
  c10::reportMemoryUsageToProfiler(pointer, bytes, static_cast<size_t>(stats.allocated_bytes[kAll].current),
                                   static_cast<size_t>(stats.reserved_bytes[kAll].current), cuda_device(device));
}

// What PyTorch's extensions registered to be run when memory runs out. Runs without the pool's lock.
Bytes run_free_memory_callbacks(Pool& pool) {
  auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
  const auto live_before = pool.stats().allocated_bytes[kAll].current;
  bool some = false;
  for (const auto& name : registry->Keys()) some |= registry->Create(name)->Execute();
  const auto freed = live_before - pool.stats().allocated_bytes[kAll].current;
  if (freed > 0) return static_cast<Bytes>(freed);
  return some ? 1 : 0;  // it says that it freed something, perhaps memory of another allocator: worth another try
}

// PyTorch's settings are read in two parts, each at its first use. Both here, so that the first allocation of a device says
// what PyTorch cannot read, as it would without dymem, and not the snapshot that somebody takes hours later.
double fraction_of_settings() {
  (void)c10::CachingAllocator::AcceleratorAllocatorConfig::instance();
  return native::CUDAAllocatorConfig::per_process_memory_fraction();
}

// How long, at the limit, a request waits for claims of calls that are under way before it fails. A call that is short
// itself claims all that is left, and PyTorch's then waits for the GPU before it gives its cache back.
constexpr std::chrono::milliseconds kPatience{2000};
// With the GIL held: such a call may need it, for stack frames or a callback.
constexpr std::chrono::milliseconds kPatienceWithGil{20};

std::chrono::milliseconds patience() {
  if (InsideOther::now()) return {};  // one of the claims is its own
  return Py_IsInitialized() && PyGILState_Check() ? kPatienceWithGil : kPatience;
}

// Each pool, before anyone else sees it.
void prepare_pool(int device, Pool& pool) {
  pool.set_patience(&patience);
  pool.set_reclaim_callback([device, &pool](Bytes) {
    const Bytes freed = run_free_memory_callbacks(pool);
    return freed + torch_allocator().forwarded().reclaim(device);
  });
  const double fraction = fraction_of_settings();
  if (fraction < 1.0) set_memory_fraction(device, pool, fraction);
}

// PyTorch reads PYTORCH_ALLOC_CONF at the first use of a setting, and refuses a `backend` other than the allocator that is
// in place by then: while that is still the one it chose itself, any backend it knows is one it takes. What it cannot read
// it says at the first allocation, as ever: prepare_pool() reads again what failed here.
void read_settings() noexcept {
  try {
    (void)native::CUDAAllocatorConfig::per_process_memory_fraction();
  } catch (...) {
  }
}

// A block is about to be freed: to who follows or searches, by its stream.
void tell_of_free(const void* pointer) noexcept {
  const Addr at = to_addr(pointer);
  try {
    BlockInfo block;
    Pool* const owner = pool_of(at);
    if (!owner || !owner->find(at, &block) || block.address != at) return;
    const int device = owner->driver().device();
    if (watching() & Watch::searching) searching().freeing(device, block.stream, at);
    if (watching() & Watch::following) following().tagger(device).freed(block.stream, at);
  } catch (...) {  // what watches must not keep a block from being freed
  }
}

void check_device(int device, int count = kDevicesMax) {
  if (device < 0 || device >= count) raise("dymem: there is no device " + std::to_string(device) + ".");
}

c10::CachingAllocator::Stat copy_stat(const Stat& from) {
  c10::CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

static_assert(static_cast<int>(c10::CachingAllocator::StatType::AGGREGATE) == kAll);
static_assert(static_cast<int>(c10::CachingAllocator::StatType::SMALL_POOL) == kSmall);
static_assert(static_cast<int>(c10::CachingAllocator::StatType::LARGE_POOL) == kLarge);
c10::CachingAllocator::StatArray copy_stats(const StatArray& from) {
  return {copy_stat(from[kAll]), copy_stat(from[kSmall]), copy_stat(from[kLarge])};
}

}  // namespace

TorchAllocator::TorchAllocator(bool emulated)
    : CUDAPluggableAllocator(
          [](size_t size, int device, cudaStream_t stream) {
            return torch_allocator().malloc_on(size, device, to_stream(stream));
          },
          [](void* pointer, size_t, int, cudaStream_t) { delete_block(pointer); }),
      emulated_(emulated),
      forwarded_(&delete_block, emulated) {}

void TorchAllocator::current_place(int* device, StreamId* stream) const {
  if (__builtin_expect(emulated_, 0)) {
    *device = 0;
    *stream = 0;
    return;
  }
  c10::DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  *device = index;
  *stream = to_stream(c10::cuda::getCurrentCUDAStream(index).stream());
}

void* TorchAllocator::malloc_on(size_t size, int device, StreamId stream) {
  if (size == 0) return nullptr;
  return watched() ? malloc_watched(size, device, stream) : malloc_unwatched(size, device, stream);
}

void* TorchAllocator::malloc_watched(size_t size, int device, StreamId stream) {
  std::optional<History::Call> call;
  if (watching() & Watch::history) {
    try {
      if (!pool_if_made(device)) (void)pool(device);  // so that history hears of its first granules
    } catch (const Error&) {
      // malloc_in_pool() meets it again, and says so
    }
    call.emplace(history(), device, History::Doing::allocate);
  }
  if (Forwarded::any_open()) return malloc_beside_private_pools(size, device, stream);
  return malloc_followed(size, device, stream);
}

// With its class, if allocations are followed. What spare MemPools gave is none of the pool's.
void* TorchAllocator::malloc_followed(size_t size, int device, StreamId stream) {
  const bool follows = (watching() & Watch::following) && pool_if_made(device);
  const Mobility mobility = follows ? following().tagger(device).next(stream, size) : Mobility::untagged;
  void* const pointer = malloc_in_pool(size, device, stream, mobility);
  if (!(watching() & (Watch::following | Watch::searching)) || forwarded_.holds(pointer)) return pointer;
  if (follows) following().tagger(device).allocated(stream, size, to_addr(pointer), mobility);
  if (watching() & Watch::searching) searching().allocated(device, stream, size, pointer);
  return pointer;
}

inline void* TorchAllocator::malloc_unwatched(size_t size, int device, StreamId stream) {
  if (__builtin_expect(Forwarded::any_open(), 0)) return malloc_beside_private_pools(size, device, stream);
  return malloc_in_pool(size, device, stream);
}

// While a private pool takes allocations, a capture may be under way.
void* TorchAllocator::malloc_beside_private_pools(size_t size, int device, StreamId stream) {
  auto* const native_stream = reinterpret_cast<cudaStream_t>(stream);
  if (!forwarded_.takes(device, native_stream)) {
    RelaxedCapture relaxed(emulated_);
    return malloc_followed(size, device, stream);
  }
  try {
    return forwarded_.malloc(size, device, native_stream);
  } catch (const OutOfMemory& error) {
    out_of_memory(error, device, stream);
  } catch (const Error& error) {
    raise(error.what());
  }
}

inline void* TorchAllocator::malloc_in_pool(size_t size, int device, StreamId stream, Mobility mobility) {
  try {
    Pool* made = pool_if_made(device);
    if (__builtin_expect(!made, 0)) made = &pool(device);
    void* const pointer = reinterpret_cast<void*>(made->malloc(size, stream, mobility));
    if (const auto* trace = gpu_trace(); __builtin_expect(trace != nullptr, 0))
      (*trace)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, to_addr(pointer));
    if (__builtin_expect(c10::memoryProfilingEnabled(), 0))
      report_to_profiler(pointer, static_cast<std::int64_t>(block_size(size)), device, *made);
    return pointer;
  } catch (const OutOfMemory& error) {
    if (void* spare = forwarded_.malloc_spare(size, device, reinterpret_cast<cudaStream_t>(stream))) return spare;
    out_of_memory(error, device, stream);
  } catch (const InvalidArgument& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, size < kRequestMax, error.what());  // absurd sizes: what scripts catch
    raise(error.what());
  } catch (const Error& error) {
    raise(error.what());
  }
}

void TorchAllocator::out_of_memory(const OutOfMemory& error, int device, StreamId stream) {
  const OutOfMemoryFigures& f = error.figures;
  history().note_out_of_memory(device, f.requested, f.device_free, stream);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(f.requested), f.live, f.reserved, cuda_device(device));
  std::vector<native::OutOfMemoryObserver> observers;
  std::vector<torch_compat::OomRejectionObserver> rejection_observers;
  {
    std::lock_guard lock(observers_mutex_);
    observers = observers_;
    if (torch_compat::throw_on_oom()) rejection_observers = rejection_observers_;
  }
  for (const auto& observer : rejection_observers)
    torch_compat::call_rejection_observer(observer, device, f.requested, f.live, f.device_total);
  for (const auto& observer : observers)
    observer(device, f.requested, f.limit ? f.limit : f.device_total, f.device_free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
}

c10::DataPtr TorchAllocator::allocate_on(size_t size, int device, StreamId stream) {
  void* const pointer = malloc_on(size, device, stream);
  return {pointer, pointer, &delete_block, cuda_device(device)};
}

c10::DataPtr TorchAllocator::allocate(size_t size) {
  int device = 0;
  StreamId stream = 0;
  current_place(&device, &stream);
  return allocate_on(size, device, stream);
}

void* TorchAllocator::raw_alloc(size_t size) {
  if (size == 0) return nullptr;
  int device = 0;
  StreamId stream = 0;
  current_place(&device, &stream);
  return malloc_on(size, device, stream);
}

void* TorchAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  int device = 0;
  StreamId current = 0;
  current_place(&device, &current);
  return malloc_on(size, device, to_stream(stream));
}

void TorchAllocator::delete_block(void* pointer) noexcept {
  if (!pointer) return;
  if (watched()) return delete_watched(pointer);
  delete_unwatched(pointer);
}

void TorchAllocator::delete_watched(void* pointer) noexcept {
  if (watching() & (Watch::following | Watch::searching)) tell_of_free(pointer);
  if (!(watching() & Watch::history)) return delete_unwatched(pointer);
  History::Call call(history(), -1, History::Doing::free);
  delete_unwatched(pointer);
}

inline void TorchAllocator::delete_unwatched(void* pointer) noexcept {
  if (__builtin_expect(Forwarded::any_open(), 0)) {
    RelaxedCapture relaxed(torch_allocator().emulated_);
    release_block(pointer);
  } else {
    release_block(pointer);
  }
}

inline void TorchAllocator::release_block(void* pointer) noexcept {
  const Addr address = to_addr(pointer);
  bool profiled = false;
  BlockInfo block;
  Pool* owner = nullptr;
  try {
    const auto* trace = gpu_trace();
    if (__builtin_expect(trace != nullptr, 0) && !forked() && !torch_allocator().forwarded_.holds(pointer))
      (*trace)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, address);
    if (__builtin_expect(c10::memoryProfilingEnabled(), 0)) {
      owner = pool_of(address);
      profiled = owner && owner->find(address, &block);
    }
  } catch (...) {
    profiled = false;  // what watches must not keep a block from being freed
  }
  if (!free_quietly_if_held(address) && !torch_allocator().forwarded_.free_quietly(pointer))
    complain_of_free(human_address(address) + " is not a block that is held: freed twice, or from another allocator.");
  if (__builtin_expect(profiled, 0)) try {
      report_to_profiler(pointer, -static_cast<std::int64_t>(block.size), owner->driver().device(), *owner);
    } catch (...) {
    }
}

void TorchAllocator::raw_delete(void* pointer) {
  if (!pointer || forked()) return;
  BlockInfo block;
  if (forwarded_.holds(pointer)) return delete_block(pointer);
  Pool* owner = pool_of(to_addr(pointer));
  if (!owner || !owner->find(to_addr(pointer), &block) || block.address != to_addr(pointer))
    raise("dymem: " + std::to_string(to_addr(pointer)) +
          " is not the address of a block that is held: it was freed already, or comes from another allocator.");
  delete_block(pointer);
}

void TorchAllocator::record_stream_on(const c10::DataPtr& data, StreamId stream) {
  // Empty tensors have no block, and memory of other owners (IPC, from_blob) is not ours to hold back.
  if (!data.get() || data.get_deleter() != &delete_block) return;
  if (forwarded_.holds(data.get_context()))
    return forwarded_.record_stream(  // the name that PyTorch gives to streams it did not make
        data.get_context(),
        c10::cuda::CUDAStream::unpack3(static_cast<c10::StreamId>(stream), data.device().index(), c10::DeviceType::CUDA));
  if (Pool* owner = pool_of(to_addr(data.get_context()))) owner->record_stream(to_addr(data.get_context()), stream);
}

void TorchAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (forwarded_.holds(data.get_context()) && data.get_deleter() == &delete_block)
    return forwarded_.record_stream(data.get_context(), stream);
  record_stream_on(data, to_stream(stream.stream()));
}

void* TorchAllocator::getBaseAllocation(void* pointer, size_t* size) {
  if (forwarded_.holds(pointer)) return forwarded_.base_allocation(pointer, size);
  Addr base = 0;
  Bytes bytes = 0;
  if (!base_allocation(to_addr(pointer), &base, &bytes))
    raise("dymem: no block that is held contains the address " + std::to_string(to_addr(pointer)) + ".");
  if (size) *size = bytes;
  return reinterpret_cast<void*>(base);
}

// cuDNN asks how large a workspace it may take. As with PyTorch's allocator, a zero on entry asks for a guess that
// counts what the device could still give.
void TorchAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  check_device(device);
  StreamId stream = 0;
  int current = device;
  current_place(&current, &stream);
  if (current != device) stream = 0;
  Pool* made = pool_if_made(device);
  if (!made) {
    if (emulated_ || *largest != 0) return;
    made = &pool(device);
  }
  Bytes found = made->largest_free(stream);
  if (*largest == 0) {
    const Bytes growth = made->driver().memory().free;
    found = std::max(found, std::min(growth, made->room()));
  }
  *largest = std::max<size_t>(*largest, found);
  forwarded_.cache_info(device, largest);
}

void TorchAllocator::emptyCache(c10::MempoolId_t pool_id) {
  if (pool_id.first == 0 && pool_id.second == 0) {
    std::optional<RelaxedCapture> relaxed;
    if (Forwarded::any_open()) relaxed.emplace(emulated_);
    trim_all();
  }
  forwarded_.empty_cache(pool_id);
}

void TorchAllocator::init(int device_count) {
  device_count_ = device_count;
  forwarded_.set_device_count(device_count);
  initialized_ = true;
}

void TorchAllocator::enable(bool value) {
  TORCH_CHECK(value, "dymem cannot be switched off once it is installed: start the process without dymem.install().");
}

// Of a device that was not used yet: what it will get.
double TorchAllocator::getMemoryFraction(c10::DeviceIndex device) {
  const int count = emulated_ ? dymem::device_count() : device_count_;  // 0: PyTorch has not asked, and nobody may (T1)
  check_device(device, count ? count : kDevicesMax);
  return pool_if_made(device) ? memory_fraction(device) : fraction_of_settings();
}

void TorchAllocator::heed_fraction_of_settings() {
  const double fraction = fraction_of_settings();
  for (int device = 0; device < kDevicesMax; ++device)
    if (Pool* made = pool_if_made(device)) set_memory_fraction(device, *made, fraction);
}

void TorchAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  check_device(device);
  try {
    set_memory_fraction(device, pool(device), fraction);
  } catch (const Error& error) {
    raise(error.what());
  }
}

std::vector<native::StreamSegmentSize> TorchAllocator::getExpandableSegmentSizes(c10::DeviceIndex) {
  return {};  // dymem has no expandable segments
}

c10::CachingDeviceAllocator::DeviceStats TorchAllocator::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  Pool* made = pool_if_made(device);
  c10::CachingDeviceAllocator::DeviceStats to;
  forwarded_.device_stats(device, made, &to);  // what only PyTorch's own allocator counts
  const PoolStats from = made ? made->joint_stats() : PoolStats{};
  to.allocation = copy_stats(from.allocation);
  to.segment = copy_stats(from.segment);
  to.active = copy_stats(from.active);
  to.inactive_split = copy_stats(from.inactive_split);
  to.allocated_bytes = copy_stats(from.allocated_bytes);
  to.reserved_bytes = copy_stats(from.reserved_bytes);
  to.active_bytes = copy_stats(from.active_bytes);
  to.inactive_split_bytes = copy_stats(from.inactive_split_bytes);
  to.requested_bytes = copy_stats(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
  // Every block may be split, so none is oversize; PyTorch writes no limit as -1.
  to.max_split_size = from.max_split_size ? static_cast<std::int64_t>(from.max_split_size) : -1;
  return to;
}

void TorchAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  forwarded_.reset_stats(device, pool_if_made(device), false);
}

void TorchAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  forwarded_.reset_stats(device, pool_if_made(device), true);
}

void TorchAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  std::lock_guard lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

// Kernels of `device` shall read and write memory of `accessed` directly.
void TorchAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed) {
  if (emulated_) return;
  c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(accessed, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();  // fine, and not to be found later
  else C10_CUDA_CHECK(error);
  forwarded_.when_started([=](native::CUDAAllocator& other) { other.enablePeerAccess(device, accessed); });
  auto* const driver = dynamic_cast<PeerDriver*>(&pool(accessed).driver());
  if (!driver || !driver->has_vmm()) return;  // plain allocations need no more than the runtime's word
  const Status status = driver->enable_peer(device);
  if (!status.ok())
    raise("dymem: device " + std::to_string(device) + " cannot be given access to memory of device " +
          std::to_string(accessed) + ": " + status.call + " failed with code " + std::to_string(status.native) + ".");
}

cudaError_t TorchAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                                        cudaStream_t stream, bool p2p_enabled) {
  // Without peer access, only the peer form of the call can copy memory that was mapped rather than allocated.
  if (p2p_enabled || to_device == from_device)
    return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

// ------------------------------------------------------------------------------------- private pools: forwarded.hpp

void TorchAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id,
                                         std::function<bool(cudaStream_t)> filter) {
  check_device(device);
  forwarded_.begin(device, id, std::move(filter));
}
void TorchAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) { forwarded_.end(device, id); }
void TorchAllocator::markCaptureBegin(c10::DeviceIndex device) { forwarded_.mark_capture(device, true); }
void TorchAllocator::markCaptureEnd(c10::DeviceIndex device) { forwarded_.mark_capture(device, false); }
void TorchAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t id) { forwarded_.release(device, id); }
int TorchAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) {
  return forwarded_.use_count(device, id);
}
void TorchAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                                        std::shared_ptr<native::CUDAAllocator> source) {
  check_device(device);
  if (source.get() == this) source = nullptr;  // "as everything else is allocated": a pool without a source of its own
  forwarded_.create(device, id, std::move(source));
}
void TorchAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use_on_oom) {
  forwarded_.set_use_on_oom(device, id, use_on_oom);
}
void TorchAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) { forwarded_.set_no_split(device, id); }
bool TorchAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                              const std::unordered_set<void*>& expected) {
  return forwarded_.check_live(device, id, expected);
}
std::shared_ptr<native::AllocatorState> TorchAllocator::getCheckpointState(c10::DeviceIndex device,
                                                                           c10::MempoolId_t id) {
  return forwarded_.checkpoint(device, id);
}
native::CheckpointDelta TorchAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                               std::shared_ptr<native::AllocatorState> state) {
  return forwarded_.restore(device, std::move(state));
}
c10::DataPtr TorchAllocator::allocateWithAddress(size_t size, void* address) {
  return forwarded_.allocate_with_address(size, address);
}

TorchAllocator& torch_allocator() {
  static std::shared_ptr<native::CUDAAllocator>* const holder = new std::shared_ptr<native::CUDAAllocator>(
      std::make_shared<TorchAllocator>(process_config().driver == DriverKind::emulated));
  return static_cast<TorchAllocator&>(**holder);
}

bool native_allocator_initialized() {
  auto* const current = native::allocator.load();
  return current && current->initialized();
}

void install_torch_allocator() {
  if (native_allocator_initialized())
    throw InvalidArgument("dymem must be installed before the first use of CUDA: move dymem.install() up.");
  read_settings();
  TorchAllocator& adapter = torch_allocator();
  if (auto* const before = native::allocator.load();
      before != &adapter && process_config().driver != DriverKind::emulated)
    adapter.forwarded().stand_on(before);
  // A second owner that owns nothing: the object is never destroyed.
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
      std::shared_ptr<native::CUDAAllocator>(std::shared_ptr<void>(), &adapter));
  // torch.accelerator asks here. With the highest priority: torch sets its own with one above the default.
  c10::SetAllocator(c10::DeviceType::CUDA, &adapter, std::numeric_limits<std::uint8_t>::max());
  on_pool_made(&prepare_pool);
}

}  // namespace dymem
