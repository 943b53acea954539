// Private pools (CUDA graphs, MemPool) are served by PyTorch's own allocator, whose object still exists after dymem has
// taken its place: what is captured or registered then lies in plain allocations that nothing moves or maps again.
//
//   F1  The other allocator is never called under a lock of ours, since it runs callbacks under its own. The
//       exceptions run none: its init(), its cap and its figures. It may call us under its lock: what a pool does then never calls it.
//   F2  Ownership is told by address: what was forwarded and is held is in one table; everything else is the pools'.
//       Every pointer handed out has the adapter's deleter, whichever allocator it came from.
//   F3  Which allocations are forwarded is decided by the filters given to beginAllocateToPool, the latest first, as
//       PyTorch decides; while none is open that costs one relaxed load.
//   F4  The limit covers both. Before a call that may grow, bytes of it are claimed from our pool and the other's cap is
//       raised by as many; after it, the claim becomes what was taken, and while others are calling, the cap comes down
//       first (pool/claims.hpp). When the other is out of memory our idle granules are given back and it is asked once
//       more; when our pool is, what is idle in pools that nobody uses any more is.
//   F5  No call of CUDA before the first use of a private pool, or before PyTorch initialises CUDA.
//   F6  Frees never throw, and do nothing in a forked child.
// Locks: one mutex around the table, one around the list of open pools (under which filters run, and nothing else), one
// around starting. None is held while another is taken, or a pool or the other allocator is called. One for each device
// around the cap: the cap is given and figures are asked for under it, in which the other runs no callback; what the other
// calls never takes it.
#pragma once
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/registry.hpp"
#include "base/capture.hpp"
#include "torch/compat.hpp"

namespace dymem {

namespace native = c10::cuda::CUDACachingAllocator;

// Lets this thread call what CUDA refuses while some stream is captured in the global mode (mapping, event queries): all
// of it concerns streams that are not captured. On the emulated driver only the pool is told.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(bool emulated);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int before_ = -1;
  MayMapInCapture may_map_;
};

class Forwarded {
 public:
  Forwarded(c10::DeleterFnPtr deleter, bool emulated) : deleter_(deleter), emulated_(emulated) {}

  void stand_on(native::CUDAAllocator* other) { other_.store(other); }  // before anything else
  void set_device_count(int count) { device_count_.store(count); }
  bool started() const { return started_.load(std::memory_order_acquire); }
  // The other allocator, started; raises where there is none (the emulated driver).
  native::CUDAAllocator& start();

  // --- allocating and freeing
  static bool any_open() { return open_count_.load(std::memory_order_relaxed) != 0; }
  bool takes(int device, cudaStream_t stream);  // does an open private pool ask for this allocation?
  void* malloc(size_t size, int device, cudaStream_t stream);  // throws OutOfMemory, and what the other throws
  // A request that our pool cannot serve, from MemPools that said use_on_oom; nullptr if they cannot either.
  void* malloc_spare(size_t size, int device, cudaStream_t stream);
  c10::DataPtr allocate_with_address(size_t size, void* address);
  bool holds(const void* pointer) const;
  bool free_quietly(void* pointer) noexcept;  // false: not forwarded
  void record_stream(void* pointer, c10::cuda::CUDAStream stream);
  void* base_allocation(void* pointer, size_t* size);
  void cache_info(c10::DeviceIndex device, size_t* largest);
  void empty_cache(c10::MempoolId_t pool_id);  // {0, 0}: what is idle and belongs to no living pool
  Bytes reclaim(int device);                   // our pool is short: the same; returns bytes given back

  // --- private pools
  void begin(c10::DeviceIndex device, c10::MempoolId_t id, std::function<bool(cudaStream_t)> filter);
  void end(c10::DeviceIndex device, c10::MempoolId_t id);
  void release(c10::DeviceIndex device, c10::MempoolId_t id);
  int use_count(c10::DeviceIndex device, c10::MempoolId_t id);
  void create(c10::DeviceIndex device, c10::MempoolId_t id, std::shared_ptr<native::CUDAAllocator> source);
  void set_use_on_oom(c10::DeviceIndex device, c10::MempoolId_t id, bool on);
  void set_no_split(c10::DeviceIndex device, c10::MempoolId_t id);
  void mark_capture(c10::DeviceIndex device, bool begins);
  bool check_live(c10::DeviceIndex device, c10::MempoolId_t id, const std::unordered_set<void*>& expected);
  std::shared_ptr<native::AllocatorState> checkpoint(c10::DeviceIndex device, c10::MempoolId_t id);
  native::CheckpointDelta restore(c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state);

  // --- watching
  native::SnapshotInfo snapshot(c10::MempoolId_t id, bool include_traces);
  native::ShareableHandle share(void* pointer);
  // Settings of the other allocator that shall not start it: made now, or when it starts.
  void when_started(std::function<void(native::CUDAAllocator&)> call);
  // Adds what is forwarded to our pool's figures; `pool` may be nullptr.
  void device_stats(int device, Pool* pool, c10::CachingDeviceAllocator::DeviceStats* to);
  void reset_stats(int device, Pool* pool, bool peaks);

 private:
  class Claim;
  struct OpenPool {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
    StreamId stream = 0;  // current when it was opened: a graph is captured there
  };

  void* call_malloc(size_t size, int device, cudaStream_t stream);
  void remember(void* pointer, int device);
  bool forget(const void* pointer, int* device);
  Bytes total_memory(int device);
  void cap(int device, Pool& pool);  // the other at what our pool allows it now
  bool settle(int device);           // our pool learns what the other holds; false: it did not
  void settle_all();
  [[noreturn]] void out_of_memory(size_t size, int device, Pool& pool);

  static inline std::atomic<int> open_count_{0};

  const c10::DeleterFnPtr deleter_;
  const bool emulated_;
  std::atomic<native::CUDAAllocator*> other_{nullptr};
  std::atomic<int> device_count_{0};
  std::atomic<bool> started_{false};
  std::mutex start_mutex_;
  std::vector<std::function<void(native::CUDAAllocator&)>> waiting_;  // calls to make once started; under start_mutex_
  bool draining_ = false;                                             // those are being made; under start_mutex_

  mutable std::mutex held_mutex_;
  struct Held {
    int device;
    std::uint64_t number;  // of remembering
  };
  std::unordered_map<const void*, Held> held_;
  std::uint64_t remembered_ = 0;
  std::atomic<size_t> held_count_{0};

  std::mutex open_mutex_;
  std::vector<OpenPool> open_;
  std::set<std::pair<c10::DeviceIndex, c10::MempoolId_t>> spare_;  // pools with use_on_oom; under open_mutex_
  std::atomic<int> spare_count_{0};

  std::atomic<Bytes> totals_[kDevicesMax] = {};         // of the devices; 0: not asked
  std::mutex cap_mutexes_[kDevicesMax];
  static constexpr Bytes kUnknownCap = kNoLimit - 1;
  // As last given to the other, which may have begun with one of its own; under the device's cap mutex.
  std::vector<Bytes> caps_ = std::vector<Bytes>(kDevicesMax, kUnknownCap);
  std::atomic<std::int64_t> absorbed_[kDevicesMax] = {};  // its failures that no caller saw
};

// PyTorch's statistics in the terms of the pool's.
PoolStats figures_of(const c10::CachingDeviceAllocator::DeviceStats& from);

}  // namespace dymem
