// What PyTorch's allocator does and dymem does not do yet. Each raises one sentence that names the feature and says
// what to do meanwhile (T5 of adapter.hpp); what merely asks whether such a thing is on answers no.
#include "torch/adapter.hpp"

namespace dymem {
namespace {

[[noreturn]] void not_yet(const char* feature, const char* meanwhile) {
  const std::string sentence = std::string("dymem does not serve ") + feature + " yet: " + meanwhile + ".";
  TORCH_CHECK_NOT_IMPLEMENTED(false, sentence);
}

constexpr const char* kHistory = "memory history and snapshots";
constexpr const char* kHistoryMeanwhile =
    "install with trace:on and call dymem.save_trace(path), or record under PyTorch's own allocator";
constexpr const char* kSharing = "CUDA IPC (sharing tensors on the GPU with another process)";
constexpr const char* kSharingMeanwhile = "send the tensor from the CPU, or share it from a process without dymem";

}  // namespace

native::SnapshotInfo TorchAllocator::snapshot(c10::MempoolId_t id, bool include_traces) {
  if (id.first || id.second) return forwarded_.snapshot(id, include_traces);  // of one private pool
  not_yet(kHistory, kHistoryMeanwhile);
}

void TorchAllocator::recordHistory(bool enabled, native::CreateContextFn, size_t, native::RecordContext, bool,
                                   const std::vector<std::string>&) {
  if (enabled) not_yet(kHistory, kHistoryMeanwhile);  // switching off what is off is fine
}

void TorchAllocator::setUserMetadata(const std::string& metadata) {
  if (!metadata.empty()) not_yet("user metadata in memory history", kHistoryMeanwhile);
}

void TorchAllocator::attachOomRejectionObserver(torch_compat::OomRejectionObserver) {
  not_yet("observers of requests rejected by throw_on_cudamalloc_oom",
          "use torch._C._cuda_attach_out_of_memory_observer, which is called for every request that fails");
}

native::ShareableHandle TorchAllocator::shareIpcHandle(void*) { not_yet(kSharing, kSharingMeanwhile); }
std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string) { not_yet(kSharing, kSharingMeanwhile); }

}  // namespace dymem
