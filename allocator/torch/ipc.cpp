// CUDA IPC: tensors sent to other processes by torch.multiprocessing, and received from them. The work is done in
// abi/sharing; here is what PyTorch asks, in its words and with its errors.
//
// PyTorch counts the receivers of a tensor and frees the sender's block when all have let go, so that freeing it is the
// end of the export. Who received drops the mapping before the streams that use it are waited for: abi/sharing waits.
// The block of a received tensor is not ours: its deleter is PyTorch's, and record_stream() on it does nothing.
#include "abi/sharing.hpp"

#include "torch/adapter.hpp"
#include "torch/raise.hpp"

namespace dymem {

native::ShareableHandle TorchAllocator::shareIpcHandle(void* pointer) {
  if (forwarded_.holds(pointer)) return forwarded_.share(pointer);  // of a graph or a MemPool
  try {
    const SharedHandle shared = share(reinterpret_cast<Addr>(pointer));
    return {static_cast<std::ptrdiff_t>(shared.offset), shared.handle};
  } catch (const Error& error) {
    raise(error.what());
  }
}

std::shared_ptr<void> TorchAllocator::open_shared_on(const std::string& handle, int device) {
  try {
    return open_shared(handle, device);
  } catch (const Error& error) {
    raise(error.what());
  }
}

// PyTorch has made the device that the sender named the current one.
std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string handle) {
  int device = 0;
  StreamId stream = 0;
  current_place(&device, &stream);
  return open_shared_on(handle, device);
}

}  // namespace dymem
