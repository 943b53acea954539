// The facade and the fast path. See pool.hpp for the interface, impl.hpp for the state.
#include "pool/pool.hpp"

#include <algorithm>

#include "pool/impl.hpp"

namespace dymem {

// Pending blocks are looked at every so many mallocs; on any path that finds nothing they are looked at anyway.
constexpr unsigned kPollEvery = 32;
// Every so many mallocs (a power of two) regions that served their time are looked for.
constexpr unsigned kHousekeepEvery = 4096;
// Smaller blocks find a place of their own anyway; where large ones go decides whether others fit.
constexpr Bytes kStickyMin = 4 * kMiB;

Pool::Impl::Impl(Driver& d, const PoolConfig& c)
    : driver(d),
      config(c),
      streams(d),
      space(d, c.backing),
      home(space, streams),
      stitcher(space, home, streams),
      asleep(space, d) {
  if (!(c.grow_ratio >= 0 && c.grow_ratio <= 1))
    throw InvalidArgument("dymem: grow_ratio is " + std::to_string(c.grow_ratio) + "; it is a number from 0 to 1");
  config.grow_slack = std::min(c.grow_slack, kRequestMax);  // more than any device: no sum of bytes overflows
  if (c.debug) {
    if (!d.has_vmm()) throw InvalidArgument("dymem: debug:on needs a device with virtual memory management");
    debug = std::make_unique<DebugHeap>(d);
    slow_free = true;
  }
  if (space.contiguous()) config.alias = false;
}

void Pool::Impl::count_reserved() {
  auto set = [](Stat& s, std::int64_t now) {
    if (now > s.current) s.increase(now - s.current);
    else if (now < s.current) s.decrease(s.current - now);
  };
  Bytes reserved = this->reserved();
  reserved_peak = std::max(reserved_peak, reserved);
  home.let_marks_rise(allowance() != 0);
  std::uint64_t granules = debug ? debug->mappings() : space.granule_count();
  Bytes small_bytes = debug ? 0 : space.arena_bytes(kSmallArena);
  std::uint64_t small_granules = debug ? 0 : space.arena_granules(kSmallArena);
  set(stats.reserved_bytes[kAll], std::int64_t(reserved));
  set(stats.slab_bytes, std::int64_t(space.slabs().held()));
  set(stats.segment[kAll], std::int64_t(granules));
  set(stats.reserved_bytes[kSmall], std::int64_t(small_bytes));
  set(stats.segment[kSmall], std::int64_t(small_granules));
  set(stats.reserved_bytes[kLarge], std::int64_t(reserved - small_bytes));
  set(stats.segment[kLarge], std::int64_t(granules - small_granules));
  stats.num_device_alloc = std::int64_t(debug ? debug->created() : space.created());
  stats.num_device_free = std::int64_t(debug ? debug->created() - debug->mappings() : space.destroyed());
}

BlockId Pool::Impl::place(Bytes size, StreamIndex by, Mobility mobility, std::unique_lock<Lock>& lock) {
  if (__builtin_expect(debug != nullptr, 0)) return place_guarded(size, lock);
  if (space.contiguous()) return place_in_slab(size, by, mobility, lock);
  if (mobility != Mobility::untagged) mobility = on_granules(config.placement, mobility, size);
  bool high = mobility == Mobility::temporary;
  if (size <= kSmallMax) {
    if (Place p = home.best_fit(kSmallArena, size, by, high)) return home.take(p, size, BlockKind::live);
    return place_slow(size, by, mobility, lock);
  }
  int arena = mobility == Mobility::reclaimed ? kIncrementalArena : kMainArena;
  bool sticks = size >= kStickyMin;
  std::uint64_t key = Sticky::key(size, counters.live(), by);
  if (sticks) sticky.prefetch(key);  // comes while the best fit is looked for
  BlockId id = kNoBlock;
  Place best = home.best_fit(arena, size, by, high);
  Addr before = sticks ? sticky.find(key) : 0;
  if (before && !best.own) {
    if (best && best.at == before) {
      id = home.take(best, size, BlockKind::live);
    } else if (int a = home.arena_of(before); a >= 0) {
      if (a == arena)
        if (Place p = home.at(before, size, by)) id = home.take(p, size, BlockKind::live);
    } else if (Stitcher::Spot s = stitcher.at(before, size, by)) {
      stitcher.set_now(counters.handed_out());
      id = stitcher.take(s, size, by);
      stats.num_stitch_reuses++;
    }
    if (id != kNoBlock) {
      stats.num_sticky_hits++;
      return id;
    }
  }
  id = best ? home.take(best, size, BlockKind::live) : place_slow(size, by, mobility, lock);
  if (sticks) sticky.store(key, home.block(id).at);
  return id;
}

Addr Pool::Impl::malloc(Bytes bytes, StreamId stream, Mobility mobility, std::unique_lock<Lock>& lock) {
  if (__builtin_expect(bytes > kRequestMax, 0))
    throw InvalidArgument("dymem: a request of " + std::to_string(bytes) +
                          " bytes is larger than any device; is a size negative or overflowed?");
  Bytes size = block_size(bytes);
  StreamIndex by = streams.index(stream);
  if (streams.tick()) progressed();
  // A new peak is one only if what is done no longer counts: the pool grows by it.
  if (!pending.empty() && (until_poll-- == 0 || counters.occupied() + size > counters.occupied_peak())) {
    until_poll = kPollEvery;
    if (streams.poll()) progressed();
  }
  if (__builtin_expect((++calls & (kHousekeepEvery - 1)) == 0, 0)) housekeep();
  BlockId id = place(size, by, mobility, lock);
  Block& b = home.block(id);
  b.slack = std::uint16_t(size - bytes);
  b.last_use.stream = by;
  b.mobility = std::uint8_t(mobility);
  b.tag = current_tag;
  if (__builtin_expect(b.tag != kUntagged, 0)) tags_given.set(b.tag);
  held.insert(b.at, id);
  counters.up(part(size), size, bytes);
  Addr at = b.at;
  if (recorder) {
    b.trace_number = ++recorded;
    record_lending(b, true);
    record(TraceKind::alloc, b, bytes, stream);
  }
  return at;
}

// Debug mode is slow on purpose: a free waits for the GPU, so that a use after it faults at once. Where it cannot wait
// (a capture, a driver that refuses) the block stays pending.
void Pool::Impl::finish_guarded(LastUse use) {
  if (streams.any_capturing()) return;
  try {
    streams.synchronize(use);
  } catch (const DriverError&) {
    return;
  }
  complete_pending();
}

void Pool::Impl::pin_granules(Block& b, int by) {
  b.pins = std::uint8_t(b.pins + by);
  if (debug) return;
  auto change = [&](Addr at, Bytes size) {
    for (Addr x = at; x < at + size;) {
      Granule& g = space.granule(space.granule_at(x));
      g.pins += std::uint32_t(by);
      x = g.home + g.size;
    }
  };
  if (b.kind != BlockKind::stitched) return change(b.at, b.size);
  for (BlockId piece = b.next_piece; piece != kNoBlock; piece = home.block(piece).next_piece)
    change(home.block(piece).at, home.block(piece).size);
}

void Pool::Impl::release(BlockId id, LastUse use) {
  const Block& b = home.block(id);
  if (debug) {
    if (recorder) {
      const Bytes mapped = round_up(b.size, kGranuleUnit);
      recorder->segment(TraceKind::segment_free, b.at + b.size - mapped, mapped, false);
    }
    debug->give(b.at);
    home.blocks().drop(id);
    count_reserved();
    return;
  }
  if (b.kind == BlockKind::stitched || b.kind == BlockKind::stitched_pending) stitcher.release(id, use);
  else home.release(id, use);
}

bool Pool::Impl::free_if_held(Addr address) {
  if (streams.tick()) progressed();
  BlockId id = held.take(address);
  if (__builtin_expect(id == kNoBlock, 0)) return false;
  Block& b = home.block(id);
  Bytes size = b.size;
  LastUse use = streams.now(b.last_use.stream);
  streams.note_free(use.stream, size);
  if (__builtin_expect(b.pins != 0, 0)) {
    exports.remove(id);
    pin_granules(b, -int(b.pins));
  }
  if (__builtin_expect(b.uses != 0 || slow_free, 0)) {
    Pending p{id, use, {}, !debug && slow_free && touches_sleep(b)};
    if (b.uses) {
      std::uint32_t u = b.uses - 1;
      for (StreamIndex s : uses[u].streams)
        if (s != b.last_use.stream) p.waits.push_back(streams.fence(s));
      uses[u].streams.clear();
      spare_uses.push_back(u);
      b.uses = 0;
    }
    // A guarded block's mapping goes with it, so it waits for its own stream too.
    if (debug) p.waits.push_back(streams.fence(use.stream));
    if (!p.waits.empty() || p.asleep) {
      counters.pend(part(size), size);
      counters.down(part(size), size, b.requested());
      if (recorder) record(TraceKind::free_requested, b, b.requested(), streams.id(b.last_use.stream));
      b.kind = b.kind == BlockKind::stitched ? BlockKind::stitched_pending : BlockKind::pending;
      pending.push_back(std::move(p));
      if (debug) finish_guarded(use);
      else if (pending.size() > 1 && streams.poll()) progressed();  // what is done must not count beside this one
      return true;
    }
  }
  counters.down(part(size), size, b.requested());
  if (recorder) {
    record(TraceKind::free_requested, b, b.requested(), streams.id(b.last_use.stream));
    record_completed(b);
  }
  release(id, use);
  return true;
}

void Pool::Impl::housekeep() {
  note_peak();
  if (!stitcher.views()) return;
  stitcher.set_now(counters.handed_out());
  if (stitcher.waits_to_retire() && streams.poll()) progressed();
  stitcher.retire();
}

// Some epochs have finished: what waited for them is free, and runs of several last uses become plain again.
void Pool::Impl::progressed() {
  complete_pending();
  home.settle();
}

void Pool::Impl::complete_pending() {
  // Taken out first, in one pass; the order in which callers freed them stays.
  auto waits = [&](Pending& p) {
    std::erase_if(p.waits, [&](LastUse u) { return streams.finished(u); });
    return p.asleep || !p.waits.empty();
  };
  auto first = std::find_if_not(pending.begin(), pending.end(), waits);
  if (first == pending.end()) return;
  auto kept = first;
  std::vector<std::pair<BlockId, LastUse>> done;
  for (auto p = first; p != pending.end(); ++p) {
    if (waits(*p)) *kept++ = std::move(*p);
    else done.push_back({p->id, p->own});
  }
  pending.erase(kept, pending.end());
  for (auto& [id, own] : done) {
    Bytes size = home.block(id).size;
    if (recorder) {
      const Block& b = home.block(id);
      record(TraceKind::free_completed, b, size, streams.id(b.last_use.stream));
      record_completed(b);
    }
    counters.unpend(part(size), size);
    release(id, own);
  }
}

void Pool::Impl::record(TraceKind kind, const Block& b, Bytes size, StreamId stream) {
  TraceEvent e;
  e.time_ns = driver.now() - recorded_from;
  e.block = b.trace_number - 1;
  e.size = size;
  e.stream = stream;
  e.kind = kind;
  e.mobility = kind == TraceKind::free_completed ? 0 : b.mobility;
  recorder->record(e, b.at);
}

void Pool::Impl::record_completed(const Block& b) {
  recorder->completed(b.at, b.requested(), streams.id(b.last_use.stream));
  record_lending(b, false);
}

void Pool::Impl::record_lending(const Block& b, bool begins) {
  if (b.kind != BlockKind::stitched && b.kind != BlockKind::stitched_pending) return;
  if (!begins) recorder->segment(TraceKind::segment_free, b.at, b.size, true);
  for (BlockId p = b.next_piece; p != kNoBlock; p = home.block(p).next_piece)
    recorder->segment(begins ? TraceKind::segment_free : TraceKind::segment_alloc, home.block(p).at, home.block(p).size,
                      true);
  if (begins) recorder->segment(TraceKind::segment_alloc, b.at, b.size, true);
}

// ---------------------------------------------------------------------------------------------------- the facade

Pool::Pool(Driver& driver, const PoolConfig& config) : impl_(std::make_unique<Impl>(driver, config)) {}

Pool::~Pool() {
  impl_->space.tell(nullptr);  // the recorder is not ours, and perhaps gone already
  // Whoever destroys a pool has finished with its memory; the driver may still have work under way.
  try {
    impl_->settle_copies();
    impl_->streams.synchronize_all();
  } catch (const Error&) {
  }
}

Addr Pool::malloc(Bytes bytes, StreamId stream, Mobility mobility) {
  std::unique_lock lock(impl_->mutex);
  return impl_->malloc(bytes, stream, mobility, lock);
}

bool Pool::free_if_held(Addr address) {
  std::lock_guard lock(impl_->mutex);
  return impl_->free_if_held(address);
}

void Pool::free(Addr address) {
  if (!free_if_held(address))
    throw InvalidArgument("dymem: free of " + human_address(address) +
                          ", which is not a block that is held: freed twice, or from another allocator");
}

static Block& held_block(Pool::Impl& p, Addr address, const char* call) {
  BlockId id = p.held.find(address);
  if (id == kNoBlock)
    throw InvalidArgument("dymem: " + std::string(call) + " of " + human_address(address) +
                          ", which is not a block that is held");
  return p.home.block(id);
}

void Pool::record_stream(Addr address, StreamId stream) {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  Block& b = held_block(p, address, "record_stream");
  StreamIndex s = p.streams.index(stream);
  if (p.recorder) p.record(TraceKind::record_stream, b, b.requested(), stream);
  if (s == b.last_use.stream) return;
  if (!b.uses) {
    if (p.spare_uses.empty()) {
      p.uses.emplace_back();
      b.uses = std::uint32_t(p.uses.size());
    } else {
      b.uses = p.spare_uses.back() + 1;
      p.spare_uses.pop_back();
    }
  }
  auto& list = p.uses[b.uses - 1].streams;
  if (std::find(list.begin(), list.end(), s) == list.end()) list.push_back(s);
}

Bytes Pool::trim() {
  std::lock_guard lock(impl_->mutex);
  return impl_->trim();
}

void Pool::pin(Addr address) {
  std::lock_guard lock(impl_->mutex);
  Block& b = held_block(*impl_, address, "pin");
  if (b.pins == 255) throw InvalidArgument("dymem: a block is pinned at most 255 times");
  impl_->pin_granules(b, 1);
}

void Pool::keep_granules() {
  std::lock_guard lock(impl_->mutex);
  impl_->space.keep_granules();
  impl_->config.alias = false;  // nor are new granules stitched
  impl_->keeps_granules = true;
}

void Pool::unpin(Addr address) {
  std::lock_guard lock(impl_->mutex);
  Block& b = held_block(*impl_, address, "unpin");
  if (b.pins == impl_->exports.has(impl_->held.find(address)))
    throw InvalidArgument("dymem: unpin of a block that is not pinned");
  impl_->pin_granules(b, -1);
}

void Pool::set_limit(Bytes limit) {
  std::lock_guard lock(impl_->mutex);
  impl_->config.limit = limit;
  impl_->home.let_marks_rise(impl_->allowance() != 0);
}

Bytes Pool::limit() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->config.limit;
}

