// PyTorch's whole allocator interface on top of the pools of abi/registry.
//
// A subclass of the pluggable allocator, so that changeCurrentAllocator() and everything that asks for one accept it;
// of the base class, nothing is used but memory copies. The object is made once and lives until the process ends.
//
//   T1  No call of the CUDA runtime before torch itself makes one: installing touches nothing. On the emulated driver
//       none is ever made; allocations then go to device 0, stream 0, or where the test binding says.
//   T2  allocate() adds to the pool: the current device, the current stream, four predictable branches (a trace of the
//       GPU, the profiler, who watches (watching.hpp), private pools). No map, no lock, unless a private pool is open (forwarded.hpp).
//   T3  delete_block() never throws, is the one deleter of every DataPtr handed out, and its address is stable.
//   T4  Exhaustion is c10::OutOfMemoryError with the pool's sentence; observers run first, without any lock of ours.
//   T5  What is not served raises one sentence that names the feature and a way on; nothing is ignored silently.
// Locks: one mutex around the list of observers; never held while an observer or a pool runs.
#pragma once
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <mutex>
#include <vector>

#include "abi/registry.hpp"
#include "torch/compat.hpp"
#include "torch/forwarded.hpp"

namespace dymem {

class TorchAllocator final : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  explicit TorchAllocator(bool emulated);
  static void delete_block(void* pointer) noexcept;

  // --- allocation
  c10::DataPtr allocate(size_t size) override;
  c10::DataPtr allocate_on(size_t size, int device, StreamId stream);  // allocate(), told where
  void* malloc_on(size_t size, int device, StreamId stream);           // nullptr for 0 bytes
  Forwarded& forwarded() { return forwarded_; }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;  // throws on an address that is not held
  using native::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void record_stream_on(const c10::DataPtr& data, StreamId stream);
  c10::DataPtr allocateWithAddress(size_t size, void* address);
  void* getBaseAllocation(void* pointer, size_t* size) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void emptyCache(c10::MempoolId_t pool_id = {0, 0}) override;

  // --- life and settings
  std::string name() override { return "dymem"; }
  void init(int device_count) override;
  bool initialized() override { return initialized_; }
  void enable(bool value) override;
  bool isEnabled() const override { return true; }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void heed_fraction_of_settings();  // per_process_memory_fraction was set at run time: for the pools that are made
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;

  // --- statistics
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  // Called, beside the former, for each request that fails while throw_on_cudamalloc_oom is set.
  void attachOomRejectionObserver(torch_compat::OomRejectionObserver observer);

  // --- memory history and snapshots (snapshot.cpp; how: history.hpp)
  native::SnapshotInfo snapshot(c10::MempoolId_t pool_id, bool include_traces = true) override;
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, native::CreateContextFn context, size_t entries_max, native::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer);
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void annotateMemory(const void* pointer, const std::string& metadata);
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;

  // --- several devices
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream,
                          bool p2p_enabled) override;

  // --- other processes (ipc.cpp)
  native::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  std::shared_ptr<void> open_shared_on(const std::string& handle, int device);  // getIpcDevPtr(), told where

  // --- private pools, which are forwarded: see forwarded.hpp
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool_id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool_id) override;
  void markCaptureBegin(c10::DeviceIndex device);
  void markCaptureEnd(c10::DeviceIndex device);
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool_id) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool_id) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool_id,
                          std::shared_ptr<native::CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool_id, bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool_id) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool_id,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t id) override;
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override;

 private:
  void* malloc_unwatched(size_t size, int device, StreamId stream);
  void* malloc_watched(size_t size, int device, StreamId stream);
  void* malloc_followed(size_t size, int device, StreamId stream);
  static void delete_unwatched(void* pointer) noexcept;
  static void delete_watched(void* pointer) noexcept;
  [[noreturn]] void out_of_memory(const OutOfMemory& error, int device, StreamId stream);
  void current_place(int* device, StreamId* stream) const;
  void* malloc_in_pool(size_t size, int device, StreamId stream, Mobility mobility = Mobility::untagged);
  void* malloc_beside_private_pools(size_t size, int device, StreamId stream);
  static void release_block(void* pointer) noexcept;

  const bool emulated_;
  Forwarded forwarded_;
  std::mutex observers_mutex_;
  std::vector<native::OutOfMemoryObserver> observers_;
  std::vector<torch_compat::OomRejectionObserver> rejection_observers_;
  int device_count_ = 0;  // as PyTorch said when it initialised CUDA
};

// The process's one adapter, made at the first call; `emulated` as configured.
TorchAllocator& torch_allocator();
// Makes it PyTorch's allocator for CUDA; throws InvalidArgument if CUDA was used already.
void install_torch_allocator();
bool native_allocator_initialized();

}  // namespace dymem
