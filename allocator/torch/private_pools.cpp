// Forwarded's private pools: opening, closing, counting and restoring them, and those who watch (F1..F3).
#include <algorithm>
#include <unordered_set>

#include "torch/forwarded.hpp"
#include "torch/inside.hpp"

namespace dymem {

bool Forwarded::takes(int device, cudaStream_t stream) {
  std::lock_guard lock(open_mutex_);
  return std::any_of(open_.rbegin(), open_.rend(),
                     [&](const OpenPool& pool) { return pool.device == device && pool.filter(stream); });
}

void Forwarded::begin(c10::DeviceIndex device, c10::MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
  native::CUDAAllocator& other = start();
  pool(device);
  total_memory(device);  // not to be asked for during a capture
  {
    InsideOther inside;
    other.beginAllocateToPool(device, id, filter);
  }
  const StreamId stream =
      emulated_ ? 0 : reinterpret_cast<StreamId>(c10::cuda::getCurrentCUDAStream(device).stream());
  {
    std::lock_guard lock(open_mutex_);
    open_.push_back({device, id, std::move(filter), stream});
    open_count_.fetch_add(1);
  }
  pool(device).watch(stream, 1);  // our pool gets nothing to do there, so it would not see the capture
}

void Forwarded::end(c10::DeviceIndex device, c10::MempoolId_t id) {
  native::CUDAAllocator& other = start();
  OpenPool ended;  // the filter is destroyed without the lock
  bool was_open = false;
  {
    std::lock_guard lock(open_mutex_);
    const auto found = std::find_if(open_.begin(), open_.end(),
                                    [&](const OpenPool& open) { return open.device == device && open.id == id; });
    if (found != open_.end()) {
      ended = std::move(*found);
      open_.erase(found);
      open_count_.fetch_sub(1);
      was_open = true;
    }
  }
  if (Pool* const made = pool_if_made(device); was_open && made) made->watch(ended.stream, -1);
  {
    InsideOther inside;
    other.endAllocateToPool(device, id);
  }
  settle(device);
}

// Runs in destructors of graphs and pools, also of those that could not be made.
void Forwarded::release(c10::DeviceIndex device, c10::MempoolId_t id) {
  if (!started() || forked()) return;
  {
    InsideOther inside;
    other_.load()->releasePool(device, id);
  }
  settle(device);
}

int Forwarded::use_count(c10::DeviceIndex device, c10::MempoolId_t id) {
  if (!started()) return 0;
  InsideOther inside;
  return other_.load()->getPoolUseCount(device, id);
}

void Forwarded::create(c10::DeviceIndex device, c10::MempoolId_t id, std::shared_ptr<native::CUDAAllocator> source) {
  native::CUDAAllocator& other = start();
  pool(device);
  InsideOther inside;
  other.createOrIncrefPool(device, id, std::move(source));
}

void Forwarded::set_use_on_oom(c10::DeviceIndex device, c10::MempoolId_t id, bool on) {
  native::CUDAAllocator& other = start();
  {
    InsideOther inside;
    other.setUseOnOOM(device, id, on);
  }
  std::lock_guard lock(open_mutex_);
  if (on) spare_.insert({device, id});
  else spare_.erase({device, id});
  spare_count_.store(static_cast<int>(spare_.size()));
}

void Forwarded::set_no_split(c10::DeviceIndex device, c10::MempoolId_t id) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  other.setNoSplit(device, id);
}

void Forwarded::mark_capture(c10::DeviceIndex device, bool begins) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  torch_compat::mark_capture(other, device, begins);
}

bool Forwarded::check_live(c10::DeviceIndex device, c10::MempoolId_t id, const std::unordered_set<void*>& expected) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  return other.checkPoolLiveAllocations(device, id, expected);
}

std::shared_ptr<native::AllocatorState> Forwarded::checkpoint(c10::DeviceIndex device, c10::MempoolId_t id) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  return other.getCheckpointState(device, id);
}

native::CheckpointDelta Forwarded::restore(c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state) {
  native::CUDAAllocator& other = start();
  native::CheckpointDelta delta;
  std::uint64_t before = 0;
  {
    std::lock_guard lock(held_mutex_);
    before = remembered_;
  }
  {
    InsideOther inside;
    delta = other.setCheckpointPoolState(device, std::move(state));
  }
  // Other threads go on meanwhile. What was held and is again stays as it is: if it is missing by now, it was freed since.
  // What they were handed since, at an address that became free, is theirs.
  std::unordered_set<const void*> freed(delta.ptrs_freed.begin(), delta.ptrs_freed.end());
  for (c10::DataPtr& data : delta.dataptrs_allocd) {
    if (!freed.erase(data.get())) remember(data.get(), device);
    data.compare_exchange_deleter(data.get_deleter(), deleter_);
  }
  {
    std::lock_guard lock(held_mutex_);
    for (const void* gone : freed)
      if (const auto found = held_.find(gone); found != held_.end() && found->second.number <= before) held_.erase(found);
    held_count_.store(held_.size(), std::memory_order_relaxed);
  }
  settle(device);
  return delta;
}

native::SnapshotInfo Forwarded::snapshot(c10::MempoolId_t id, bool include_traces) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  return other.snapshot(id, include_traces);
}

native::ShareableHandle Forwarded::share(void* pointer) {
  native::CUDAAllocator& other = start();
  InsideOther inside;
  return other.shareIpcHandle(pointer);
}

void Forwarded::when_started(std::function<void(native::CUDAAllocator&)> call) {
  {
    std::lock_guard lock(start_mutex_);
    if (!started() || draining_) {
      waiting_.push_back(std::move(call));
      return;
    }
  }
  InsideOther inside;
  call(*other_.load());
}

}  // namespace dymem