Bytes Pool::room() const {
  std::lock_guard lock(impl_->mutex);
  const Bytes limit = impl_->own_limit(), own = impl_->reserved();
  return !limit ? kNoLimit : limit > own ? limit - own : 0;
}

void Pool::set_reclaim_callback(ReclaimCallback callback) {
  std::lock_guard lock(impl_->mutex);
  impl_->reclaim.swap(callback);  // the one that was ends after the lock: it may be Python's
}

bool Pool::find(Addr address, BlockInfo* out) const {
  std::lock_guard lock(impl_->mutex);
  const Impl& p = *impl_;
  BlockId id = p.held.find(address);
  if (id == kNoBlock && !p.debug) {  // inside a block: the home block there, or the one it is lent to
    id = p.home.arena_of(address) >= 0 ? p.home.covering(address) : p.stitcher.covering(address);
    if (id != kNoBlock && p.home.block(id).kind == BlockKind::lent) id = p.home.block(id).owner;
  } else if (id == kNoBlock) {
    p.held.each([&](Addr at, BlockId b) {
      if (address >= at && address < at + p.home.block(b).size) id = b;
    });
  }
  if (id == kNoBlock) return false;
  const Block& b = p.home.block(id);
  if (b.kind != BlockKind::live && b.kind != BlockKind::stitched) return false;
  if (address < b.at || address >= b.at + b.size) return false;
  if (out) *out = describe(p, b);
  return true;
}

