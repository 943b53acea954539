// See history.hpp (N1..N5).
#include "torch/history.hpp"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>

#include "abi/registry.hpp"
#include "torch/watching.hpp"
#include "trace/recorder.hpp"

namespace dymem {

namespace detail {
std::atomic<std::uint8_t> watching{0};
}

namespace {

using Entry = native::TraceEntry;
using When = native::RecordContext;

constexpr const char* kNoCompileContext = "N/A";  // what PyTorch's allocator writes

std::uint32_t bit(Entry::Action action) { return 1u << static_cast<unsigned>(action); }

Entry::Action action_named(const std::string& name) {
  constexpr std::pair<const char*, Entry::Action> kNames[] = {
      {"alloc", Entry::ALLOC},
      {"free_requested", Entry::FREE_REQUESTED},
      {"free_completed", Entry::FREE_COMPLETED},
      {"segment_alloc", Entry::SEGMENT_ALLOC},
      {"segment_free", Entry::SEGMENT_FREE},
      {"segment_map", Entry::SEGMENT_MAP},
      {"segment_unmap", Entry::SEGMENT_UNMAP},
      {"snapshot", Entry::SNAPSHOT},
      {"oom", Entry::OOM},
  };
  for (const auto& [known, action] : kNames)
    if (name == known) return action;
  constexpr int annotate = torch_compat::annotate_action<Entry>();
  if (annotate >= 0 && name == "annotate") return static_cast<Entry::Action>(annotate);
  const std::string sentence = "dymem: there is no action \"" + name + "\" to leave out of memory history.";
  TORCH_CHECK(false, sentence);
}

void* stream_pointer(StreamId stream) { return reinterpret_cast<void*>(stream); }

// Measures the clock against the system's once; only who records history pays for it.
c10::ApproximateClockToUnixTimeConverter& clock_converter() {
  static auto* const converter = new c10::ApproximateClockToUnixTimeConverter;
  return *converter;
}

void complain_of_tracker(const char* why) noexcept {
  static std::atomic<int> told{0};
  if (told.fetch_add(1) < 3) std::fprintf(stderr, "dymem: an allocator trace tracker failed: %s\n", why);
}

}  // namespace

// What one thread carries from the adapter to the sink and back (N2).
struct History::Thread {
  Context context;                 // of the call that is under way
  bool freeing = false;            // which is a free
  std::vector<Context> over;       // no longer needed by any entry or block
  std::vector<Entry> told;         // for trackers
  std::vector<std::string> compile;
  std::string metadata;
};

namespace {
// Blocks may be freed after the thread's own objects have ended (by others of them, or at exit): then it is made anew.
alignas(History::Thread) thread_local constinit std::byte thread_room[sizeof(History::Thread)] = {};
thread_local constinit bool thread_made = false;
History::Thread* thread_here() { return std::launder(reinterpret_cast<History::Thread*>(thread_room)); }

struct ThreadEnds {
  ~ThreadEnds() {
    if (!thread_made) return;
    History::Thread ended = std::move(*thread_here());  // what it held may call back when it goes
    std::destroy_at(thread_here());
    thread_made = false;
  }
};

History::Thread& this_thread() {
  if (__builtin_expect(!thread_made, 0)) {
    new (thread_room) History::Thread;
    thread_made = true;
    static thread_local ThreadEnds ends;
    (void)ends;
  }
  return *thread_here();
}
}  // namespace

struct History::Device final : EventSink {
  // --- guarded by `mutex`
  mutable std::mutex mutex;
  bool enabled = false;
  bool tracked = false;
  When when = When::NEVER;
  size_t entries_max = 1;
  std::uint32_t skipped = 0;  // actions, by bit()
  std::deque<Entry> ring;
  std::uint64_t written = 0;  // entries ever
  std::unordered_map<Addr, Context> contexts;
  std::string metadata;
  // --- set before the pool has the sink
  int device = 0;
  EventSink* next = nullptr;

