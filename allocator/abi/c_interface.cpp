// The functions of dymem.h: holders.hpp and the registry, with exceptions turned into a status and a sentence.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "abi/dymem.h"
#include "abi/entry.hpp"
#include "abi/holders.hpp"
#include "abi/registry.hpp"
#include "base/pointers.hpp"

namespace dymem {
namespace {

// A pointer, which outlives the thread's destructors: some of them, and those of the process, release memory here.
thread_local constinit std::string* last_sentence = nullptr;
struct ThreadEnds {
  ~ThreadEnds() { delete std::exchange(last_sentence, nullptr); }  // a failure after it leaves one sentence behind
};

dymem_status failed(dymem_status status, const char* sentence) noexcept {
  try {
    if (!last_sentence) {
      last_sentence = new std::string;
      static thread_local ThreadEnds ends;
      (void)ends;
    }
    *last_sentence = sentence;
  } catch (...) {
    if (last_sentence) last_sentence->clear();
  }
  return status;
}

template <class Call>
dymem_status guarded(Call&& call) noexcept {
  try {
    call();
    return DYMEM_OK;
  } catch (const OutOfMemory& error) {
    return failed(DYMEM_OUT_OF_MEMORY, error.what());
  } catch (const InvalidArgument& error) {
    return failed(DYMEM_INVALID, error.what());
  } catch (const SleepError& error) {
    return failed(DYMEM_ASLEEP, error.what());
  } catch (const InternalError& error) {
    return failed(DYMEM_INTERNAL, error.what());
  } catch (const Error& error) {  // DriverError, and a process that forked
    return failed(DYMEM_DRIVER, error.what());
  } catch (const std::exception& error) {
    return failed(DYMEM_INTERNAL, error.what());
  } catch (...) {
    return failed(DYMEM_INTERNAL, "dymem: unknown error.");
  }
}


template <class Pointer>
void require(Pointer pointer, const char* what) {
  if (!pointer) throw InvalidArgument(std::string("dymem: ") + what + " is a null pointer.");
}

void require_device(int device) {
  if (device < 0 || device >= kDevicesMax) throw InvalidArgument("dymem: there is no device " + std::to_string(device) + ".");
}

}  // namespace
}  // namespace dymem

using namespace dymem;

int dymem_abi(void) { return DYMEM_ABI; }

const char* dymem_last_error(void) { return last_sentence ? last_sentence->c_str() : ""; }

dymem_status dymem_configure(const char* configuration) {
  return guarded([&] {
    require(configuration, "the configuration");
    configure(parse_config(configuration));
  });
}

dymem_status dymem_hold(void** address, size_t bytes, int device, void* stream, const char* holder) {
  return guarded([&] {
    require(address, "the place for the address");
    require(holder, "the holder's name");
    *address = nullptr;
    *address = reinterpret_cast<void*>(hold(bytes, device, to_stream(stream), holder));
  });
}

dymem_status dymem_release(void* address) {
  return guarded([&] { release(to_addr(address)); });
}

dymem_status dymem_use_on_stream(void* address, void* stream) {
  return guarded([&] { use_on_stream(to_addr(address), to_stream(stream)); });
}

dymem_status dymem_give_back(uint64_t* given_back_bytes) {
  return guarded([&] {
    const Bytes bytes = trim_all();
    if (given_back_bytes) *given_back_bytes = bytes;
  });
}

dymem_status dymem_memory(int device, dymem_memory_info* info) {
  return guarded([&] {
    require(info, "the place for the figures");
    require_device(device);
    const std::size_t room = info->struct_bytes;  // a program built with an older header has room for less
    if (room < sizeof(info->struct_bytes))
      throw InvalidArgument("dymem: set struct_bytes to sizeof(dymem_memory_info) before asking.");
    dymem_memory_info found{};
    found.struct_bytes = room;
    if (Pool* made = pool_if_made(device)) {
      const PoolStats stats = made->stats();
      found.live_bytes = static_cast<uint64_t>(stats.allocated_bytes[kAll].current);
      found.pending_bytes = static_cast<uint64_t>(stats.pending_bytes.current);
      found.reserved_bytes = static_cast<uint64_t>(stats.reserved_bytes[kAll].current);
      found.reserved_peak_bytes = static_cast<uint64_t>(stats.reserved_bytes[kAll].peak);
      found.limit_bytes = made->limit();
    }
    std::memcpy(info, &found, std::min(room, sizeof found));
  });
}

dymem_status dymem_held(int device, const char* holder, uint64_t* bytes) {
  return guarded([&] {
    require(holder, "the holder's name");
    require(bytes, "the place for the figure");
    require_device(device);
    const auto held = held_by_others(device);
    const auto found = held.find(holder);
    *bytes = found == held.end() ? 0 : static_cast<uint64_t>(found->second.bytes);
  });
}
