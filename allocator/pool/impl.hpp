// The pool's state, shared by pool.cpp (the fast path), slow_path.cpp (what happens when nothing fits), slab_path.cpp (the
// contiguous backing's way of both), waits.cpp and audit.cpp.
// Nothing outside pool/ includes this. Lock: `mutex`, held by every method here unless it says otherwise.
#pragma once
#include <mutex>
#include <vector>

#include "base/lock.hpp"
#include "pool/claims.hpp"
#include "pool/asleep.hpp"
#include "pool/block_map.hpp"
#include "pool/counters.hpp"
#include "pool/debug_heap.hpp"
#include "pool/exports.hpp"
#include "pool/home.hpp"
#include "pool/joint.hpp"
#include "pool/pool.hpp"
#include "pool/sticky.hpp"
#include "pool/stitcher.hpp"

namespace dymem {

// PyTorch's border between its small and large statistics.
constexpr Bytes kStatSmallMax = kMiB;
// Blocks up to here live in the small arena, in granules of 2 MiB.
constexpr Bytes kSmallMax = 512 * kKiB;

// A callback that always says it freed something must not keep a request from failing.
constexpr int kReclaimRounds = 4;

[[noreturn]] void refuse_during_capture(Bytes size);

struct Pool::Impl {
  Impl(Driver& driver, const PoolConfig& config);

  // --- pool.cpp
  Addr malloc(Bytes bytes, StreamId stream, Mobility mobility, std::unique_lock<Lock>& lock);
  bool free_if_held(Addr address);
  BlockId place(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock);
  void release(BlockId id, LastUse use);  // the block's bytes become free; `use` is from when the caller freed it
  void finish_guarded(LastUse use);
  void pin_granules(Block& b, int by);
  void housekeep();
  void progressed();        // StreamTable::poll saw epochs finish
  void complete_pending();  // pending blocks whose other streams are done become free
  static int part(Bytes size) { return size <= kStatSmallMax ? kSmall : kLarge; }  // of PyTorch's statistics
  void count_reserved();  // after granules were made or given back
  void begin_recording(EventSink* sink);  // numbering begins anew; nullptr: off
  void record(TraceKind kind, const Block& b, Bytes size, StreamId stream);
  void record_completed(const Block& b);            // its bytes are about to become free
  void record_lending(const Block& b, bool begins);  // stitched blocks: of the memory behind it

  // --- slow_path.cpp
  BlockId place_slow(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock);
  BlockId place_guarded(Bytes size, std::unique_lock<Lock>& lock);  // debug mode
  void refused(const Status& s, Bytes asked);  // by the device; throws unless it was for want of memory
  void look();  // at what has finished by now
  BlockId try_fit(int arena, Bytes size, StreamIndex by, bool high);
  BlockId try_views(Bytes size, StreamIndex by);
  BlockId try_grow(int arena, Bytes size, StreamIndex by, bool high, Bytes up_to);
  BlockId try_grow_at(Home::Site site, int arena, Bytes size, StreamIndex by, bool high, Bytes up_to);
  BlockId try_stitch(Bytes size, StreamIndex by, bool high, Bytes allowance);
  BlockId try_move(int arena, Bytes size, StreamIndex by);  // alias off: idle granules to the end of the arena
  BlockId try_beside(int arena, Bytes size, StreamIndex by, bool high);
  BlockId try_during_capture(int arena, Bytes size, StreamIndex by, bool high);
  bool wait_for_everything();
  bool may_map(StreamIndex by) const;  // false: a capture forbids it
  BlockId try_all(int arena, Bytes size, StreamIndex by, bool high);
  Bytes budget(Bytes size) const;  // reserved bytes up to which growing goes before stitching
  Bytes reserved() const { return debug ? debug->reserved() : space.reserved(); }
  Bytes limit_left() const;  // config.limit less what the pool holds; 0: nothing, or no limit
  Bytes set_aside() const;   // of the limit, for forwarded calls that are under way
  bool claims_came_back(Bytes needed, std::unique_lock<Lock>& lock);  // claims.cpp: after waiting for that without the lock
  Bytes own_limit() const;  // config.limit less what is forwarded, 0 = none
  void restart_peaks();
  PoolStats window_stats() const;
  void look_at_free(PoolStats* s) const;
  Bytes allowance() const;  // bytes that may still be taken from the device
  Bytes most_granule(Bytes size) const;  // the largest that a request of `size` may make (granule_sizes.hpp)
  bool fine_granules() const;
  bool near_limit() const;  // little is left of what the pool may hold
  bool reclaimed(Bytes size, std::unique_lock<Lock>& lock);
  void wait_or_fail(Bytes size, StreamIndex by, int round, std::unique_lock<Lock>& lock);
  OutOfMemoryFigures figures(Bytes requested, StreamIndex by) const;
  Bytes trim();

  // --- exports.cpp
  ExportedMemory export_memory(Addr address);
  Bytes memory_behind(const Block& b, std::vector<Handle>* handles, std::vector<Bytes>* sizes) const;
  static void refused_export(const Status& status);

  // --- relief.cpp: where stitching does not come to rest
  BlockId try_relief(Bytes size, StreamIndex by, bool high);
  void note_rearranged(double us);  // what stitching or moving granules cost
  double rearranged_us() const;     // lately: less what the blocks handed out since then may cost

