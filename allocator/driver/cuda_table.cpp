// See cuda_table.hpp.
#include "driver/cuda_table.hpp"

#include <dlfcn.h>

namespace dymem {
namespace {

template <class Function>
bool look_up(void* library, const char* symbol, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, symbol));
  return *out != nullptr;
}

CudaTable load() {
  CudaTable table;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    table.missing = std::string("there is no NVIDIA driver here (") + (why ? why : "libcuda.so.1 cannot be loaded") +
                    "); install one, or choose the emulated driver";
    return table;
  }
#define DYMEM_CUDA_NEED(member, symbol, parameters)                      \
  if (!look_up(library, symbol, &table.member) && table.missing.empty()) \
    table.missing = "libcuda.so.1 has no function " symbol "; install a newer NVIDIA driver (450 or later)";
  DYMEM_CUDA_FUNCTIONS(DYMEM_CUDA_NEED)
#undef DYMEM_CUDA_NEED
  table.has_vmm = true;
#define DYMEM_CUDA_WANT(member, symbol, parameters) \
  if (!look_up(library, symbol, &table.member)) table.has_vmm = false;
  DYMEM_CUDA_VMM_FUNCTIONS(DYMEM_CUDA_WANT)
#undef DYMEM_CUDA_WANT
  return table;
}

}  // namespace

const CudaTable& cuda_table() {
  static const CudaTable& table = *new CudaTable(load());  // leaked: drivers may still call it while the process exits
  return table;
}

}  // namespace dymem