  void record(const TraceEvent& event, Addr at) override {
    if (next) next->record(event, at);
    if (event.kind != TraceKind::alloc && event.kind != TraceKind::free_requested) return;
    Thread& thread = this_thread();
    std::lock_guard lock(mutex);
    if (event.kind == TraceKind::free_requested) {
      write(thread, Entry::FREE_REQUESTED, at, event.size, event.stream, why_freed(thread, at));
      return;
    }
    if (enabled && when >= When::STATE) contexts[at] = thread.context;
    write(thread, Entry::ALLOC, at, event.size, event.stream, thread.context);
  }

  void completed(Addr at, Bytes requested, StreamId stream) override {
    if (next) next->completed(at, requested, stream);
    Thread& thread = this_thread();
    std::lock_guard lock(mutex);
    write(thread, Entry::FREE_COMPLETED, at, requested, stream, why_freed(thread, at));
    if (auto known = contexts.find(at); known != contexts.end()) {
      thread.over.push_back(std::move(known->second));
      contexts.erase(known);
    }
  }

  void segment(TraceKind kind, Addr at, Bytes size, bool lent) override {
    if (next) next->segment(kind, at, size, lent);
    Thread& thread = this_thread();
    std::lock_guard lock(mutex);
    write(thread, kind == TraceKind::segment_alloc ? Entry::SEGMENT_MAP : Entry::SEGMENT_UNMAP, at, size, 0,
          thread.context, !lent);
  }

  // Frames of the free where they are wanted, else of the allocation.
  Context why_freed(const Thread& thread, Addr at) const {
    if (thread.freeing && thread.context) return thread.context;
    auto known = contexts.find(at);
    return known == contexts.end() ? Context() : known->second;
  }

  void write(Thread& thread, Entry::Action action, Addr at, Bytes size, StreamId stream, Context context,
             bool for_trackers = true) {
    const bool keep = enabled && !(skipped & bit(action));
    if (!keep && !tracked) return;
    Entry entry(action, static_cast<c10::DeviceIndex>(device), at, size, stream_pointer(stream), {0, 0},
                c10::getApproximateTime(), when >= When::ALLOC ? std::move(context) : Context(),
                thread.compile.empty() ? kNoCompileContext : thread.compile.back(),
                torch_compat::kMetadataOfThread ? thread.metadata : metadata);
    if (tracked && for_trackers) thread.told.push_back(entry);
    if (!keep) return;
    ring.push_back(std::move(entry));
    written++;
    while (ring.size() > entries_max) drop_oldest(thread);
  }

