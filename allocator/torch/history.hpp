// Memory history: what PyTorch's torch.cuda.memory._record_memory_history() switches on, and who else listens.
//
// A pool tells everything through its EventSink, in the order in which it happens and under its own lock; nothing else is
// asked for. The history of a device is such a sink. It passes on what it hears to the recorder of trace:on, if there is
// one, writes trace entries into a ring and remembers who allocated each live block.
//
//   N1  Off costs one predicted branch in the adapter (watching.hpp), and nothing in the pool.
//   N2  Contexts (stack frames) are gathered before the pool is called and let go of after it has returned, on the same
//       thread: neither Python nor a lock of someone else is ever taken under a lock of ours. In between, they wait in
//       thread-local state, where the sink finds them.
//   N3  Each byte of the pool appears at one address at a time: at its own, or, while a stitched block sees it at second
//       addresses, there. Entries tell of the move: what is lent goes by segment_unmap, the stitched block's addresses
//       come by segment_map, and back when it is freed. So entries played backwards from the segments of a snapshot
//       (PyTorch's "allocator state history") always meet segments that are there, and what is mapped adds up to
//       reserved bytes at every moment. Granules come and go by segment_map and segment_unmap, as native's expandable
//       segments do: a block may lie in several.
//   N4  Trackers hear of every entry (not of moves: those are no memory of the device), after the pool's lock is
//       released and before the caller has the block. With the first tracker every granule stays where it is for good
//       (Pool::keep_granules), since who registers a segment with a network must hear of its end before it happens: no
//       such end comes (but in debug mode), and nothing registered is stitched.
//   N5  Switching off clears the entries and forgets who allocated what, as native does: take the snapshot before.
// Locks: settings_ around switching and around attaching to a pool (which takes the pool's); one mutex a device, a leaf,
// under the pool's. Never freed, like the pools.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/registry.hpp"
#include "torch/compat.hpp"

namespace dymem {

namespace native = c10::cuda::CUDACachingAllocator;

using Context = std::shared_ptr<c10::GatheredContext>;

struct HistorySettings {
  bool enabled = false;
  native::CreateContextFn gather = nullptr;
  size_t entries_max = 1;
  native::RecordContext when = native::RecordContext::NEVER;
  std::vector<std::string> skip_actions;
};

class History {
 public:
  void record(const HistorySettings& settings, bool clear);  // recordHistory()
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void add_tracker(native::AllocatorTraceTracker tracker);

  // Around one call of a pool: gathers the context first, and afterwards tells trackers and lets go of what is over.
  enum class Doing { allocate, free };
  class Call {
   public:
    Call(History& history, int device, Doing doing) noexcept;
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Context outer_;
    bool outer_freeing_;
  };

  // Tells trackers and lets go of what is over, after a call of a pool by this thread that had no Call around it.
  static void deliver() noexcept;

  void note_out_of_memory(int device, Bytes requested, Bytes device_free, StreamId stream);
  void annotate_block(const void* pointer, const std::string& text);  // annotateMemory()
  Context context_of(const void* pointer);                            // of the live block that holds it, or nothing

  // What is written onto entries: as in the torch at hand, of the calling thread or of a device.
  void set_metadata(int device, const std::string& text);
  std::string metadata(int device) const;
  void push_compile_context(const std::string& text);
  void pop_compile_context();
  void annotate(int device, const std::vector<std::pair<std::string, std::string>>& pairs);  // recordAnnotation()

  // A snapshot's part of a device: the pool's segments, and (if asked for) the entries up to that very moment.
  struct Moment {
    std::vector<PoolSegment> segments;
    std::unordered_map<Addr, Context> contexts;  // of live blocks
    std::vector<native::TraceEntry> entries;     // times in µs since 1970
  };
  Moment moment(int device, Pool& pool, bool with_entries);
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations();

  struct Device;  // the sink
  struct Thread;

 private:
  friend History& history();
  History();
  void switch_to(const HistorySettings& settings, bool clear);
  void attach(int device);  // the sink to the pool of a device, if it is wanted and not there yet
  void attach_late(int device) noexcept;
  void detach(int device);
  void update_watching();
  Context gather(native::RecordContext least) const noexcept;
  void tell_trackers(Thread& thread) noexcept;

  std::mutex settings_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> tracked_{false};
  std::atomic<native::CreateContextFn> gather_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};
  std::atomic<bool> attached_[kDevicesMax] = {};
  std::unique_ptr<Device> devices_[kDevicesMax];
  std::shared_ptr<const std::vector<native::AllocatorTraceTracker>> trackers_;  // replaced, never changed; settings_
  mutable std::mutex annotations_mutex_;
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  size_t annotations_max_ = 1;
};

History& history();

}  // namespace dymem
