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

}  // namespace

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

Bytes TorchAllocator::private_pool_bytes(int) const { return 0; }

// No such pool can exist, as none could be made: these run in destructors, which must not throw.
void TorchAllocator::releasePool(c10::DeviceIndex, c10::MempoolId_t) {}
int TorchAllocator::getPoolUseCount(c10::DeviceIndex, c10::MempoolId_t) { return 0; }

}  // namespace dymem
