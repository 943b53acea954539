// What PyTorch's allocator does and dymem does not do yet. Each raises one sentence that names the feature and says
// what to do meanwhile (T5 of adapter.hpp); what merely asks whether such a thing is on answers no.
#include "torch/adapter.hpp"

namespace dymem {
namespace {

[[noreturn]] void not_yet(const char* feature, const char* meanwhile) {
  const std::string sentence = std::string("dymem does not serve ") + feature + " yet: " + meanwhile + ".";
  TORCH_CHECK_NOT_IMPLEMENTED(false, sentence);
}

constexpr const char* kGraphs = "private pools (torch.cuda.graph, torch.cuda.MemPool)";
constexpr const char* kGraphsMeanwhile =
    "run without CUDA graphs (for torch.compile: any mode but reduce-overhead and max-autotune), or without dymem";
constexpr const char* kHistory = "memory history and snapshots";
constexpr const char* kHistoryMeanwhile =
    "install with trace:on and call dymem.save_trace(path), or record under PyTorch's own allocator";

}  // namespace

native::SnapshotInfo TorchAllocator::snapshot(c10::MempoolId_t, bool) { not_yet(kHistory, kHistoryMeanwhile); }

void TorchAllocator::recordHistory(bool enabled, native::CreateContextFn, size_t, native::RecordContext, bool,
                                   const std::vector<std::string>&) {
  if (enabled) not_yet(kHistory, kHistoryMeanwhile);  // switching off what is off is fine
}

void TorchAllocator::setUserMetadata(const std::string& metadata) {
  if (!metadata.empty()) not_yet("user metadata in memory history", kHistoryMeanwhile);
}

void TorchAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker) {
  not_yet("allocator trace trackers (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK)",
          "leave that variable unset: NCCL then works without registered buffers");
}

void TorchAllocator::attachOomRejectionObserver(torch_compat::OomRejectionObserver) {
  not_yet("observers of requests rejected by throw_on_cudamalloc_oom",
          "use torch._C._cuda_attach_out_of_memory_observer, which is called for every request that fails");
}

void TorchAllocator::beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) {
  not_yet(kGraphs, kGraphsMeanwhile);
}
void TorchAllocator::endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) { not_yet(kGraphs, kGraphsMeanwhile); }
void TorchAllocator::createOrIncrefPool(c10::DeviceIndex, c10::MempoolId_t, std::shared_ptr<native::CUDAAllocator>) {
  not_yet(kGraphs, kGraphsMeanwhile);
}
void TorchAllocator::setUseOnOOM(c10::DeviceIndex, c10::MempoolId_t, bool) { not_yet(kGraphs, kGraphsMeanwhile); }
void TorchAllocator::setNoSplit(c10::DeviceIndex, c10::MempoolId_t) { not_yet(kGraphs, kGraphsMeanwhile); }
bool TorchAllocator::checkPoolLiveAllocations(c10::DeviceIndex, c10::MempoolId_t, const std::unordered_set<void*>&) {
  not_yet(kGraphs, kGraphsMeanwhile);
}
std::shared_ptr<native::AllocatorState> TorchAllocator::getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) {
  not_yet(kGraphs, kGraphsMeanwhile);
}
native::CheckpointDelta TorchAllocator::setCheckpointPoolState(c10::DeviceIndex,
                                                               std::shared_ptr<native::AllocatorState>) {
  not_yet(kGraphs, kGraphsMeanwhile);
}
c10::DataPtr TorchAllocator::allocateWithAddress(size_t, void*) {
  not_yet("allocation at a given address", "let dymem choose the address");
}

// No such pool can exist, as none could be made: these run in destructors, which must not throw.
void TorchAllocator::releasePool(c10::DeviceIndex, c10::MempoolId_t) {}
int TorchAllocator::getPoolUseCount(c10::DeviceIndex, c10::MempoolId_t) { return 0; }

}  // namespace dymem