  // --- slab_path.cpp
  BlockId place_in_slab(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock);
  BlockId place_in_slab_slow(Bytes size, StreamIndex by, const PartsFor& parts, std::unique_lock<Lock>& lock);
  BlockId try_slabs(Bytes size, StreamIndex by, const PartsFor& parts, std::unique_lock<Lock>& lock);
  Place chosen_fit(Bytes size, StreamIndex by, bool high, int tries, Parts part, Choice choice) const;
  BlockId try_parts(Bytes size, StreamIndex by, const PartsFor& parts, int tries);  // in holes
  BlockId try_slab_fit(Bytes size, StreamIndex by, const PartsFor& parts);
  BlockId try_incremental(Bytes size, StreamIndex by);
  BlockId try_gap(Bytes size, StreamIndex by, bool high, Bytes up_to);
  Bytes rise_needed(Bytes size, StreamIndex by) const;
  BlockId try_raise(Bytes size, StreamIndex by, const PartsFor& parts, Bytes up_to);
  bool add_slab(Bytes size, std::unique_lock<Lock>& lock);
  bool give_back_idle_slabs();
  // --- waits.cpp: before growing past the budget by `fresh` bytes
  bool wait_where_free(Bytes fresh, StreamIndex by);
  Epoch passed_for_free(StreamIndex by, StreamIndex on, StreamIndex busiest) const;
  bool wait_for_busiest(Bytes fresh, Bytes size, StreamIndex by);
  bool wait_for_run(Bytes fresh, Bytes size, StreamIndex by);  // contiguous backing
  Bytes above_peak(double share) const;
  void note_peak();
  bool peak_settled() const;

  // --- sleep.cpp
  SleepReport sleep(const SleepRequest& request);
  SleepReport wake(const WakeRequest& request, std::unique_lock<Lock>& lock);
  void refuse_sleep() const;
  void refuse_pinned(const std::vector<GranuleId>& granules) const;
  void refuse_while_asleep() const;
  bool touches_sleep(const Block& b) const;  // some of its bytes are asleep
  std::vector<GranuleId> falling_asleep(const SleepRequest& request, SleepReport* report) const;
  std::vector<Asleep::Content> kept_contents(const std::vector<GranuleId>& granules, const SleepRequest& request,
                                             SleepReport* report) const;
  Status place_contents(std::vector<Asleep::Content>* contents);
  void give_contents(const std::vector<Asleep::Content>& contents);
  Status copy_contents(const std::vector<Asleep::Content>& contents, bool to_host);
  void settle_copies();  // waits for what a failed sleep or wake left under way; throws if the driver still fails
  void hide_free(GranuleId id);
  Dormitory::NeedsView views_in_use() const;
  void waking(const WakeRequest& request, std::vector<GranuleId>* needed, std::vector<GranuleId>* empty) const;
  bool needs_memory(GranuleId id, const std::vector<bool>& wakes) const;
  const Block* holder(BlockId id) const;
  template <class F>
  void each_part(GranuleId id, F f) const;
  template <class F>
  bool all_granules(const Block& b, F f) const;

  Driver& driver;
  PoolConfig config;
  StreamTable streams;
  Space space;
  Home home;
  Stitcher stitcher;
  Sticky sticky;
  Asleep asleep;
  Exports exports;
  BlockMap held;                     // address -> block that a caller holds
  std::unique_ptr<DebugHeap> debug;  // config.debug: takes the place of all of the above

  struct Use {  // record_stream: other streams a held block is used on
    std::vector<StreamIndex> streams;
  };
  std::vector<Use> uses;  // Block::uses - 1
  std::vector<std::uint32_t> spare_uses;
  struct Pending {
    BlockId id;
    LastUse own;                 // of its own stream, when the caller freed it
    std::vector<LastUse> waits;  // of the others
    bool asleep = false;         // waits for its granules to wake
  };
  std::vector<Pending> pending;
  bool slow_free = false;  // debug mode, or some granules are asleep: a free has to look closer
  unsigned calls = 0;      // mallocs, wrapping
  double rearranged_us_then = 0;
  unsigned rearranged_at = 0;  // `calls` at that time
  unsigned until_poll = 0;  // mallocs until pending blocks are looked at again

  Counters counters;               // what every call counts
  PoolStats stats;                 // the rest
  Joint joint;                     // with what is forwarded
  Claims claims;                   // by forwarded calls that are under way
  TagSet tags_given;            // that some block carries or carried
  bool keeps_granules = false;  // since somebody registers memory by its address (Pool::keep_granules)
  int slab_notices = 0;         // how often a further slab was said to be taken
  Bytes device_limit = ~Bytes{0};  // reserved bytes at which the device last refused; lifted by giving back
  Bytes settled_peak = 0, settled_since = 0;  // note_peak
  Bytes reserved_peak = 0;                    // never reset, as the occupied peak it is compared with
  ReclaimCallback reclaim;
  Patience patience = nullptr;
  EventSink* recorder = nullptr;
  Nanos recorded_from = 0;
  std::uint64_t recorded = 0;
  mutable Lock mutex;
};

BlockInfo describe(const Pool::Impl& pool, const Block& block);  // audit.cpp

}  // namespace dymem