bool Pool::owns(Addr address) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->debug ? impl_->debug->owns(address) : impl_->space.owns(address);
}

bool Pool::gave_tag(Tag tag) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->tags_given.test(tag);
}

Bytes Pool::largest_free(StreamId stream) const {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  if (p.debug) return 0;
  StreamIndex by = p.streams.index(stream);
  if (Bytes n = p.home.largest(kMainArena, by); n > kSmallMax || p.space.contiguous()) return n;
  return std::min(p.home.largest(kSmallArena, by), kSmallMax);
}

Bytes Pool::spanned() const {
  std::lock_guard lock(impl_->mutex);
  const Impl& p = *impl_;
  Bytes n = 0;
  for (std::size_t i = 0; i < p.space.slabs().size(); i++) n += p.home.spanned(p.space.slabs()[i]);
  return n;
}

Bytes Pool::reserved_peak() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->reserved_peak;
}

PoolStats Pool::stats() const {
  std::lock_guard lock(impl_->mutex);
  PoolStats s = impl_->window_stats();
  impl_->look_at_free(&s);
  impl_->joint.widen(&s);
  return s;
}

PoolStats Pool::joint_stats() const {
  std::lock_guard lock(impl_->mutex);
  PoolStats s = impl_->window_stats();
  impl_->look_at_free(&s);
  impl_->joint.add(&s);
  return s;
}

