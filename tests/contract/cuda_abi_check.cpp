// driver/cuda_abi.hpp and cuda_table.hpp against the real <cuda.h>: compiled, never run (test_cuda_abi.py).
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "driver/cuda_abi.hpp"
#include "driver/cuda_table.hpp"

namespace abi = dymem::cuda_abi;

#define SAME(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)
SAME(abi::kSuccess, CUDA_SUCCESS);
SAME(abi::kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(abi::kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(abi::kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(abi::kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(abi::kErrorNotReady, CUDA_ERROR_NOT_READY);
SAME(abi::kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME(abi::kErrorCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(abi::kErrorCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(abi::kErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME(abi::kErrorCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(abi::kErrorUnknown, CUDA_ERROR_UNKNOWN);
SAME(abi::kAttributeComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(abi::kAttributeVmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED);
SAME(abi::kAttributePosixHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(abi::kAttributeRdmaWithVmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(abi::kComputeModeProhibited, CU_COMPUTEMODE_PROHIBITED);
SAME(abi::kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(abi::kHandleNone, CU_MEM_HANDLE_TYPE_NONE);
SAME(abi::kHandlePosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(abi::kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(abi::kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(abi::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(abi::kHostPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(abi::kHostPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME(abi::kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(abi::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);

SAME(abi::kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

SAME(sizeof(abi::IpcMemHandle), sizeof(CUipcMemHandle));
SAME(sizeof(abi::Device), sizeof(CUdevice));
SAME(sizeof(abi::DevicePtr), sizeof(CUdeviceptr));
SAME(sizeof(abi::Allocation), sizeof(CUmemGenericAllocationHandle));
SAME(sizeof(abi::Location), sizeof(CUmemLocation));
SAME(offsetof(abi::Location, id), offsetof(CUmemLocation, id));
SAME(sizeof(abi::AllocationProp), sizeof(CUmemAllocationProp));
SAME(offsetof(abi::AllocationProp, handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(abi::AllocationProp, location), offsetof(CUmemAllocationProp, location));
SAME(offsetof(abi::AllocationProp, win32_meta_data), offsetof(CUmemAllocationProp, win32HandleMetaData));
SAME(offsetof(abi::AllocationProp, flags), offsetof(CUmemAllocationProp, allocFlags));
SAME(offsetof(abi::AllocationProp, flags.gpu_direct_rdma),
     offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
SAME(sizeof(abi::AccessDesc), sizeof(CUmemAccessDesc));
SAME(offsetof(abi::AccessDesc, flags), offsetof(CUmemAccessDesc, flags));

// The functions: as many parameters, and each of the same size, as the header declares under the versioned name that
// cuda_table.hpp looks up (the header's macros map the plain name to it).
template <class... Ours, class... Theirs>
constexpr bool same_shape(dymem::cuda_abi::Result (*)(Ours...), CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) return ((sizeof(Ours) == sizeof(Theirs)) && ...);
  else return false;
}
constexpr bool same_text(const char* a, const char* b) {
  for (; *a && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}
#define NAME_OF(function) NAME_TEXT(function)
#define NAME_TEXT(function) #function
#define SHAPE(member, function)                                                                              \
  static_assert(same_shape(decltype(dymem::CudaTable::member){}, static_cast<decltype(&function)>(nullptr)), \
                #function);                                                                                  \
  static_assert(same_text(symbol_of_##member, NAME_OF(function)), #function)

#define SYMBOL(member, symbol, parameters) constexpr const char* symbol_of_##member = symbol;
DYMEM_CUDA_FUNCTIONS(SYMBOL)
DYMEM_CUDA_VMM_FUNCTIONS(SYMBOL)

SHAPE(init, cuInit);
SHAPE(get_error_string, cuGetErrorString);
SHAPE(device_count, cuDeviceGetCount);
SHAPE(device_get, cuDeviceGet);
SHAPE(device_attribute, cuDeviceGetAttribute);
SHAPE(device_can_access_peer, cuDeviceCanAccessPeer);
SHAPE(primary_retain, cuDevicePrimaryCtxRetain);
SHAPE(primary_release, cuDevicePrimaryCtxRelease);
SHAPE(context_current, cuCtxGetCurrent);
SHAPE(context_push, cuCtxPushCurrent);
SHAPE(context_pop, cuCtxPopCurrent);
SHAPE(memory_info, cuMemGetInfo);
SHAPE(mem_alloc, cuMemAlloc);
SHAPE(mem_free, cuMemFree);
SHAPE(copy_to_device, cuMemcpyHtoD);
SHAPE(copy_to_host, cuMemcpyDtoH);
SHAPE(copy_to_device_async, cuMemcpyHtoDAsync);
SHAPE(copy_to_host_async, cuMemcpyDtoHAsync);
SHAPE(host_register, cuMemHostRegister);
SHAPE(host_unregister, cuMemHostUnregister);
SHAPE(host_alloc, cuMemHostAlloc);
SHAPE(host_free, cuMemFreeHost);
SHAPE(context_synchronize, cuCtxSynchronize);
SHAPE(event_create, cuEventCreate);
SHAPE(event_destroy, cuEventDestroy);
SHAPE(event_record, cuEventRecord);
SHAPE(event_query, cuEventQuery);
SHAPE(event_synchronize, cuEventSynchronize);
SHAPE(stream_wait_event, cuStreamWaitEvent);
SHAPE(stream_is_capturing, cuStreamIsCapturing);
SHAPE(granularity, cuMemGetAllocationGranularity);
SHAPE(address_reserve, cuMemAddressReserve);
SHAPE(address_free, cuMemAddressFree);
SHAPE(mem_create, cuMemCreate);
SHAPE(mem_release, cuMemRelease);
SHAPE(mem_map, cuMemMap);
SHAPE(mem_unmap, cuMemUnmap);
SHAPE(mem_set_access, cuMemSetAccess);
SHAPE(mem_get_access, cuMemGetAccess);
SHAPE(mem_export, cuMemExportToShareableHandle);
SHAPE(mem_import, cuMemImportFromShareableHandle);
SHAPE(mem_range, cuMemGetAddressRange);
SHAPE(ipc_get, cuIpcGetMemHandle);
SHAPE(ipc_open, cuIpcOpenMemHandle);
SHAPE(ipc_close, cuIpcCloseMemHandle);
