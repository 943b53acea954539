// The operator log: for one profiled iteration, which operator or autograd node began and ended when on which thread,
// which storages it was given, and between them what was allocated and freed. Facts about allocations are made of
// it (python/dymem/mobility). It listens where PyTorch's own profiler does (at::RecordFunction) and where the pool
// records (EventSink), so nothing is hooked in Python, in modules, in autograd's graph or in saved tensors: what is
// computed, and what is kept alive, stays as it is.
//
//   O1  Entries of one thread are in the order in which they happened there, allocations within the operator that made
//       them. An allocation stands before every entry that has its address, a free after the last use known.
//   O2  While it runs nothing is dropped silently: what does not fit into kEntriesMax is counted in `lost`.
//   O3  Stopped, it leaves nothing behind: no callback, no sink. Its own object is never freed, since operators that
//       began under it may end later.
//   O4  What an operator of PyTorch calls has no entries, and what is allocated there is the operator's; what a custom
//       function, a node of autograd or a tensor written in Python (DTensor) calls has. Ranges that the program named
//       have none, but an optimizer's. So a log grows by what the program does, not by how PyTorch does it.
// Locks: control_ around start and stop, which takes the pools' locks; mutex_ around the entries, a leaf, also under a
// pool's lock. Callbacks take no lock but that one and never throw.
#pragma once
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "abi/registry.hpp"

namespace dymem {

enum class OpEntryKind : std::uint8_t {
  begin,  // name; a = sequence number of autograd (or ~0); b = a node's forward thread; flags: OpFlags
  end,    // of the innermost that is open on the thread
  input,  // a = address, b = bytes of the storage; flags: OpFlags
  alloc,  // a = address, b = bytes, c = number; name = stream (index), flags = device
  freed,  // a = address, c = number (~0: from before); flags = device
  held,   // as alloc: from before the log began
};

struct OpFlags {
  static constexpr std::uint8_t node = 1;  // begin: an autograd node runs (backward)
  static constexpr std::uint8_t user = 2;  // begin: a range that the program named
  static constexpr std::uint8_t grad = 4;  // begin: autograd records what happens here
  static constexpr std::uint8_t leaf = 1;  // input: a leaf of the graph that takes a gradient
};

struct OpEntry {
  OpEntryKind kind;
  std::uint8_t flags;
  std::uint16_t thread;
  std::uint32_t name;
  std::uint64_t a, b, c;
};
static_assert(sizeof(OpEntry) == 32);

class OpLog {
 public:
  static constexpr std::uint64_t kEntriesMax = 1 << 23;

  struct Result {
    std::vector<OpEntry> entries;
    std::vector<std::string> names;
    std::vector<StreamId> streams;
    std::uint64_t lost = 0;
    std::uint16_t thread = 0;  // that started it
    bool displaced = false;    // another sink took the pool over meanwhile
  };

  // Listens to every pool that exists; `host`: to this thread's (and its backward's) memory of the CPU instead.
  // Throws InvalidArgument if it runs already.
  void start(bool host);
  Result stop();  // a host log: on the thread that started it
  bool running() const { return running_.load(std::memory_order_acquire); }

 private:
  friend OpLog& op_log();
  class PoolTap;
  class HostTap;
  OpLog();

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& fn);
  static void ended(const at::RecordFunction& fn, at::ObserverContext* context);
  void add(const OpEntry* entries, std::size_t count) noexcept;  // under mutex_
  void add_memory(OpEntryKind kind, std::uint8_t device, Addr at, Bytes size, std::uint64_t number,
                  StreamId stream) noexcept;
  std::uint32_t name_number(std::string_view name);  // under mutex_
  std::uint32_t stream_number(StreamId stream);      // under mutex_
  void note_pools();

  std::mutex control_;
  std::atomic<bool> running_{false};
  std::atomic<std::uint64_t> run_{0};  // of start(): tells what began under an earlier one
  std::atomic<bool> host_{false};
  std::uint16_t thread_ = 0;
  at::CallbackHandle callback_ = 0;
  std::unique_ptr<PoolTap> taps_[kDevicesMax];
  std::shared_ptr<HostTap> host_tap_;

  std::mutex mutex_;
  std::vector<OpEntry> entries_;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> name_numbers_;
  std::vector<std::string> names_;
  std::vector<StreamId> streams_;
  std::atomic<std::uint64_t> lost_{0};
};

OpLog& op_log();

}  // namespace dymem