// Peaks are those since restart_peaks().
PoolStats Pool::Impl::window_stats() const {
  PoolStats s = stats;
  counters.fill(&s);
  s.forwarded_bytes = joint.other().reserved_bytes[kAll];
  s.forwarded_live_bytes = joint.other().allocated_bytes[kAll];
  s.views = space.views();
  s.views_max = space.views_max();
  s.va_bytes = space.va_bytes();
  s.va_bytes_max = space.va_bytes_max();
  s.exported_bytes = exports.bytes();
  s.asleep_bytes = asleep.dormitory.bytes();
  s.host_bytes = asleep.stage.bytes();
  return s;
}

// What is free and stays when trim() gives idle granules (or whole slabs) back, as it is now: nothing counts it on the way,
// so its peak is no more than what it is. It goes through all granules: only where somebody asks.
void Pool::Impl::look_at_free(PoolStats* s) const {
  std::int64_t blocks[] = {0, 0}, idle[] = {0, 0};  // of all arenas, of the small one
  for (int a = 0; a < Space::kArenas; a++) blocks[0] += std::int64_t(home.index(a).size());
  blocks[1] = std::int64_t(home.index(kSmallArena).size());
  if (space.contiguous()) {
    for (std::size_t i = 0; i < space.slabs().size(); i++)
      if (home.slab_free(i)) idle[0] += std::int64_t(space.slabs()[i].needed());
  } else {
    for (GranuleId g = 0; g < space.granules(); g++) {
      const Granule& granule = space.granule(g);
      if (!granule.home || !granule.idle()) continue;
      idle[0] += std::int64_t(granule.size);
      if (home.arena_of(granule.home) == kSmallArena) idle[1] += std::int64_t(granule.size);
    }
  }
  std::int64_t all = s->reserved_bytes[kAll].current - s->active_bytes[kAll].current;
  if (s->asleep_bytes) {  // occupied blocks without memory: what is free is counted itself
    all = 0;
    for (int a = 0; a < Space::kArenas; a++) all += std::int64_t(home.free_bytes(a));
  }
  all = std::max<std::int64_t>(0, all - idle[0]);
  const std::int64_t small = std::max<std::int64_t>(0, std::int64_t(home.free_bytes(kSmallArena)) - idle[1]);
  auto is = [](Stat* x, std::int64_t now) { *x = {.current = now, .peak = now, .allocated = now, .freed = 0}; };
  is(&s->inactive_split[kAll], blocks[0]);
  is(&s->inactive_split[kSmall], blocks[1]);
  is(&s->inactive_split[kLarge], blocks[0] - blocks[1]);
  is(&s->inactive_split_bytes[kAll], all);
  is(&s->inactive_split_bytes[kSmall], small);
  is(&s->inactive_split_bytes[kLarge], std::max<std::int64_t>(0, all - small));
}

