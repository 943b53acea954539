// See holders.hpp (H1..H3). The books are never destroyed: objects of Python release memory while the process ends.
#include "abi/holders.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "abi/entry.hpp"
#include "abi/registry.hpp"

namespace dymem {
namespace {

constexpr std::size_t kNamesMax = 64, kNameLengthMax = 64;

struct Entry {
  Held* held;
  Pool* pool;
  Bytes bytes;
};

struct Books {
  std::mutex mutex;
  std::map<std::string, std::map<int, Held>> held;  // by name, then device; addresses of its values stay
  std::unordered_map<Addr, Entry> entries;
};

Books& books() {
  static Books* const instance = new Books;
  return *instance;
}

[[noreturn]] void refuse(Addr address) {
  throw InvalidArgument("dymem: " + human_address(address) +
                        " is not held: it was released already, or comes from elsewhere.");
}

// Names are shown, and are keys of a dictionary of Python: characters of ASCII that print.
bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= kNameLengthMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

Held* account_of(Books& b, const std::string& holder, int device) {
  if (!is_name(holder) || holder == "torch")
    throw InvalidArgument("dymem: a holder has a name of 1 to 64 printable ASCII characters, for example 'cupy', and "
                          "'torch' is taken.");
  std::lock_guard lock(b.mutex);
  if (!b.held.contains(holder) && b.held.size() >= kNamesMax)
    throw InvalidArgument("dymem: there are 64 holders already; name programs, not single tensors.");
  return &b.held[holder][device];
}

// The pool of what is held at `address`, which the books know no longer.
Pool* strike_out(Addr address) {
  Books& b = books();
  std::lock_guard lock(b.mutex);
  const auto found = b.entries.find(address);
  if (found == b.entries.end()) refuse(address);
  Pool* const owner = found->second.pool;
  found->second.held->bytes -= static_cast<std::int64_t>(found->second.bytes);
  --found->second.held->blocks;
  b.entries.erase(found);
  return owner;
}

}  // namespace

Addr hold(Bytes bytes, int device, StreamId stream, const std::string& holder) {
  if (bytes == 0) return 0;
  Pool& from = pool(device);  // throws if there is no such device, before anything is booked
  const ForeignCall call(device);
  Books& b = books();
  Held* const held = account_of(b, holder, device);
  const Addr address = from.malloc(bytes, stream);
  BlockInfo block;
  try {
    if (!from.find(address, &block)) throw InternalError("dymem: a block that was just handed out is not known.");
    std::lock_guard lock(b.mutex);
    b.entries[address] = {held, &from, block.size};
    held->bytes += static_cast<std::int64_t>(block.size);
    held->peak_bytes = std::max(held->peak_bytes, held->bytes);
    ++held->blocks;
  } catch (...) {
    from.free(address);
    throw;
  }
  return address;
}

void release(Addr address) {
  if (address == 0 || forked()) return;
  const ForeignCall call;
  strike_out(address)->free(address);
}

void release_quietly(Addr address) noexcept {
  if (address == 0 || forked()) return;
  const ForeignCall call;
  try {
    strike_out(address);
  } catch (...) {
    return;  // it is nobody's any more
  }
  free_quietly(address);
}

void use_on_stream(Addr address, StreamId stream) {
  if (address == 0 || forked()) return;
  const ForeignCall call;
  Books& b = books();
  Pool* owner = nullptr;
  {
    std::lock_guard lock(b.mutex);
    const auto found = b.entries.find(address);
    if (found == b.entries.end()) refuse(address);
    owner = found->second.pool;
  }
  owner->record_stream(address, stream);
}

std::map<std::string, Held> held_by_others(int device) {
  std::map<std::string, Held> found;
  if (forked()) return found;
  Books& b = books();
  std::lock_guard lock(b.mutex);
  for (const auto& [name, devices] : b.held)
    if (const auto at = devices.find(device); at != devices.end()) found[name] = at->second;
  return found;
}

}  // namespace dymem
