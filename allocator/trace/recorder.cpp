// The recorder: a store into a chunk that was taken from the heap, and touched, before it was needed.
//
// Invariants
//   R1  Chunks before the last are full; within the last only [0, used) is written. A full chunk is never written again
//       while a reader holds it, so readers copy without holding anyone up.
//   R2  At least the youngest `max_events` events are kept, at most one chunk more.
//   R3  events() can be replayed: what would refer to an allocation that was dropped (or cleared) is left out, and time
//       starts at its first event.
// Locking: record() runs under the pool's lock, but events(), dropped() and clear() may come from any thread, so there
// is a lock of its own, held for a store or for a copy of the list of chunks; uncontended it is two instructions.
// The heap is asked once in kChunkEvents events, and not at all once old chunks are there to be written over.
#include "trace/recorder.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "base/lock.hpp"

namespace dymem {
namespace {

constexpr std::uint64_t kChunkEvents = 64 * 1024;

// Zeroed, so that its pages are there before the first store.
using Chunk = std::shared_ptr<std::vector<TraceEvent>>;
Chunk make_chunk(std::uint64_t events) { return std::make_shared<std::vector<TraceEvent>>(events); }

bool refers_to_block(TraceKind kind) {
  return kind == TraceKind::free_requested || kind == TraceKind::free_completed || kind == TraceKind::record_stream;
}

}  // namespace

struct TraceRecorder::Impl {
  explicit Impl(std::uint64_t max)
      : max_events(std::max<std::uint64_t>(max, 1)), chunk_events(std::min(kChunkEvents, max_events)) {
    last = make_chunk(chunk_events);
    ahead = make_chunk(chunk_events);
  }

  // The last chunk is full: go on in the one taken ahead, and find the next.
  void turn_chunk() {
    full.push_back(std::move(last));
    last = std::move(ahead);
    used = 0;
    ahead.reset();
    while ((full.size() - 1) * chunk_events >= max_events) {
      // Nobody but us holds it: write over it later. A reader that does keeps it alive for as long as it copies.
      if (full.front().use_count() == 1) ahead = std::move(full.front());
      full.pop_front();
      aged += chunk_events;
    }
    if (!ahead) ahead = make_chunk(chunk_events);
  }

  mutable Lock lock;
  const std::uint64_t max_events;
  const std::uint64_t chunk_events;
  std::deque<Chunk> full;  // oldest first
  Chunk last, ahead;
  std::uint64_t used = 0;  // events in `last`
  std::uint64_t aged = 0;  // events in chunks that were dropped
};

TraceRecorder::TraceRecorder(std::uint64_t max_events) : impl_(std::make_unique<Impl>(max_events)) {}
TraceRecorder::~TraceRecorder() = default;

void TraceRecorder::record(const TraceEvent& event, Addr) {
  if (event.block == kUnnumbered) return;
  Impl& r = *impl_;
  std::lock_guard hold(r.lock);
  if (r.used == r.chunk_events) r.turn_chunk();
  (*r.last)[r.used++] = event;
}

std::vector<TraceEvent> TraceRecorder::events() const {
  const Impl& r = *impl_;
  std::vector<Chunk> chunks;
  std::uint64_t used = 0;
  {
    std::lock_guard hold(r.lock);
    chunks.assign(r.full.begin(), r.full.end());
    chunks.push_back(r.last);
    used = r.used;
  }
  const std::uint64_t stored = (chunks.size() - 1) * r.chunk_events + used;
  const std::uint64_t skip = stored > r.max_events ? stored - r.max_events : 0;

  std::vector<TraceEvent> out;
  out.reserve(stored - skip);
  std::unordered_set<std::uint64_t> known;
  for (std::uint64_t c = 0; c < chunks.size(); ++c) {
    const std::uint64_t n = c + 1 < chunks.size() ? r.chunk_events : used;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (c * r.chunk_events + i < skip) continue;
      const TraceEvent& e = (*chunks[c])[i];
      if (e.kind == TraceKind::alloc) known.insert(e.block);
      else if (refers_to_block(e.kind) && !known.count(e.block)) continue;
      out.push_back(e);
    }
  }
  {
    // Under the lock, so that turn_chunk(), which writes over chunks that nobody else holds, comes after our reads.
    std::lock_guard hold(r.lock);
    chunks.clear();
  }
  if (!out.empty()) {
    // The program's marks have a clock of their own: they come when the pool was last asked for something.
    const auto of_pool = [](const TraceEvent& e) { return e.kind != TraceKind::mark; };
    const auto first = std::find_if(out.begin(), out.end(), of_pool);
    const Nanos start = first == out.end() ? 0 : first->time_ns;
    Nanos last = 0;
    for (TraceEvent& e : out) last = e.time_ns = of_pool(e) ? e.time_ns - start : last;
  }
  return out;
}

std::uint64_t TraceRecorder::dropped() const {
  const Impl& r = *impl_;
  std::lock_guard hold(r.lock);
  const std::uint64_t stored = r.full.size() * r.chunk_events + r.used;
  return r.aged + (stored > r.max_events ? stored - r.max_events : 0);
}

void TraceRecorder::clear() {
  Impl& r = *impl_;
  Chunk fresh = make_chunk(r.chunk_events);
  std::deque<Chunk> old;  // given back to the heap after the lock is released
  std::lock_guard hold(r.lock);
  old.swap(r.full);
  r.last.swap(fresh);
  r.used = 0;
  r.aged = 0;
}

}  // namespace dymem