void Pool::reset_peak_stats() {
  std::lock_guard lock(impl_->mutex);
  impl_->restart_peaks();
  impl_->joint.reset_peak(impl_->window_stats());
}

void Pool::Impl::restart_peaks() {
  auto& s = stats;
  counters.reset_peak();
  for (StatArray* a : {&s.segment, &s.reserved_bytes})
    for (Stat& x : *a) x.reset_peak();
  s.slab_bytes.reset_peak();
}

void Pool::reset_accumulated_stats() {
  std::lock_guard lock(impl_->mutex);
  auto& s = impl_->stats;
  s.num_ooms_before_reset += s.num_ooms + impl_->joint.num_ooms();
  impl_->counters.reset_accumulated();
  impl_->joint.reset_accumulated();
  for (StatArray* a : {&s.segment, &s.reserved_bytes})
    for (Stat& x : *a) x.reset_accumulated();
  s.slab_bytes.reset_accumulated();
  s.num_alloc_retries = s.num_ooms = s.num_sync_all_streams = 0;
  s.num_stitches = s.num_stitch_reuses = s.num_sticky_hits = s.num_stream_waits = 0;
}

void Pool::Impl::begin_recording(EventSink* sink) {
  space.tell(recorder = sink);
  recorded = 0;
  // Of held blocks only: in a free one the same bytes say how large its run is.
  for (BlockId id = 0; id < home.blocks().capacity(); id++)
    if (Block& b = home.block(id); !b.is_free()) b.trace_number = 0;
  recorded_from = sink ? driver.now() : 0;
}

void Pool::set_recorder(EventSink* recorder) {
  std::lock_guard lock(impl_->mutex);
  impl_->begin_recording(recorder);
}

void Pool::take_over_recording(EventSink* to, EventSink** before) {
  std::lock_guard lock(impl_->mutex);
  if (before) *before = impl_->recorder;
  if (impl_->recorder) impl_->space.tell(impl_->recorder = to);
  else impl_->begin_recording(to);
}

bool Pool::replace_recorder(EventSink* from, EventSink* to) {
  std::lock_guard lock(impl_->mutex);
  if (!from || impl_->recorder != from) return false;
  if (to) impl_->space.tell(impl_->recorder = to);
  else impl_->begin_recording(nullptr);
  return true;
}

Driver& Pool::driver() { return impl_->driver; }
const PoolConfig& Pool::config() const { return impl_->config; }

}  // namespace dymem
