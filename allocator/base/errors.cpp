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

static std::string out_of_memory_sentence(const OutOfMemoryFigures& f) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", f.overhead * 100);
  std::string s = "CUDA out of memory (dymem). Tried to allocate " + human_bytes(f.requested) + " on GPU " +
                  std::to_string(f.device) + ": live " + human_bytes(f.live) + ", pending " + human_bytes(f.pending) +
                  ", reserved " + human_bytes(f.reserved) +
                  (f.forwarded ? ", in private pools " + human_bytes(f.forwarded) : std::string()) + ", limit " +
                  (f.limit ? human_bytes(f.limit) : std::string("none")) + ", largest free block " +
                  human_bytes(f.largest_free) + ", device " + human_bytes(f.device_free) + " free of " +
                  human_bytes(f.device_total) + ", overhead " + percent + ". ";
  if (f.limit && f.live + f.pending + f.forwarded + f.requested > f.limit)
    s += "The request does not fit under the limit: raise it, or use a smaller batch or activation checkpointing.";
  else if (f.pending >= f.requested)
    s +=
        "Memory is waiting for work on other streams: synchronize them, or drop record_stream where an event would do.";
  else s += "Use a smaller batch or activation checkpointing, or free tensors that are no longer needed.";
  return s;
}

OutOfMemory::OutOfMemory(const OutOfMemoryFigures& f) : Error(out_of_memory_sentence(f)), figures(f) {}

void check_failed(const char* file, int line, const char* what, const std::string& values) {
  throw InternalError("dymem: invariant broken at " + std::string(file) + ":" + std::to_string(line) + ": " + what +
                      " [" + values +
                      "]; please report it, with a trace if you can (DYMEM_CONF=trace:on and dymem.save_trace)");
}

}  // namespace dymem
