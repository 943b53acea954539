// The little of the CUDA driver's binary interface that dymem uses, declared here so that building needs no toolkit.
//
//   Values and layouts are those of CUDA 11.2 and later and are part of the driver's stable ABI; function names carry
//   their version (_v2) in cuda_table.hpp. tests/contract/cuda_abi_check.cpp holds all of it against <cuda.h> where
//   one is installed.
#pragma once
#include <cstddef>

namespace dymem::cuda_abi {

using Result = int;                     // CUresult
using Device = int;                     // CUdevice: the ordinal
using DevicePtr = unsigned long long;   // CUdeviceptr
using Allocation = unsigned long long;  // CUmemGenericAllocationHandle
using Context = struct ContextOpaque*;  // CUcontext
using Stream = struct StreamOpaque*;    // CUstream
using Event = struct EventOpaque*;      // CUevent

constexpr Result kSuccess = 0;
constexpr Result kErrorInvalidValue = 1;
constexpr Result kErrorOutOfMemory = 2;
constexpr Result kErrorNotInitialized = 3;
constexpr Result kErrorInvalidHandle = 400;
constexpr Result kErrorNotReady = 600;
constexpr Result kErrorNotSupported = 801;
constexpr Result kErrorCaptureUnsupported = 900;  // the first of those that concern captures …
constexpr Result kErrorCaptureImplicit = 906;     // … asked about the legacy stream while another one is captured …
constexpr Result kErrorCapturedEvent = 907;
constexpr Result kErrorCaptureWrongThread = 908;  // … and the last
constexpr Result kErrorUnknown = 999;

constexpr int kAttributeComputeMode = 20;
constexpr int kAttributeVmm = 102;
constexpr int kAttributePosixHandles = 103;
constexpr int kAttributeRdmaWithVmm = 110;
constexpr int kComputeModeProhibited = 2;

constexpr unsigned kAllocationPinned = 1;
constexpr unsigned kHandleNone = 0;
constexpr unsigned kHandlePosixFileDescriptor = 1;
constexpr unsigned kLocationDevice = 1;
constexpr unsigned kGranularityMinimum = 0;
constexpr unsigned kAccessReadWrite = 3;
constexpr unsigned kHostPortable = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kCaptureNone = 0;
constexpr unsigned kIpcLazyPeerAccess = 1;

struct Location {  // CUmemLocation
  unsigned type = 0;
  int id = 0;
};

struct AllocationProp {  // CUmemAllocationProp
  unsigned type = 0;
  unsigned handle_types = 0;
  Location location;
  void* win32_meta_data = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

struct IpcMemHandle {  // CUipcMemHandle: opaque
  unsigned char bytes[64] = {};
};

struct AccessDesc {  // CUmemAccessDesc
  Location location;
  unsigned flags = 0;
};

}  // namespace dymem::cuda_abi
