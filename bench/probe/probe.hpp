// Shared by the probes of the real card: driver functions looked up at run time (no link to libcuda), checked calls,
// aliased granules, and a small JSON writer. Stands alone: depends on nothing of dymem, so that what it finds is about
// the card and its driver only.
//
// Every return code is checked; an unexpected one ends the program with the call's text and the error's name.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace probe {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGranule = 2 * kMiB;

template <typename F>
F lookup(const char* name) {
  static void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* found = lib ? dlsym(lib, name) : nullptr;
  if (!found) {
    std::fprintf(stderr, "probe: libcuda.so.1 has no %s: is the NVIDIA driver installed?\n", name);
    std::exit(2);
  }
  return reinterpret_cast<F>(found);
}

#define PROBE_DRIVER_FUNCTION(name) inline const auto name = lookup<decltype(&::name)>(#name)
namespace driver {
PROBE_DRIVER_FUNCTION(cuMemAddressReserve);
PROBE_DRIVER_FUNCTION(cuMemAddressFree);
PROBE_DRIVER_FUNCTION(cuMemCreate);
PROBE_DRIVER_FUNCTION(cuMemRelease);
PROBE_DRIVER_FUNCTION(cuMemMap);
PROBE_DRIVER_FUNCTION(cuMemUnmap);
PROBE_DRIVER_FUNCTION(cuMemSetAccess);
PROBE_DRIVER_FUNCTION(cuMemGetAllocationGranularity);
PROBE_DRIVER_FUNCTION(cuMemExportToShareableHandle);
PROBE_DRIVER_FUNCTION(cuMemImportFromShareableHandle);
PROBE_DRIVER_FUNCTION(cuTensorMapEncodeTiled);
PROBE_DRIVER_FUNCTION(cuGetErrorName);
}  // namespace driver
#undef PROBE_DRIVER_FUNCTION

inline std::string error_name(CUresult code) {
  const char* name = nullptr;
  driver::cuGetErrorName(code, &name);
  return name ? name : "CUresult " + std::to_string(int(code));
}

inline void check(CUresult code, const char* call, const char* file, int line) {
  if (code == CUDA_SUCCESS) return;
  std::fprintf(stderr, "probe: %s:%d: %s gave %s\n", file, line, call, error_name(code).c_str());
  std::exit(2);
}
inline void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "probe: %s:%d: %s gave %s\n", file, line, call, cudaGetErrorName(code));
  std::exit(2);
}
#define CHECKED(call) ::probe::check((call), #call, __FILE__, __LINE__)
#define LAUNCHED() CHECKED(cudaGetLastError())

inline CUmemAllocationProp granule_properties(int device, bool exportable) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

inline CUmemAccessDesc access_for(int device) {
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return desc;
}

inline CUdeviceptr reserve(size_t size) {
  CUdeviceptr at = 0;
  CHECKED(driver::cuMemAddressReserve(&at, size, 0, 0, 0));
  return at;
}

inline CUmemGenericAllocationHandle create(size_t size, int device = 0, bool exportable = true) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = granule_properties(device, exportable);
  CHECKED(driver::cuMemCreate(&handle, size, &prop, 0));
  return handle;
}

inline void map(CUdeviceptr at, size_t size, CUmemGenericAllocationHandle handle) {
  CHECKED(driver::cuMemMap(at, size, 0, handle, 0));
}

inline void set_access(CUdeviceptr at, size_t size, int device = 0) {
  const CUmemAccessDesc desc = access_for(device);
  CHECKED(driver::cuMemSetAccess(at, size, &desc, 1));
}

// One granule visible at `views` addresses.
class AliasedGranule {
 public:
  explicit AliasedGranule(int views, size_t size = kGranule) : size_(size), handle_(create(size)) {
    for (int i = 0; i < views; ++i) {
      views_.push_back(reserve(size));
      map(views_.back(), size, handle_);
      set_access(views_.back(), size);
    }
  }
  ~AliasedGranule() {
    CHECKED(cudaDeviceSynchronize());
    for (CUdeviceptr at : views_) {
      CHECKED(driver::cuMemUnmap(at, size_));
      CHECKED(driver::cuMemAddressFree(at, size_));
    }
    CHECKED(driver::cuMemRelease(handle_));
  }
  AliasedGranule(const AliasedGranule&) = delete;
  AliasedGranule& operator=(const AliasedGranule&) = delete;

  uint32_t* words(int view, size_t offset_bytes = 0) const {
    return reinterpret_cast<uint32_t*>(views_[view] + offset_bytes);
  }
  CUdeviceptr address(int view) const { return views_[view]; }
  CUmemGenericAllocationHandle handle() const { return handle_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  CUmemGenericAllocationHandle handle_;
  std::vector<CUdeviceptr> views_;
};

// Has the stream work left? (The runtime remembers "not ready" as an error; it is none, so forget it.)
inline bool still_running(cudaStream_t stream) {
  const cudaError_t code = cudaStreamQuery(stream);
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return true;
  }
  CHECKED(code);
  return false;
}

inline double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[size_t(q * double(values.size() - 1) + 0.5)];
}

// --- JSON: built as text; keys and strings here never need escapes beyond quotes and backslashes.
inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (c == '\n') ? ' ' : c;
  }
  return out + "\"";
}

class JsonObject {
 public:
  JsonObject& put(const std::string& key, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.6g", value);
    return raw(key, text);
  }
  JsonObject& put_int(const std::string& key, long long value) { return raw(key, std::to_string(value)); }
  JsonObject& put_bool(const std::string& key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonObject& put(const std::string& key, const std::string& value) { return raw(key, quoted(value)); }
  JsonObject& raw(const std::string& key, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + json;
    return *this;
  }
  std::string text() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

inline std::string json_array(const std::vector<std::string>& items) {
  std::string out = "[\n";
  for (size_t i = 0; i < items.size(); ++i) out += "    " + items[i] + (i + 1 < items.size() ? ",\n" : "\n");
  return out + "  ]";
}

// "median" and "p90" of microseconds.
inline std::string spread(const std::vector<double>& us) {
  return JsonObject().put("median_us", quantile(us, 0.5)).put("p90_us", quantile(us, 0.9)).text();
}

inline JsonObject machine() {
  cudaDeviceProp prop{};
  CHECKED(cudaGetDeviceProperties(&prop, 0));
  int driver_version = 0, runtime_version = 0, devices = 0;
  CHECKED(cudaDriverGetVersion(&driver_version));
  CHECKED(cudaRuntimeGetVersion(&runtime_version));
  CHECKED(cudaGetDeviceCount(&devices));
  const char* kernel_driver = std::getenv("PROBE_DRIVER");  // set by probe_gpu.sh
  const char* commit = std::getenv("PROBE_COMMIT");
  JsonObject out;
  out.put("gpu", std::string(prop.name)).put_int("gpus", devices).put_int("memory_bytes", prop.totalGlobalMem);
  out.put_int("multiprocessors", prop.multiProcessorCount).put_int("l2_bytes", prop.l2CacheSize);
  out.put("driver", std::string(kernel_driver ? kernel_driver : "unknown"));
  out.put("commit", std::string(commit ? commit : "unknown"));
  out.put_int("cuda_driver", driver_version).put_int("cuda_runtime", runtime_version);
  return out;
}

inline void write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file || std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fclose(file) != 0) {
    std::fprintf(stderr, "probe: cannot write %s: check that the folder exists and has room\n", path.c_str());
    std::exit(2);
  }
}

}  // namespace probe
