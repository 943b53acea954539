// See sharing.hpp (H1..H5).
#include "abi/sharing.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "abi/descriptor_server.hpp"
#include "abi/registry.hpp"
#include "space/leftovers.hpp"

namespace dymem {
namespace {

// --- what a handle says

constexpr char kMagic[] = {'d', 'y', 'm', 'e', 'm', '1'};  // the digit: the format's version
constexpr std::size_t kMagicSize = sizeof kMagic;
constexpr std::size_t kGranulesMax = 1 << 20;
constexpr int kSettleTries = 3;

struct Header {
  ServerName server;
  ExportToken token;
  std::int32_t process = 0;  // for sentences
  std::uint32_t runs = 0;    // of granules of one size, which follow
};
struct Run {
  std::uint64_t size = 0;
  std::uint64_t count = 0;
};

struct Parsed {
  Header header;
  std::vector<Bytes> granules;
  Bytes size = 0;
};

std::string write_handle(const ServerName& server, const ExportedMemory& memory) {
  std::vector<Run> runs;
  for (Bytes size : memory.granules) {
    if (runs.empty() || runs.back().size != size) runs.push_back({size, 0});
    runs.back().count++;
  }
  const Header header{server, memory.token, getpid(), static_cast<std::uint32_t>(runs.size())};
  std::string text(kMagic, kMagicSize);
  text.append(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(reinterpret_cast<const char*>(runs.data()), runs.size() * sizeof(Run));
  return text;
}

[[noreturn]] void not_a_handle() {
  throw InvalidArgument(
      "dymem: what was received is no handle of a shared tensor that this version of dymem knows: run sender and receiver "
      "with the same version.");
}

Parsed read_handle(const std::string& text) {
  Parsed out;
  const std::size_t fixed = kMagicSize + sizeof(Header);
  if (text.size() < fixed || std::memcmp(text.data(), kMagic, kMagicSize) != 0) not_a_handle();
  std::memcpy(&out.header, text.data() + kMagicSize, sizeof(Header));
  if (text.size() - fixed != out.header.runs * sizeof(Run) || out.header.runs == 0) not_a_handle();
  for (std::size_t i = 0; i < out.header.runs; i++) {
    Run run;
    std::memcpy(&run, text.data() + fixed + i * sizeof run, sizeof run);
    if (run.count == 0 || run.count > kGranulesMax - out.granules.size()) not_a_handle();
    if (run.size == 0 || run.count > (kRequestMax - out.size) / run.size) not_a_handle();
    out.granules.insert(out.granules.end(), run.count, run.size);
    out.size += run.size * run.count;
  }
  return out;
}

std::string of_process(const Header& header) { return "process " + std::to_string(header.process); }

[[noreturn]] void refuse(Answer answer, const Header& header) {
  const std::string sender = of_process(header);
  switch (answer) {
    case Answer::nobody:
      throw Error("dymem: " + sender +
                  ", which shared this tensor, has ended, or is out of reach (in another container): keep the sender alive, "
                  "in the same network namespace, until the tensor has been received.");
    case Answer::another_user:
      throw Error("dymem: the tensor was shared by a process of another user, which is not allowed: run " + sender +
                  " and this one as the same user.");
    case Answer::no_such_token:
      throw Error("dymem: the tensor that " + sender +
                  " shared was freed there before it was received here: keep a reference to it in the sender until then.");
    case Answer::refused:
      throw Error("dymem: " + sender +
                  " cannot hand over the memory of the tensor it shared: does it, or this process, have too many files open "
                  "(ulimit -n)?");
    default:
      throw Error("dymem: " + sender + ", which shared this tensor, does not answer: has it just ended, or is it stopped?");
  }
}

// --- mappings

struct Mapping {
  Driver* driver = nullptr;
  int device = 0;
  Addr base = 0;
  Bytes size = 0;
  bool slab = false;  // opened by ticket, not mapped by us
};

using Key = std::pair<int, std::string>;

struct Table {
  std::mutex opening;
  std::mutex mutex;  // of what follows; never held while a driver or a pool is called
  std::map<Key, std::weak_ptr<void>> open;
  std::vector<Mapping> waiting;  // H3
  Imports figures[kDevicesMax];
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

bool close_now(const Mapping& m) {
  const Pool* owner = pool_if_made(m.device);
  if (!owner || owner->capturing()) return false;
  if (!m.driver->synchronize().ok()) return false;
  if (m.slab) return m.driver->close_slab(m.base).ok();
  if (!m.driver->unmap(m.base, m.size).ok()) return false;
  (void)m.driver->release_addresses(m.base, m.size);
  return true;
}

void forget(Table& t, const Mapping& m) {
  t.figures[m.device].bytes -= m.size;
  t.figures[m.device].mappings--;
}

void sweep(Table& t) {
  std::vector<Mapping> waiting;
  {
    std::lock_guard lock(t.mutex);
    waiting.swap(t.waiting);
  }
  for (const Mapping& m : waiting) {
    const bool closed = close_now(m);
    std::lock_guard lock(t.mutex);
    if (closed) {
      forget(t, m);
      t.figures[m.device].waiting--;
    } else {
      t.waiting.push_back(m);
    }
  }
}

// The last owner of a mapping let go: runs in destructors, at any time.
void let_go(const Key& key, const Mapping& m) noexcept {
  if (forked()) return;
  try {
    Table& t = table();
    sweep(t);
    const bool closed = close_now(m);
    std::lock_guard lock(t.mutex);
    if (closed) {
      forget(t, m);
    } else {
      t.waiting.push_back(m);
      t.figures[m.device].waiting++;
    }
    const auto it = t.open.find(key);
    if (it != t.open.end() && it->second.expired()) t.open.erase(it);
  } catch (...) {
  }
}

std::shared_ptr<void> own(Table& t, const Key& key, const Mapping& m) {
  std::shared_ptr<void> owned(reinterpret_cast<void*>(m.base), [key, m](void*) { let_go(key, m); });
  std::lock_guard lock(t.mutex);
  t.open[key] = owned;
  t.figures[m.device].bytes += m.size;
  t.figures[m.device].mappings++;
  return owned;
}

[[noreturn]] void cannot_map(const Status& status, Bytes size, const std::string& sender) {
  throw Error("dymem: " + human_bytes(size) + " that " + sender + " shared cannot be mapped here: " + status.call +
              " failed with code " + std::to_string(status.native) +
              (status.code == Code::unsupported ? "; this machine cannot share GPU memory, send the tensor from the CPU."
                                                : "; do both processes see the same GPU?"));
}

// Every granule imported and mapped, one after the other, or nothing. What the driver refuses to take back is asked for
// again before this ends: nobody would come back to it later.
void map_granules(Driver& driver, const Parsed& shared, Addr base) {
  DescriptorClient client(shared.header.server);
  Leftovers leftovers(driver);
  Addr at = base;
  Status status;
  const auto settle = [&] {
    for (int tries = 0; tries < kSettleTries && !leftovers.sweep().ok();) ++tries;
  };
  const auto undo = [&] {
    if (at > base) leftovers.unmap(base, at - base);
    settle();
  };
  for (std::size_t first = 0; first < shared.granules.size(); first += kDescriptorsMax) {
    const std::size_t count = std::min(kDescriptorsMax, shared.granules.size() - first);
    std::vector<int> fds;
    if (const Answer said = client.fetch(shared.header.token, first, count, &fds); said != Answer::ok) {
      undo();
      refuse(said, shared.header);
    }
    for (std::size_t i = 0; i < count; i++) {
      const Bytes size = shared.granules[first + i];
      Handle handle = 0;
      if (status.ok()) status = driver.import_handle(fds[i], size, &handle);
      close(fds[i]);
      if (!handle) continue;
      status = driver.map(at, size, handle);
      if (status.ok()) at += size;
      leftovers.destroy(handle);  // the mapping holds the memory (D4)
    }
    if (!status.ok()) break;
  }
  if (status.ok()) status = driver.set_access(base, shared.size);
  if (status.ok()) return settle();
  undo();
  cannot_map(status, shared.size, of_process(shared.header));
}

Mapping open_granules(Driver& driver, int device, const std::string& handle) {
  const Parsed shared = read_handle(handle);
  const std::string sender = of_process(shared.header);
  if (!driver.has_vmm())
    throw Error("dymem: the tensor of " + sender +
                " lies in memory that this device cannot map (no virtual memory management): run the sender with "
                "backing:contiguous.");
  Addr base = 0;
  if (const Status status = driver.reserve(shared.size, &base); !status.ok()) cannot_map(status, shared.size, sender);
  try {
    map_granules(driver, shared, base);
  } catch (...) {
    (void)driver.release_addresses(base, shared.size);
    throw;
  }
  return {&driver, device, base, shared.size, false};
}

Mapping open_ticket(Driver& driver, int device, const std::string& text) {
  SlabTicket ticket;
  std::memcpy(ticket.bytes, text.data(), sizeof ticket.bytes);
  Mapping m{&driver, device, 0, 0, true};
  const Status status = driver.open_slab(ticket, &m.base, &m.size);
  if (!status.ok())
    throw Error("dymem: a plain CUDA IPC handle cannot be opened: " + std::string(status.call) + " failed with code " +
                std::to_string(status.native) + "; has the sender ended or freed the tensor, or is it this very process?");
  return m;
}

// PyTorch's own: a raw ticket (as old versions wrote it, and the contiguous backing here), or one byte of version, one of
// type, and the rest. The version says how expandable segments are described; a plain handle's form has never changed.
constexpr std::size_t kTicketSize = sizeof(SlabTicket::bytes);
constexpr std::size_t kNativePrefix = 2;
constexpr char kNativePlain = 'c', kNativeExpandable = 'e';
constexpr unsigned char kNativeVersionMax = 31;  // far above those that exist, and no letter

Mapping open_any(Driver& driver, int device, const std::string& handle) {
  if (handle.size() == kTicketSize) return open_ticket(driver, device, handle);
  const bool native = handle.size() > kNativePrefix && static_cast<unsigned char>(handle[0]) <= kNativeVersionMax;
  if (native && handle[1] == kNativePlain && handle.size() == kNativePrefix + kTicketSize)
    return open_ticket(driver, device, handle.substr(kNativePrefix));
  if (native && handle[1] == kNativeExpandable)
    throw Error(
        "dymem: the tensor comes from a process that runs PyTorch's expandable segments, which only PyTorch's own allocator "
        "opens: run the sender under dymem too, or with expandable_segments:False.");
  return open_granules(driver, device, handle);
}

// On the server's thread, for any pool of this process.
bool descriptors_of(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out) {
  for (int device = 0; device < kDevicesMax; ++device)
    if (Pool* made = pool_if_made(device))
      if (made->export_descriptors(token, first, count, out)) return true;
  return false;
}

}  // namespace

SharedHandle share(Addr address) {
  Pool* owner = pool_of(address);
  if (!owner) {
    if (forked()) (void)pool(0);  // says what is wrong
    throw InvalidArgument("dymem: " + human_address(address) +
                          " is not memory that dymem handed out, so it cannot be shared: share a clone().");
  }
  // Before the block is pinned, since it may fail; slabs need none.
  if (owner->config().backing != Backing::contiguous && owner->driver().has_vmm()) (void)descriptor_server(&descriptors_of);
  const ExportedMemory memory = owner->export_memory(address);
  if (memory.granules.empty())
    return {std::string(reinterpret_cast<const char*>(memory.slab.bytes), sizeof memory.slab.bytes), memory.offset};
  return {write_handle(descriptor_server(&descriptors_of), memory), memory.offset};
}

std::shared_ptr<void> open_shared(const std::string& handle, int device) {
  Driver& driver = pool(device).driver();
  Table& t = table();
  sweep(t);
  const Key key{device, handle};
  std::lock_guard opening(t.opening);
  {
    std::lock_guard lock(t.mutex);
    const auto it = t.open.find(key);
    if (it != t.open.end())
      if (std::shared_ptr<void> still = it->second.lock()) return still;
  }
  return own(t, key, open_any(driver, device, handle));
}

std::pair<Addr, Bytes> map_shared(Driver& driver, const std::string& handle) {
  const Mapping m = open_any(driver, driver.device(), handle);
  return {m.base, m.size};
}

Imports imports(int device) {
  if (forked() || device < 0 || device >= kDevicesMax) return {};
  Table& t = table();
  std::lock_guard lock(t.mutex);
  return t.figures[device];
}

}  // namespace dymem
