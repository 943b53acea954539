#include "base/errors.hpp"

#include <cstdio>

namespace dymem {

std::string human_bytes(Bytes n) {
  char text[32];
  if (n < kKiB) std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(n));
  else if (n < kMiB) std::snprintf(text, sizeof text, "%.1f KiB", double(n) / double(kKiB));
  else if (n < kGiB) std::snprintf(text, sizeof text, "%.1f MiB", double(n) / double(kMiB));
  else std::snprintf(text, sizeof text, "%.2f GiB", double(n) / double(kGiB));
  return text;
}

std::string human_address(Addr at) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(at));
  return text;
}

DriverError::DriverError(const char* call_name, int error_code, const std::string& detail)
    : Error(std::string(call_name) + " failed with code " + std::to_string(error_code) +
            (detail.empty() ? "" : ": " + detail)),
      call(call_name),
      code(error_code) {}

// What to try, from what weighs most: first what no arrangement could change, then what stands in the way.
static std::string next_step(const OutOfMemoryFigures& f) {
  const Bytes occupied = f.live + f.pending, held = f.reserved + f.private_pools;
  const Bytes others = f.device_total - f.device_free > held ? f.device_total - f.device_free - held : 0;
  const Bytes idle = f.reserved > occupied ? f.reserved - occupied : 0;
  if (f.device_total && f.requested > f.device_total)
    return "The request alone is larger than this GPU: is a shape wrong? Otherwise split it.";
  if (f.limit && f.requested > f.limit) return "The request alone is larger than the limit: raise it, or split the request.";
  if (f.private_pools >= f.requested && f.private_pools >= f.live)
    return "Private pools hold most of it: drop CUDA graphs and MemPools that are no longer used, or capture fewer.";
  if (f.limit && occupied + f.private_pools + f.requested > f.limit)
    return "The request does not fit under the limit: raise it, or use a smaller batch or activation checkpointing.";
  if (f.pending >= f.requested)
    return "Memory is waiting for work on other streams: synchronize them, or drop record_stream where an event would do.";
  // A context and its libraries take several hundred MiB on any GPU; more is somebody else.
  if (f.device_free < f.requested && others >= f.requested && others > f.device_total / 10)
    return human_bytes(others) + " of the GPU belong to other processes or to libraries: see nvidia-smi, and end what " +
           "is not needed.";
  if (f.limit && f.limit < kGranuleUnit)
    return "The limit is less than the " + human_bytes(kGranuleUnit) + " that memory comes in at least: raise it.";
  if (f.apart)
    return "Under debug:on every block has memory of its own, 2 MiB at least: switch it off, or raise the limit.";
  if (idle >= f.requested && f.kept)
    return human_bytes(idle) + " of what is reserved are free, but in pieces that are not joined since memory is registered " +
           "by its address: switch the registration off (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK), or raise the limit.";
  if (idle >= f.requested && !f.joins)
    return human_bytes(idle) + " of what is reserved are free, but in pieces that this configuration does not join: " +
           "leave alias:on and avoid backing:contiguous, or raise the limit.";
  if (idle >= f.requested && f.shared)
    return human_bytes(idle) + " of what is reserved are free, but beside other blocks, or shared with other processes " +
           "and libraries: stop sharing what need not be, or raise the limit.";
  if (idle >= f.requested)
    return human_bytes(idle) + " of what is reserved are free, but beside other blocks in pieces of up to 32 MiB that " +
           "move as a whole: free what lies beside them, or raise the limit.";
  return "Use a smaller batch or activation checkpointing, or free tensors that are no longer needed.";
}

std::string out_of_memory_sentence(const OutOfMemoryFigures& f) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", f.overhead * 100);
  std::string s = "CUDA out of memory (dymem). Tried to allocate " + human_bytes(f.requested) + " on GPU " +
                  std::to_string(f.device) + ": live " + human_bytes(f.live) + ", pending " + human_bytes(f.pending) +
                  ", reserved " + human_bytes(f.reserved) + ", in private pools " +
                  human_bytes(f.private_pools) + ", limit " +
                  (f.limit ? human_bytes(f.limit) : std::string("none")) + ", largest free block " +
                  human_bytes(f.largest_free) + ", device " + human_bytes(f.device_free) + " free of " +
                  human_bytes(f.device_total) + ", overhead " + percent + ". ";
  return s + next_step(f);
}

OutOfMemory::OutOfMemory(const OutOfMemoryFigures& f) : Error(out_of_memory_sentence(f)), figures(f) {}

void check_failed(const char* file, int line, const char* what, const std::string& values) {
  throw InternalError("dymem: invariant broken at " + std::string(file) + ":" + std::to_string(line) + ": " + what +
                      " [" + values +
                      "]; please report it, with a trace if you can (DYMEM_CONF=trace:on and dymem.save_trace)");
}

}  // namespace dymem
