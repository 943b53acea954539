// See stand_in.hpp. Serves device 0. Below the allocator are the functions through which tests reach it and the private
// pools; those go through PyTorch's own entry points.
#include "torch/stand_in.hpp"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/pointers.hpp"
#include "torch/adapter.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

using PluggableAllocator = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;
using PoolKey = c10::MempoolId_t;

constexpr PoolKey kDefault{0, 0};

struct Block {
  Bytes size = 0;  // of its segment
  PoolKey pool = kDefault;
  bool live = false;
  Bytes requested = 0;
  std::set<c10::StreamId> streams;
  std::shared_ptr<native::CUDAAllocator> source;
};

struct Checkpoint : native::AllocatorState {
  PoolKey pool;
  std::map<void*, Bytes> live;
};

class StandIn final : public PluggableAllocator {
 public:
  StandIn()
      : PluggableAllocator([](size_t, int, cudaStream_t) -> void* { return nullptr; },
                           [](void*, size_t, int, cudaStream_t) {}) {}

  std::string name() override { return "stand-in"; }
  void init(int count) override { devices_ = count; }
  bool initialized() override { return devices_ != 0; }
  c10::DeleterFnPtr raw_deleter() const override { return &forbidden_deleter; }

  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    auto lock = enter("malloc");
    return take(size, stream);
  }

  void raw_delete(void* pointer) override {
    auto lock = enter("free");
    Block& block = at(pointer);
    count(block, false);
    block.streams.clear();
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    auto lock = enter("record_stream");
    TORCH_CHECK(data.get_deleter() == raw_deleter(), "another allocator's data");
    at(data.get()).streams.insert(stream.id());  // stream() would ask CUDA
  }

  void* getBaseAllocation(void* pointer, size_t* size) override {
    auto lock = enter("base");
    *size = at(pointer).size;
    return pointer;
  }

  void cacheInfo(c10::DeviceIndex, size_t* largest) override {
    auto lock = enter("cache_info");
    for (const auto& [pointer, block] : blocks_)
      if (!block.live) *largest = std::max<size_t>(*largest, block.size);
  }

  void emptyCache(PoolKey id) override {
    auto lock = enter("empty_cache");
    give_back_idle(id);
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex) override {
    auto lock = enter("cap");
    const auto total = pool(0).driver().memory().total;
    cap_ = fraction == 1.0 ? kNoLimit : static_cast<Bytes>(fraction * static_cast<double>(total));
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    {
      auto lock = enter("stats");
      stats = stats_;
    }
    if (const Reset reset = std::exchange(reset_during_stats_, Reset::none); reset == Reset::totals)
      native::get()->resetAccumulatedStats(0);
    else if (reset == Reset::peaks) native::get()->resetPeakStats(0);
    return stats;
  }
  enum class Reset { none, totals, peaks };
  void reset_during_stats(Reset what) { reset_during_stats_ = what; }
  void resetPeakStats(c10::DeviceIndex) override {
    auto lock = enter("reset_peak");
    each_stat([](auto& stat) { stat.peak = stat.current; });
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    auto lock = enter("reset_accumulated");
    each_stat([](auto& stat) { stat.allocated = stat.freed = 0; });
    stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
  }

  void beginAllocateToPool(c10::DeviceIndex, PoolKey id, std::function<bool(cudaStream_t)> filter) override {
    auto lock = enter("begin");
    for (const auto& open : open_) TORCH_CHECK(open.first != id, "already recording to mempool_id");
    uses_[id]++;
    open_.emplace_back(id, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex, PoolKey id) override {
    auto lock = enter("end");
    for (auto open = open_.begin(); open != open_.end(); ++open)
      if (open->first == id) {
        open_.erase(open);
        return;
      }
    TORCH_CHECK(false, "not currently recording to mempool_id");
  }
  void releasePool(c10::DeviceIndex, PoolKey id) override {
    auto lock = enter("release");
    TORCH_CHECK(uses_.count(id) && uses_[id] > 0, "no such pool");
    uses_[id]--;
  }
  int getPoolUseCount(c10::DeviceIndex, PoolKey id) override {
    auto lock = enter("use_count");
    return uses_.at(id);
  }
  void createOrIncrefPool(c10::DeviceIndex, PoolKey id, std::shared_ptr<native::CUDAAllocator> source) override {
    auto lock = enter("create");
    uses_[id]++;
    if (source) sources_[id] = std::move(source);
  }
  void setUseOnOOM(c10::DeviceIndex, PoolKey id, bool on) override {
    auto lock = enter("use_on_oom");
    if (on) spare_.insert(id);
    else spare_.erase(id);
  }
  void setNoSplit(c10::DeviceIndex, PoolKey) override { auto lock = enter("no_split"); }

  bool checkPoolLiveAllocations(c10::DeviceIndex, PoolKey id, const std::unordered_set<void*>& expected) override {
    auto lock = enter("check_live");
    const auto live = live_of(id);
    if (live.size() != expected.size()) return false;
    for (const auto& [pointer, size] : live)
      if (!expected.count(pointer)) return false;
    return true;
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex, PoolKey id) override {
    auto lock = enter("checkpoint");
    auto made = std::make_shared<Checkpoint>();
    made->pool = id;
    made->live = live_of(id);
    return made;
  }
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    auto lock = enter("restore");
    const auto& wanted = dynamic_cast<const Checkpoint&>(*state);
    native::CheckpointDelta delta;
    for (const auto& [pointer, requested] : live_of(wanted.pool)) {
      count(at(pointer), false);
      delta.ptrs_freed.push_back(pointer);
    }
    for (const auto& [pointer, requested] : wanted.live) {
      blocks_.at(pointer).requested = requested;
      count(blocks_.at(pointer), true);
      delta.dataptrs_allocd.emplace_back(pointer, pointer, raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
    }
    return delta;
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker) override { auto lock = enter("tracker"); }
  native::SnapshotInfo snapshot(PoolKey id, bool) override {
    auto lock = enter("snapshot");
    native::SnapshotInfo info;
    for (const auto& [pointer, block] : blocks_)
      if (block.pool == id || id == PoolKey{0, 0}) info.segments.emplace_back();  // {0, 0}: of all
    return info;
  }
  void recordHistory(bool enabled, native::CreateContextFn, size_t, native::RecordContext, bool,
                     const std::vector<std::string>&) override {
    auto lock = enter("history");
    recording_ = enabled;
  }

  // --- what tests set and look at
  void fail_call(int number) {
    std::lock_guard lock(mutex_);
    until_failure_ = number;
  }
  std::map<std::string, std::int64_t> facts() {
    std::lock_guard lock(mutex_);
    std::map<std::string, std::int64_t> facts(calls_.begin(), calls_.end());
    facts["cap"] = cap_ == kNoLimit ? -1 : static_cast<std::int64_t>(cap_);
    facts["reserved"] = stats_.reserved_bytes[0].current;
    facts["live"] = stats_.allocation[0].current;
    facts["recording"] = recording_;
    facts["open"] = static_cast<std::int64_t>(open_.size());
    return facts;
  }
  void before(std::string call, std::function<void()> run) {
    std::lock_guard lock(mutex_);
    before_ = {std::move(call), std::move(run)};
  }
  std::set<c10::StreamId> streams_of(void* pointer) {
    std::lock_guard lock(mutex_);
    return at(pointer).streams;
  }

 private:
  // The deleter of another allocator must never run: every pointer has the adapter's.
  static void forbidden_deleter(void*) { std::abort(); }

  std::unique_lock<std::recursive_mutex> enter(const char* call) {
    run_before(call);
    if (Pool* made = pool_if_made(0)) made->stats();
    torch_allocator().forwarded().holds(this);
    torch_allocator().forwarded().takes(kDevicesMax - 1, nullptr);
    std::unique_lock lock(mutex_);
    TORCH_CHECK(devices_ > 0, "used before init");
    calls_[call]++;
    if (until_failure_ > 0 && --until_failure_ == 0) TORCH_CHECK(false, "the stand-in failed as it was told");
    return lock;
  }

  void run_before(std::string_view call) {
    std::function<void()> run;
    {
      std::lock_guard lock(mutex_);
      if (call == before_.first) std::exchange(before_, {}).second.swap(run);
    }
    if (run) run();
  }

  void* take(size_t size, cudaStream_t stream) {
    PoolKey id = kDefault;
    for (auto open = open_.rbegin(); open != open_.rend(); ++open)
      if (open->second(stream)) {
        id = open->first;
        break;
      }
    const Bytes segment = round_up(size, kGranuleUnit);
    for (int round = 0; round < 4; round++) {
      if (void* found = idle(id, segment)) return give(found, size);
      if (round == 0) run_callbacks();
      if (void* made = grow(id, segment)) return give(made, size);
      if (round == 1 && id == kDefault)
        for (PoolKey spare : spare_)
          if (void* found = idle(spare, segment)) return give(found, size);
      if (round == 2 && open_.empty()) give_back_idle(kDefault);
    }
    stats_.num_ooms++;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the stand-in has no memory left");
  }

  void* idle(PoolKey id, Bytes segment) {
    void* best = nullptr;
    for (auto& [pointer, block] : blocks_)
      if (!block.live && block.pool == id && block.size >= segment && (!best || block.size < blocks_[best].size))
        best = pointer;
    return best;
  }

  void* grow(PoolKey id, Bytes segment) {
    const Bytes held = static_cast<Bytes>(stats_.reserved_bytes[0].current);
    if (cap_ != kNoLimit && held + segment > cap_) return nullptr;
    const Bytes ours = static_cast<Bytes>(pool(0).stats().reserved_bytes[kAll].current);
    if (held + ours + segment > pool(0).driver().memory().total) return nullptr;
    const auto source = sources_.find(id);
    void* const made = source == sources_.end() ? std::aligned_alloc(kBlockUnit, segment)
                                                : source->second->raw_alloc(segment);
    TORCH_CHECK(made, "the host has no memory left");
    Block& block = blocks_[made];
    block.size = segment;
    block.pool = id;
    if (source != sources_.end()) block.source = source->second;
    const int part = segment <= kGranuleUnit ? kSmall : kLarge;
    for (int p : {int(kAll), part}) {
      rise(stats_.reserved_bytes[p], segment);
      rise(stats_.segment[p], 1);
    }
    stats_.num_device_alloc++;
    return made;
  }

  void* give(void* pointer, size_t size) {
    Block& block = blocks_.at(pointer);
    block.requested = size;
    count(block, true);
    return pointer;
  }

  void give_back_idle(PoolKey id) {
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const bool wanted = id == kDefault ? (block->second.pool == kDefault || uses_[block->second.pool] == 0)
                                         : (block->second.pool == id && uses_[id] == 0);
      if (block->second.live || !wanted || (block->second.pool == kDefault && !open_.empty())) {
        ++block;
        continue;
      }
      const int part = block->second.size <= kGranuleUnit ? kSmall : kLarge;
      for (int p : {int(kAll), part}) {
        fall(stats_.reserved_bytes[p], block->second.size);
        fall(stats_.segment[p], 1);
      }
      stats_.num_device_free++;
      if (block->second.source) block->second.source->raw_delete(block->first);
      else std::free(block->first);
      block = blocks_.erase(block);
    }
  }

  void run_callbacks() {
    auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto& name : registry->Keys()) registry->Create(name)->Execute();
  }

  Block& at(void* pointer) {
    const auto found = blocks_.find(pointer);
    TORCH_CHECK(found != blocks_.end() && found->second.live, "invalid device pointer");
    return found->second;
  }
  std::map<void*, Bytes> live_of(PoolKey id) {
    std::map<void*, Bytes> live;
    for (const auto& [pointer, block] : blocks_)
      if (block.live && block.pool == id) live[pointer] = block.requested;
    return live;
  }

  template <class Stat>
  static void rise(Stat& stat, Bytes n) {
    stat.current += static_cast<std::int64_t>(n);
    stat.peak = std::max(stat.peak, stat.current);
    stat.allocated += static_cast<std::int64_t>(n);
  }
  template <class Stat>
  static void fall(Stat& stat, Bytes n) {
    stat.current -= static_cast<std::int64_t>(n);
    stat.freed += static_cast<std::int64_t>(n);
  }
  void count(Block& block, bool live) {
    block.live = live;
    const Bytes size = block_size(block.requested);
    const int part = size <= kMiB ? kSmall : kLarge;
    for (int p : {int(kAll), part}) {
      const std::pair<c10::CachingAllocator::Stat*, Bytes> all[] = {
          {&stats_.allocation[p], 1},          {&stats_.active[p], 1},
          {&stats_.allocated_bytes[p], size},  {&stats_.active_bytes[p], size},
          {&stats_.requested_bytes[p], block.requested}};
      for (const auto& [stat, n] : all)
        if (live) rise(*stat, n);
        else fall(*stat, n);
    }
  }
  template <class F>
  void each_stat(F f) {
    for (auto* array : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.allocated_bytes,
                        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.requested_bytes})
      for (auto& stat : *array) f(stat);
  }

  std::recursive_mutex mutex_;
  int devices_ = 0;
  int until_failure_ = 0;
  bool recording_ = false;
  Reset reset_during_stats_ = Reset::none;
  std::pair<std::string, std::function<void()>> before_;
  Bytes cap_ = kNoLimit;
  std::map<void*, Block> blocks_;
  std::map<PoolKey, int> uses_;
  std::map<PoolKey, std::shared_ptr<native::CUDAAllocator>> sources_;
  std::set<PoolKey> spare_;
  std::vector<std::pair<PoolKey, std::function<bool(cudaStream_t)>>> open_;
  std::map<std::string, std::int64_t> calls_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

