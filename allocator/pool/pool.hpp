// The pool: one per device; the only lock of the core is here.
//
// Interface for the adapter (torch/), the C symbols (abi/), replay/ and the bindings. Thread safe. Nothing below calls
// Python or takes a lock of anyone else while the pool's lock is held; the out-of-memory callback runs unlocked.
//
// Costs on the fast path (no driver call): one uncontended lock, one table lookup, one or two index updates; see
// docs/decisions/0003 and bench/pool_calls.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/event.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "pool/config.hpp"
#include "pool/exported_memory.hpp"
#include "pool/mobility.hpp"
#include "pool/sleep.hpp"
#include "pool/stats.hpp"
#include "pool/unusable.hpp"

namespace dymem {

enum class BlockState : std::uint8_t { free, live, pending };

struct BlockInfo {
  Addr address = 0;
  Bytes size = 0;       // block bytes
  Bytes requested = 0;  // bytes asked for; 0 when free
  StreamId stream = 0;
  Mobility mobility = Mobility::untagged;
  BlockState state = BlockState::free;
  bool stitched = false;  // its address is an alias
  // In the trace, where that is recorded.
  std::uint64_t number = kUnnumbered;
};

// What another allocator under the same limit is to be capped at, bytes (kNoLimit: not at all).
struct ForwardedCap {
  Bytes most = kNoLimit;
  bool fell = false;  // it may hold more until it goes by this one
};

// Memory that reads as one piece, tiled by its blocks. Every byte the pool holds is in exactly one: where a stitched block
// sees memory at second addresses, it is in that block's segment and not at home.
struct PoolSegment {
  Addr address = 0;
  Bytes size = 0;
  bool small = false;     // of the arena for blocks up to 512 KiB
  bool stitched = false;  // one stitched block
  std::vector<BlockInfo> blocks;  // neighbouring free ones are told as one; what hides in sleeping granules is free
};

// Called when the device or the limit has nothing left, before failing; returns bytes it set free (0 = give up).
using ReclaimCallback = std::function<Bytes(Bytes wanted)>;
// How long the calling thread may wait for others' calls of another allocator under the same limit. Asked under the pool's
// lock: it takes none and calls nothing.
using Patience = std::chrono::milliseconds (*)();

class Pool {
 public:
  Pool(Driver& driver, const PoolConfig& config);
  ~Pool();  // gives everything back; processes that exit do not call it (see abi/registry)
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // A block of at least `bytes` (0 counts as 1), ready for work enqueued on `stream` from now on.
  // Throws OutOfMemory, InvalidArgument (absurd size), DriverError, SleepError (everything is asleep).
  Addr malloc(Bytes bytes, StreamId stream, Mobility mobility = Mobility::untagged);
  // The block is not used by work enqueued on its stream from now on. Throws InvalidArgument on an unknown address.
  void free(Addr address);
  bool free_if_held(Addr address);  // the same; false on an unknown address
  // Work already enqueued on `stream` uses the block too: freeing it will wait for that work.
  void record_stream(Addr address, StreamId stream);

  // Give idle granules (contiguous: wholly idle slabs) back to the device, PyTorch's empty_cache; returns by how many
  // bytes reserved fell.
  Bytes trim();
  // Never moved, stitched or given back from now on: captured, registered, exported or peer-shared memory.
  void pin(Addr address);
  void unpin(Addr address);
  // As if every granule, those to come too, held a pinned block for good: for who registers memory by segment.
  void keep_granules();

  // For other processes: names the memory of a held block and pins it until it is freed. Throws InvalidArgument (not held),
  // SleepError, Error (this machine cannot share memory).
  ExportedMemory export_memory(Addr address);
  // Descriptors of at most `count` of the granules that a token names, from number `first` on; the caller closes them.
  // Empty if the driver refuses one. false: no such token; the blocks it named were freed.
  bool export_descriptors(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out);
  bool capturing() const;  // a graph capture is under way on a stream that the pool knows
  // It knows this one, too, though nothing is allocated on it here, until watch() is called with -1.
  void watch(StreamId stream, int count);