  void drop_oldest(Thread& thread) {
    if (ring.front().context_) thread.over.push_back(std::move(ring.front().context_));
    ring.pop_front();
  }
};

History::History() {
  for (int i = 0; i < kDevicesMax; ++i) {
    devices_[i] = std::make_unique<Device>();
    devices_[i]->device = i;
  }
  static constexpr ForeignCallHooks kHooks{[](int device) noexcept { history().attach_late(device); }, &History::deliver};
  on_foreign_call(&kHooks);
}

History& history() {
  static History* const instance = new History;
  return *instance;
}

// In a forked child a thread that is not there may hold a lock; nothing happens there that a history could tell.
void History::record(const HistorySettings& settings, bool clear) {
  if (forked()) return;
  switch_to(settings, clear);
  std::exchange(this_thread().over, {});
}

void History::switch_to(const HistorySettings& settings, bool clear) {
  TORCH_CHECK(settings.when == When::NEVER || settings.gather || !settings.enabled,
              "dymem: recording contexts needs a function that gathers them.");
  std::uint32_t skipped = 0;
  for (const std::string& action : settings.skip_actions) skipped |= bit(action_named(action));
  clear |= !settings.enabled;
  if (settings.enabled) clock_converter();
  std::vector<std::deque<Entry>> old_entries(kDevicesMax);  // let go of when no lock is held
  std::vector<std::unordered_map<Addr, Context>> old_contexts(kDevicesMax);
  std::lock_guard switching(settings_);
  enabled_ = settings.enabled;
  gather_ = settings.enabled ? settings.gather : nullptr;
  when_ = settings.enabled ? settings.when : When::NEVER;
  for (auto& device : devices_) {
    std::lock_guard lock(device->mutex);
    device->enabled = settings.enabled;
    device->when = when_;
    device->entries_max = std::max<size_t>(settings.entries_max, 1);
    device->skipped = skipped;
    if (clear) device->ring.swap(old_entries[static_cast<size_t>(device->device)]);
    if (!settings.enabled) device->contexts.swap(old_contexts[static_cast<size_t>(device->device)]);
    while (device->ring.size() > device->entries_max) device->drop_oldest(this_thread());
  }
  {
    std::lock_guard lock(annotations_mutex_);
    annotations_max_ = std::max<size_t>(settings.entries_max, 1);
    if (clear) annotations_.clear();
    while (annotations_.size() > annotations_max_) annotations_.pop_front();
  }
  update_watching();
}

// Under settings_. Pools made later are attached to at the first call that finds watching on.
void History::update_watching() {
  const bool watches = enabled_ || tracked_;
  set_watching(Watch::history, watches);
  for (int device = 0; device < kDevicesMax; ++device)
    if (watches) attach(device);
    else detach(device);
}

void History::attach(int device) {
  Pool* const made = pool_if_made(device);
  if (!made || attached_[device]) return;
  Device* const sink = devices_[device].get();
  if (tracked_) made->keep_granules();
  sink->next = recorder(device);
  made->take_over_recording(sink);  // a profile (op_log.hpp) that listened says so when it ends
  attached_[device] = true;
}

void History::detach(int device) {
  Pool* const made = pool_if_made(device);
  if (!made || !attached_[device]) return;
  Device* const sink = devices_[device].get();
  if (sink->next) made->take_over_recording(sink->next);
  else made->set_recorder(nullptr);
  attached_[device] = false;
}

void History::add_tracker(native::AllocatorTraceTracker tracker) {
  std::lock_guard switching(settings_);
  auto all = trackers_ ? std::make_shared<std::vector<native::AllocatorTraceTracker>>(*trackers_)
                       : std::make_shared<std::vector<native::AllocatorTraceTracker>>();
  all->push_back(std::move(tracker));
  trackers_ = std::move(all);
  tracked_ = true;
  for (auto& device : devices_) {
    std::lock_guard lock(device->mutex);
    device->tracked = true;
  }
  for (int device = 0; device < kDevicesMax; ++device)
    if (Pool* made = pool_if_made(device)) made->keep_granules();
  update_watching();
}

Context History::gather(When least) const noexcept {
  const native::CreateContextFn gather = gather_.load(std::memory_order_acquire);
  if (!gather || when_.load(std::memory_order_relaxed) < least) return {};
  try {
    return gather();
  } catch (...) {
    return {};  // frames are a help, and no reason for an allocation to fail
  }
}

History::Call::Call(History& history, int device, Doing doing) noexcept {
  Thread& thread = this_thread();
  outer_ = std::move(thread.context);
  outer_freeing_ = std::exchange(thread.freeing, doing == Doing::free);
  thread.context = history.gather(doing == Doing::allocate ? When::STATE : When::ALL);
  history.attach_late(device);
}

// To a pool that was made after watching began.
void History::attach_late(int device) noexcept {
  if (!(watching() & Watch::history) || device < 0 || device >= kDevicesMax) return;
  if (!attached_[device].load(std::memory_order_acquire)) try {
      std::lock_guard switching(settings_);
      if (watching() & Watch::history) attach(device);
    } catch (...) {
    }
}

History::Call::~Call() {
  Thread& thread = this_thread();
  thread.context = std::move(outer_);
  thread.freeing = outer_freeing_;
  deliver();
}

void History::deliver() noexcept {
  Thread& thread = this_thread();
  if (!thread.told.empty()) history().tell_trackers(thread);
  if (!thread.over.empty()) std::exchange(thread.over, {});
}

void History::tell_trackers(Thread& thread) noexcept {
  const std::vector<Entry> told = std::exchange(thread.told, {});  // trackers may allocate
  try {
    std::shared_ptr<const std::vector<native::AllocatorTraceTracker>> trackers;
    {
      std::lock_guard switching(settings_);
      trackers = trackers_;
    }
    for (const Entry& entry : told)
      for (const auto& tracker : *trackers) tracker(entry);
  } catch (const std::exception& error) {
    complain_of_tracker(error.what());
  } catch (...) {
    complain_of_tracker("unknown error");
  }
}

void History::note_out_of_memory(int device, Bytes requested, Bytes device_free, StreamId stream) {
  if (device < 0 || device >= kDevicesMax) return;
  Thread& thread = this_thread();
  std::lock_guard lock(devices_[device]->mutex);
  devices_[device]->write(thread, Entry::OOM, device_free, requested, stream, thread.context);
}

void History::annotate_block(const void* pointer, const std::string& text) {
  if (!enabled()) return;
  BlockInfo block;
  const Addr address = reinterpret_cast<Addr>(pointer);
  Pool* const owner = pool_of(address);
  if (!owner || !owner->find(address, &block)) return;
  const Context context = gather(When::ALLOC);
  Thread& thread = this_thread();
  Device& device = *devices_[owner->driver().device()];
  std::lock_guard lock(device.mutex);
  if constexpr (torch_compat::annotate_action<Entry>() >= 0) {
    const std::uint64_t before = device.written;
    device.write(thread, static_cast<Entry::Action>(torch_compat::annotate_action<Entry>()), block.address,
                 block.requested, block.stream, context, false);
    if (device.written != before) device.ring.back().user_metadata_ = text;
  }
}

Context History::context_of(const void* pointer) {
  BlockInfo block;
  const Addr address = reinterpret_cast<Addr>(pointer);
  Pool* const owner = pool_of(address);
  if (!owner || !owner->find(address, &block)) return {};
  const Device& device = *devices_[owner->driver().device()];
  std::lock_guard lock(device.mutex);
  auto known = device.contexts.find(block.address);
  return known == device.contexts.end() ? Context() : known->second;
}

void History::set_metadata(int device, const std::string& text) {
  if (torch_compat::kMetadataOfThread) {
    this_thread().metadata = text;
    return;
  }
  if (forked()) return;
  std::lock_guard lock(devices_[device]->mutex);
  devices_[device]->metadata = text;
}

std::string History::metadata(int device) const {
  if (torch_compat::kMetadataOfThread || forked()) return this_thread().metadata;
  std::lock_guard lock(devices_[device]->mutex);
  return devices_[device]->metadata;
}

void History::push_compile_context(const std::string& text) { this_thread().compile.push_back(text); }

void History::pop_compile_context() {
  if (auto& compile = this_thread().compile; !compile.empty()) compile.pop_back();
}

void History::annotate(int device, const std::vector<std::pair<std::string, std::string>>& pairs) {
  if (!enabled() || forked()) return;
  c10::CachingDeviceAllocator::AnnotationEntry entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
  for (const auto& [name, value] : pairs) entry.recordUserMetadata(name, value);
  std::lock_guard lock(annotations_mutex_);
  annotations_.push_back(std::move(entry));
  while (annotations_.size() > annotations_max_) annotations_.pop_front();
}

History::Moment History::moment(int index, Pool& pool, bool with_entries) {
  Moment moment;
  Device& device = *devices_[index];
  Thread& thread = this_thread();
  std::uint64_t until = 0;
  const std::int64_t occupied = pool.stats().active_bytes[kAll].current;
  moment.segments = pool.segments([&] {  // under the pool's lock: what is read here is of one moment
    std::lock_guard lock(device.mutex);
    device.write(thread, Entry::SNAPSHOT, 0, static_cast<Bytes>(occupied), 0, {}, false);
    until = device.written;
    moment.contexts = device.contexts;
  });
  if (!with_entries) return moment;
  {
    std::lock_guard lock(device.mutex);
    const std::uint64_t first = device.written - device.ring.size();
    const std::uint64_t n = until > first ? std::min<std::uint64_t>(until - first, device.ring.size()) : 0;
    moment.entries.assign(device.ring.begin(), device.ring.begin() + static_cast<std::ptrdiff_t>(n));
  }
  if (moment.entries.empty()) return moment;
  const auto to_ns = clock_converter().makeConverter();
  for (Entry& entry : moment.entries) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  return moment;
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> History::annotations() {
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> out;
  {
    std::lock_guard lock(annotations_mutex_);
    out.assign(annotations_.begin(), annotations_.end());
  }
  if (out.empty()) return out;
  const auto to_ns = clock_converter().makeConverter();
  for (auto& entry : out) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  return out;
}

}  // namespace dymem
