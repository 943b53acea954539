// The driver's functions, looked up in libcuda.so.1 at run time: dymem links to no CUDA library and loads without one.
//
//   Names are exact, version suffix included, so that a newer driver still gives the interface declared here. The
//   legacy default stream's variants are meant (no _ptsz): stream 0 is the legacy stream, as in PyTorch.
//   Loaded once a process, on first use (thread-safe), never unloaded.
#pragma once
#include <string>

#include "driver/cuda_abi.hpp"

namespace dymem {

// X(member, symbol, parameters): needed by every device.
#define DYMEM_CUDA_FUNCTIONS(X)                                                                                  \
  X(init, "cuInit", (unsigned flags))                                                                            \
  X(get_error_string, "cuGetErrorString", (cuda_abi::Result error, const char** text))                           \
  X(device_count, "cuDeviceGetCount", (int* count))                                                              \
  X(device_get, "cuDeviceGet", (cuda_abi::Device * device, int ordinal))                                         \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, cuda_abi::Device device))              \
  X(device_can_access_peer, "cuDeviceCanAccessPeer", (int* can, cuda_abi::Device device, cuda_abi::Device peer)) \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (cuda_abi::Context * context, cuda_abi::Device device))          \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cuda_abi::Device device))                                  \
  X(context_current, "cuCtxGetCurrent", (cuda_abi::Context * context))                                           \
  X(context_push, "cuCtxPushCurrent_v2", (cuda_abi::Context context))                                            \
  X(context_pop, "cuCtxPopCurrent_v2", (cuda_abi::Context * context))                                            \
  X(memory_info, "cuMemGetInfo_v2", (std::size_t* free, std::size_t* total))                                     \
  X(mem_alloc, "cuMemAlloc_v2", (cuda_abi::DevicePtr * at, std::size_t size))                                    \
  X(mem_free, "cuMemFree_v2", (cuda_abi::DevicePtr at))                                                          \
  X(mem_range, "cuMemGetAddressRange_v2", (cuda_abi::DevicePtr * base, std::size_t* size, cuda_abi::DevicePtr at)) \
  X(ipc_get, "cuIpcGetMemHandle", (cuda_abi::IpcMemHandle * handle, cuda_abi::DevicePtr at))                     \
  X(ipc_open, "cuIpcOpenMemHandle_v2",                                                                           \
    (cuda_abi::DevicePtr * at, cuda_abi::IpcMemHandle handle, unsigned flags))                                   \
  X(ipc_close, "cuIpcCloseMemHandle", (cuda_abi::DevicePtr at))                                                  \
  X(copy_to_device, "cuMemcpyHtoD_v2", (cuda_abi::DevicePtr to, const void* from, std::size_t size))             \
  X(copy_to_host, "cuMemcpyDtoH_v2", (void* to, cuda_abi::DevicePtr from, std::size_t size))                     \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2",                                                                \
    (cuda_abi::DevicePtr to, const void* from, std::size_t size, cuda_abi::Stream stream))                       \
  X(copy_to_host_async, "cuMemcpyDtoHAsync_v2",                                                                  \
    (void* to, cuda_abi::DevicePtr from, std::size_t size, cuda_abi::Stream stream))                             \
  X(host_register, "cuMemHostRegister_v2", (void* base, std::size_t size, unsigned flags))                       \
  X(host_unregister, "cuMemHostUnregister", (void* base))                                                        \
  X(host_alloc, "cuMemHostAlloc", (void** base, std::size_t size, unsigned flags))                               \
  X(host_free, "cuMemFreeHost", (void* base))                                                                    \
  X(context_synchronize, "cuCtxSynchronize", (void))                                                             \
  X(event_create, "cuEventCreate", (cuda_abi::Event * event, unsigned flags))                                    \
  X(event_destroy, "cuEventDestroy_v2", (cuda_abi::Event event))                                                 \
  X(event_record, "cuEventRecord", (cuda_abi::Event event, cuda_abi::Stream stream))                             \
  X(event_query, "cuEventQuery", (cuda_abi::Event event))                                                        \
  X(event_synchronize, "cuEventSynchronize", (cuda_abi::Event event))                                            \
  X(stream_wait_event, "cuStreamWaitEvent", (cuda_abi::Stream stream, cuda_abi::Event event, unsigned flags))    \
  X(stream_is_capturing, "cuStreamIsCapturing", (cuda_abi::Stream stream, unsigned* status))

// Virtual memory management: old drivers lack these; then has_vmm is false.
#define DYMEM_CUDA_VMM_FUNCTIONS(X)                                                                                    \
  X(granularity, "cuMemGetAllocationGranularity",                                                                      \
    (std::size_t* granularity, const cuda_abi::AllocationProp* prop, unsigned option))                                 \
  X(address_reserve, "cuMemAddressReserve",                                                                            \
    (cuda_abi::DevicePtr * at, std::size_t size, std::size_t alignment, cuda_abi::DevicePtr hint,                      \
     unsigned long long flags))                                                                                        \
  X(address_free, "cuMemAddressFree", (cuda_abi::DevicePtr at, std::size_t size))                                      \
  X(mem_create, "cuMemCreate",                                                                                         \
    (cuda_abi::Allocation * handle, std::size_t size, const cuda_abi::AllocationProp* prop, unsigned long long flags)) \
  X(mem_release, "cuMemRelease", (cuda_abi::Allocation handle))                                                        \
  X(mem_map, "cuMemMap",                                                                                               \
    (cuda_abi::DevicePtr at, std::size_t size, std::size_t offset, cuda_abi::Allocation handle,                        \
     unsigned long long flags))                                                                                        \
  X(mem_unmap, "cuMemUnmap", (cuda_abi::DevicePtr at, std::size_t size))                                               \
  X(mem_set_access, "cuMemSetAccess",                                                                                  \
    (cuda_abi::DevicePtr at, std::size_t size, const cuda_abi::AccessDesc* desc, std::size_t count))                   \
  X(mem_get_access, "cuMemGetAccess",                                                                                  \
    (unsigned long long* flags, const cuda_abi::Location* location, cuda_abi::DevicePtr at))                           \
  X(mem_export, "cuMemExportToShareableHandle",                                                                        \
    (void* shareable, cuda_abi::Allocation handle, unsigned type, unsigned long long flags))                           \
  X(mem_import, "cuMemImportFromShareableHandle",                                                                      \
    (cuda_abi::Allocation * handle, void* shareable, unsigned type))

struct CudaTable {
#define DYMEM_CUDA_MEMBER(member, symbol, parameters) cuda_abi::Result(*member) parameters = nullptr;
  DYMEM_CUDA_FUNCTIONS(DYMEM_CUDA_MEMBER)
  DYMEM_CUDA_VMM_FUNCTIONS(DYMEM_CUDA_MEMBER)
#undef DYMEM_CUDA_MEMBER
  bool has_vmm = false;  // all of the second list were found
  std::string missing;   // why the table cannot be used: one sentence; empty = it can
};

const CudaTable& cuda_table();

}  // namespace dymem