StandIn& stand_in() {
  static StandIn* const one = new StandIn;
  return *one;
}

struct HeldState {
  std::shared_ptr<native::AllocatorState> state;
};

}  // namespace

void bind_stand_in(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def("stand_in", [] { torch_allocator().forwarded().stand_on(&stand_in()); },
        "For tests: private pools go to an allocator that needs no GPU.");
  m.def("stand_in_facts", [] { return stand_in().facts(); }, "Calls by name, cap (-1: none), reserved, live, open.");
  m.def("stand_in_fail_call", [](int number) { stand_in().fail_call(number); });
  m.def(
      "stand_in_before",
      [](std::string call, std::function<void()> run) { stand_in().before(std::move(call), std::move(run)); },
      "Runs `run` once, in the thread that calls so next, before it takes the stand-in's lock.");
  m.def(
      "stand_in_reset_during_stats",
      [](bool peaks) { stand_in().reset_during_stats(peaks ? StandIn::Reset::peaks : StandIn::Reset::totals); },
      py::arg("peaks") = false, "The next figures asked for are from before a reset of the totals, or of the peaks.");
  m.def("stand_in_streams_of", [](std::uintptr_t address) { return stand_in().streams_of(as_pointer(address)); });

  m.def(
      "begin_pool",
      [](PoolKey id, std::optional<StreamId> stream, int device) {
        std::function<bool(cudaStream_t)> filter;
        if (stream) {
          filter = [wanted = reinterpret_cast<cudaStream_t>(*stream)](cudaStream_t s) { return s == wanted; };
        } else {
          filter = [thread = std::this_thread::get_id()](cudaStream_t) { return std::this_thread::get_id() == thread; };
        }
        native::beginAllocateToPool(static_cast<c10::DeviceIndex>(device), id, std::move(filter));
      },
      py::arg("id"), py::arg("stream") = std::nullopt, py::arg("device") = 0, Unlocked(),
      "What torch.cuda.graph (with a stream) or use_mem_pool (of this thread) asks for.");
  m.def("end_pool", [](PoolKey id) { native::endAllocateToPool(0, id); }, Unlocked());
  m.def("release_pool", [](PoolKey id) { native::releasePool(0, id); }, Unlocked());
  m.def("use_count", [](PoolKey id) { return native::getPoolUseCount(0, id); }, Unlocked());
  m.def(
      "create_pool",
      [](PoolKey id, bool from_dymem) {
        std::shared_ptr<native::CUDAAllocator> source;
        if (from_dymem) source = {std::shared_ptr<void>(), native::get()};
        native::createOrIncrefPool(0, id, std::move(source));
      },
      py::arg("id"), py::arg("from_dymem") = false, Unlocked());
  m.def("set_use_on_oom", [](PoolKey id, bool on) { native::setUseOnOOM(0, id, on); }, Unlocked());
  m.def("set_no_split", [](PoolKey id) { native::setNoSplit(0, id); }, Unlocked());
  m.def("empty_pool", [](PoolKey id) { native::emptyCache(id); }, Unlocked());
  m.def("segments_of_pool", [](PoolKey id) { return native::snapshot(id).segments.size(); }, Unlocked());
  m.def(
      "attach_tracker", [] { native::attachAllocatorTraceTracker([](const auto&) {}); }, Unlocked());
  m.def(
      "check_live",
      [](PoolKey id, const std::vector<std::uintptr_t>& expected) {
        std::unordered_set<void*> set;
        for (std::uintptr_t address : expected) set.insert(as_pointer(address));
        return native::checkPoolLiveAllocations(0, id, set);
      },
      Unlocked());
  py::class_<HeldState>(m, "PoolState");
  m.def("checkpoint", [](PoolKey id) { return HeldState{native::getCheckpointState(0, id)}; }, Unlocked());
  m.def(
      "restore",
      [](const HeldState& state) {
        native::CheckpointDelta delta = native::setCheckpointPoolState(0, state.state);
        std::vector<std::uintptr_t> freed, made;
        bool ours = true;
        for (void* pointer : delta.ptrs_freed) freed.push_back(reinterpret_cast<std::uintptr_t>(pointer));
        for (c10::DataPtr& data : delta.dataptrs_allocd) {
          made.push_back(reinterpret_cast<std::uintptr_t>(data.get()));
          ours = ours && data.get_deleter() == native::get()->raw_deleter() && data.get_context() == data.get();
          data.release_context();  // as PyTorch does for those that no storage takes: raw_delete frees them
        }
        return std::make_tuple(freed, made, ours);
      },
      "(addresses freed, addresses held again, whether all have the one deleter)", Unlocked());
}

}  // namespace dymem