  // Gives all physical memory back, or that of some tags, and keeps the addresses; and back again. See sleep.hpp.
  SleepReport sleep(const SleepRequest& request = {});
  SleepReport wake(const WakeRequest& request = {});
  void refuse_sleep(const SleepRequest& request) const;  // throws what sleep() would before it changes anything
  Bytes free_host_slabs();  // pinned slabs that hold nothing, to the system; returns their bytes

  void set_limit(Bytes limit);  // 0 = none
  Bytes limit() const;
  Bytes room() const;  // what may still be taken under the limit, bytes; kNoLimit: there is none

  // Another allocator may hold memory of this device under the pool's limit: the adapter forwards private pools to
  // PyTorch's own. Before such a call, claim_forwarded sets up to `more` bytes of the limit aside and returns how many,
  // and the other is capped at give_forwarded_cap(); after it, what the other holds is settled, and end_forwarded gives
  // the claim back (not settled: with the next figures). The sum never exceeds the limit (claims.hpp).
  Bytes claim_forwarded(Bytes more);
  ForwardedCap give_forwarded_cap();  // one thread at a time, until the other goes by it
  // True: calls are under way and the other is capped higher than they need, without which the pool goes until then. Cap
  // it again; a cap that fell is to be settled after and said to be lowered.
  bool end_forwarded(Bytes claimed, bool settled = true);
  void forwarded_lowered(Bytes given);
  Bytes forwarded_claims() const;  // set aside for calls under way, bytes
  // What the other holds now. `era`: forwarded_era() before it was asked. False: these figures do not count, for they were
  // reset since, a call has ended unsettled, or newer ones are known; ask again.
  bool settle_forwarded(const PoolStats& held, std::uint64_t era);
  std::uint64_t forwarded_era() const;
  // With it, a request that finds nothing waits for bytes that are set aside before it fails; without, it does not.
  void set_patience(Patience patience);
  PoolStats joint_stats() const;   // of the pool and the other together; see joint.hpp

  void set_reclaim_callback(ReclaimCallback callback);

  // Is `address` inside a block a caller holds; if so describe it.
  bool find(Addr address, BlockInfo* out) const;
  bool owns(Addr address) const;  // inside any of the pool's addresses, held or not
  bool gave_tag(Tag tag) const;  // does some block carry it, or did one?
  // The largest block that malloc would hand out on `stream` without growing.
  Bytes largest_free(StreamId stream) const;

  PoolStats stats() const;
  // U_f(j) of what is free now (unusable.hpp). Counted when asked, so not part of stats(), which is asked for often.
  UnusableFree unusable_free() const;
  Bytes reserved_peak() const;  // ever; one load
  // Contiguous backing: what slabs that end where the present blocks do would have to hold; of an open slab all but its
  // gap.
  Bytes spanned() const;
  void reset_peak_stats();
  void reset_accumulated_stats();

  // Every block, by address (held ones at the address the caller has).
  std::vector<BlockInfo> blocks() const;
  // Every byte once, by address; their sizes add up to reserved and sleeping bytes. `meanwhile` runs under the pool's lock,
  // and may do what an EventSink may, so that what it reads is of the same moment.
  std::vector<PoolSegment> segments(const std::function<void()>& meanwhile = {}) const;
  // Recounts everything from the blocks; returns one sentence per broken invariant, naming it. Empty = sound.
  std::vector<std::string> audit() const;

  // Reports every call from now on, numbering blocks from 0: not owned; nullptr = off.
  void set_recorder(EventSink* recorder);
  // Puts `to` in the place of `from`, and numbering goes on; false (nothing done) if `from` does not record here.
  bool replace_recorder(EventSink* from, EventSink* to);
  // Puts `to` in the place of whoever records, and numbering goes on; the same as set_recorder() if nobody does. Whom it
  // took the place of (nullptr: nobody) is in `before`, if that is asked for, when `to` hears its first event.
  void take_over_recording(EventSink* to, EventSink** before = nullptr);

  Driver& driver();
  const PoolConfig& config() const;

  struct Impl;  // pool/impl.hpp

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dymem
