// A fuzzer with an independent model of physical memory, over the emulated device.
//
//   pool_fuzz SEED RUNS STEPS BYTES      BYTES 1: patterns are written and read back, 0: accounting only
//
// Spy sits between pool and device and knows which physical bytes lie behind every address. The model says which bytes
// are held, which streams used them until when, and which stream waits for which. It reports bytes handed out twice,
// bytes handed to a stream too early, views unmapped while work may use them, broken invariants, leaks.
// Modes by environment: FAULTS=ppm (random driver failures), CAPTURE=1 (streams are captured now and then), NODEBUG=1,
// CONTIGUOUS=1 (slabs in every run, else in one of six), SLEEP=1 (the pool falls asleep now and then, wholly or by tag,
// and wakes some time later).
// Prints "runs N bad M"; exits 1 if M > 0. Each run is one seed: a failing one is replayed with RUNS 1.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "driver/decorators.hpp"
#include "driver/emulated.hpp"
#include "pool/pool.hpp"
#include "trace/recorder.hpp"
using namespace dymem;
// Physical page model: intercept the driver to know which (handle, offset) lies behind an address, when each physical
// byte was last used and until when; verify unmap never happens while work may still use the view.
struct Spy : Driver {
  std::unique_ptr<Driver> in;
  EmulatedDriver* em;
  std::map<Addr, std::pair<Bytes, Handle>> views;
  // A slab is a view of a handle of its own, from here on: a block in two slabs is a block in two allocations.
  Handle next_slab = ~Handle{0};
  struct Use {
    Handle h;
    Bytes off, n;
    StreamId s;
    Nanos done;
    Addr via;
    std::uint64_t seq;
  };
  // per handle: list of segments of uses
  std::map<Handle, std::vector<Use>> uses;
  // cross-stream ordering: order[waiter][on] = seq up to which waiter waits
  std::map<StreamId, std::map<StreamId, std::uint64_t>> order;
  std::map<EventId, std::pair<StreamId, std::uint64_t>> ev;  // recorded stream & seq
  std::map<EventId, std::map<StreamId, std::uint64_t>> ev_order;
  std::uint64_t seq = 1;
  std::vector<std::string> bad;
  bool lenient = false;
  std::mt19937_64 frnd{1};
  int fail_ppm = 0;  // random faults
  bool strike() { return fail_ppm && int(frnd() % 1000000) < fail_ppm; }
  Code fcode() { return frnd() % 2 ? Code::out_of_memory : Code::failed; }
  const char* name() const override { return "spy"; }
  int device() const override { return 0; }
  Bytes granularity() const override { return in->granularity(); }
  bool has_vmm() const override { return in->has_vmm(); }
  DeviceMemory memory() override { return in->memory(); }
  Status reserve(Bytes s, Addr* o) override {
    if (strike()) return {fcode(), "reserve", 1};
    return in->reserve(s, o);
  }
  Status release_addresses(Addr b, Bytes s) override { return in->release_addresses(b, s); }
  Status create(Bytes s, Handle* o) override {
    if (strike()) return {fcode(), "create", 1};
    return in->create(s, o);
  }
  Status destroy(Handle h) override {
    if (strike()) return {Code::failed, "destroy", 1};
    return in->destroy(h);
  }
  Status map(Addr a, Bytes s, Handle h) override {
    if (strike()) return {Code::failed, "map", 1};
    auto r = in->map(a, s, h);
    if (r.ok()) views[a] = {s, h};
    return r;
  }
  Status set_access(Addr a, Bytes s) override {
    if (strike()) return {Code::failed, "set_access", 1};
    return in->set_access(a, s);
  }
  Status unmap(Addr a, Bytes s) override {
    if (strike()) return {Code::failed, "unmap", 1};
    auto r = in->unmap(a, s);
    if (!r.ok()) return r;
    Nanos t = in->now();
    for (auto it = views.lower_bound(a); it != views.end() && it->first < a + s;) {
      for (auto& u : uses[it->second.second])
        if (u.via >= it->first && u.via < it->first + it->second.first && u.done > t) {
          bad.push_back("unmap of a view in use until " + std::to_string(u.done) + " now " + std::to_string(t) +
                        " via " + std::to_string(u.via));
        }
      it = views.erase(it);
    }
    return r;
  }
  Status export_handle(Handle h, int* f) override { return in->export_handle(h, f); }
  Status import_handle(int fd, Bytes s, Handle* o) override { return in->import_handle(fd, s, o); }
  Status export_slab(Addr b, SlabTicket* o) override { return in->export_slab(b, o); }
  Status open_slab(const SlabTicket& t, Addr* o, Bytes* s) override { return in->open_slab(t, o, s); }
  Status close_slab(Addr b) override { return in->close_slab(b); }
  Status set_peer_access(Addr a, Bytes s, int p) override { return in->set_peer_access(a, s, p); }
  Status host_alloc(Bytes s, void** o) override {
    if (strike()) return {Code::out_of_memory, "host_alloc", 1};
    return in->host_alloc(s, o);
  }
  Status host_free(void* b) override { return in->host_free(b); }
  Status copy_to_host(void* to, Addr from, Bytes n, StreamId s) override {
    if (strike()) return {Code::failed, "copy_to_host", 1};
    return in->copy_to_host(to, from, n, s);
  }
  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId s) override {
    if (strike()) return {Code::failed, "copy_to_device", 1};
    return in->copy_to_device(to, from, n, s);
  }
  Status synchronize() override {
    if (strike()) return {Code::failed, "synchronize", 1};
    return in->synchronize();
  }
  Status slab_alloc(Bytes s, Addr* o) override {
    if (strike()) return {fcode(), "slab_alloc", 1};
    auto r = in->slab_alloc(s, o);
    if (r.ok()) views[*o] = {s, next_slab--};
    return r;
  }
  Status slab_free(Addr b) override {
    if (strike()) return {Code::failed, "slab_free", 1};
    auto r = in->slab_free(b);
    if (!r.ok()) return r;
    auto it = views.find(b);
    for (auto& u : uses[it->second.second])
      if (u.done > in->now()) bad.push_back("slab freed while in use until " + std::to_string(u.done));
    uses.erase(it->second.second);
    views.erase(it);
    return r;
  }
  Status event_create(EventId* o) override {
    if (strike()) return {Code::failed, "event_create", 1};
    return in->event_create(o);
  }
  Status event_destroy(EventId e) override { return in->event_destroy(e); }
  Status event_record(EventId e, StreamId s) override {
    if (strike()) return {Code::failed, "event_record", 1};
    auto r = in->event_record(e, s);
    if (r.ok()) {
      ev[e] = {s, seq};
      ev_order[e] = order[s];
    }
    return r;
  }
  Status event_query(EventId e) override {
    if (strike()) return {Code::failed, "event_query", 1};
    return in->event_query(e);
  }
  Status event_synchronize(EventId e) override {
    if (strike()) return {Code::failed, "event_synchronize", 1};
    return in->event_synchronize(e);
  }
  Status stream_wait(StreamId s, EventId e) override {
    if (strike()) return {Code::failed, "stream_wait", 1};
    auto r = in->stream_wait(s, e);
    if (r.ok()) {
      auto p = ev[e];
      auto& o = order[s];
      o[p.first] = std::max(o[p.first], p.second);
      for (auto& [k, v] : ev_order[e]) o[k] = std::max(o[k], v);
    }
    return r;
  }
  bool is_capturing(StreamId s) override { return in->is_capturing(s); }
  Nanos now() override { return in->now(); }
  Status write(Addr a, const void* f, Bytes n) override { return in->write(a, f, n); }
  Status read(Addr a, void* t, Bytes n) override { return in->read(a, t, n); }
  DriverCounters counters() const override { return in->counters(); }
  // Where the next view at or after `at` begins, if [at, …) is not mapped; else `at`.
  Addr next_mapped(Addr at) const {
    auto it = views.upper_bound(at);
    if (it != views.begin()) {
      auto before = std::prev(it);
      if (at < before->first + before->second.first) return at;
    }
    return it == views.end() ? ~Addr{0} : it->first;
  }
  bool mapped(Addr at, Bytes n) const {
    for (Addr x = at; x < at + n;) {
      if (next_mapped(x) != x) return false;
      auto it = std::prev(views.upper_bound(x));
      x = it->first + it->second.first;
    }
    return true;
  }
  // physical() of the parts that are mapped: blocks may be asleep, whole or in part.
  template <class F>
  void awake_parts(Addr at, Bytes n, F f) {
    for (Addr x = next_mapped(at); x < at + n; x = next_mapped(x)) {
      auto it = std::prev(views.upper_bound(x));
      Bytes m = std::min(at + n, it->first + it->second.first) - x;
      f(it->second.second, x - it->first, m, x);
      x += m;
    }
  }
  template <class F>
  void physical(Addr at, Bytes n, F f) {
    while (n) {
      auto it = views.upper_bound(at);
      if (it == views.begin()) {
        bad.push_back("not mapped");
        return;
      }
      --it;
      if (at >= it->first + it->second.first) {
        bad.push_back("block not mapped");
        return;
      }
      Bytes off = at - it->first, m = std::min(n, it->second.first - off);
      f(it->second.second, off, m, at);
      at += m;
      n -= m;
    }
  }
};
struct H {
  Addr at;
  Bytes size;
  StreamId s;
  std::map<StreamId, int> other;
  std::uint64_t word;
  Tag tag = 0;
  bool dropped = false;  // its bytes were given up in a sleep
};
static int run(std::uint64_t seed, int steps, bool bytes) {
  std::mt19937_64 R(seed * 7919 + 13);
  auto rnd = [&](std::uint64_t n) { return R() % n; };
  EmulatedOptions o;
  o.bytes = bytes;
  o.capacity = (64 + rnd(400)) * kMiB * 1;
  bool contiguous = rnd(6) == 0 || getenv("CONTIGUOUS");
  if (contiguous) o.vmm = rnd(2);
  auto em = make_emulated_driver(o);
  EmulatedDriver* E = em.get();
  auto chk = make_checked_driver(std::move(em));
  CheckedDriver* C = chk.get();
  Spy spy;
  spy.in = std::move(chk);
  spy.em = E;
  spy.frnd.seed(seed);
  PoolConfig c;
  c.alias = rnd(4) != 0;
  c.wait = rnd(3) != 0;
  if (contiguous) c.backing = Backing::contiguous;
  if (rnd(2)) c.placement = Placement(rnd(4));  // else the default
  bool debug = !contiguous && rnd(10) == 0;
  if (getenv("NODEBUG")) debug = false;
  c.debug = debug;
  if (rnd(2)) c.limit = (32 + rnd(200)) * kMiB;
  if (rnd(3) == 0) c.grow_slack = 0;
  int faults = getenv("FAULTS") ? (rnd(2) ? atoi(getenv("FAULTS")) : 0) : 0;
  int nstreams = 1 + int(rnd(5));
  Bytes big = (Bytes{1} << (20 + rnd(6)));
  bool captures = getenv("CAPTURE") != nullptr;
  const bool sleeps = getenv("SLEEP") && !contiguous && !debug;
  int err = 0;
  long ooms = 0, excs = 0, naps = 0;
  Bytes tenant = 0;          // of the device, taken by others
  Bytes held_before[2] = {};  // reserved, of slabs
  std::map<Addr, H> live;
  std::uint64_t n = 0;
  std::map<Handle, std::map<Bytes, Bytes>> owned;  // physical live intervals
  std::vector<std::pair<Nanos, std::vector<Spy::Use>>> x;
  std::map<StreamId, Nanos> busy;
  Nanos t = 0;
  auto say = [&](const std::string& s) {
    if (err++ < 8) printf("seed %llu step %llu: %s\n", (unsigned long long)seed, (unsigned long long)n, s.c_str());
  };
  auto done = [&](StreamId s) { return std::max(E->now(), busy[s]); };
  TraceRecorder rec(1000);
  {
    Pool p(spy, c);
    spy.fail_ppm = faults;
    auto audit = [&] {
      for (auto& s : p.audit()) say("AUDIT " + s);
      for (auto& s : spy.bad) say(s);
      spy.bad.clear();
    };
    // Its bytes are nobody's now, but work of its streams may still use them.
    auto note_freed = [&](const H& h) {
      spy.awake_parts(h.at, h.size, [&](Handle hd, Bytes off, Bytes m, Addr via) {
        owned[hd].erase(off);
        auto put = [&](StreamId s) { spy.uses[hd].push_back({hd, off, m, s, done(s), via, spy.seq}); };
        put(h.s);
        for (auto& [s, _] : h.other) put(s);
      });
      spy.seq++;
    };
    int depth = 0;
    if (rnd(3) == 0)
      p.set_reclaim_callback([&](Bytes) -> Bytes {
        if (depth || live.empty() || rnd(2)) return 0;
        depth++;
        auto it = live.begin();
        Bytes got = it->second.size;
        H h = it->second;  // free inside the callback
        note_freed(h);
        live.erase(it);
        try {
          p.free(h.at);
        } catch (DriverError&) {
        }
        if (rnd(2)) try {
            p.trim();
          } catch (DriverError&) {
          }
        depth--;
        return got;
      });
    auto check_words = [&](const H& h) {
      if (!bytes || h.dropped || !spy.mapped(h.at, h.size)) return;
      if (faults && p.stats().asleep_bytes) return;  // a failed wake leaves views without contents, until the next one
      std::uint64_t a = 0;
      for (Addr q : {h.at, h.at + h.size / 2 / 8 * 8, h.at + h.size - 8}) {
        spy.read(q, &a, 8).ok();
        if (a != h.word) say("bytes overwritten");
      }
    };
    // Granules come and go with sleep: who has which physical bytes is told anew from what is mapped.
    auto recount = [&] {
      owned.clear();
      for (auto& [a, h] : live)
        spy.awake_parts(a, h.size, [&](Handle hd, Bytes off, Bytes m, Addr) {
          auto& iv = owned[hd];
          auto it = iv.lower_bound(off);
          if (it != iv.end() && it->first < off + m) say("OVERLAP after sleep");
          if (it != iv.begin() && std::prev(it)->first + std::prev(it)->second > off) say("OVERLAP after sleep");
          iv[off] = m;
        });
      for (auto& [a, h] : live) check_words(h);
    };
    auto fall_asleep = [&] {
      SleepRequest r;
      r.everything = rnd(3) == 0;
      for (Tag g : {Tag(1), Tag(2)}) r.tags[g] = rnd(2), r.kept[g] = rnd(2);
      r.keep_everything = rnd(2);
      r.drop_untagged = rnd(4) == 0;
      auto awake_bytes = [&](const H& h) {
        Bytes n = 0;
        spy.awake_parts(h.at, h.size, [&](Handle, Bytes, Bytes m, Addr) { n += m; });
        return n;
      };
      std::map<Addr, Bytes> before;
      for (auto& [a, h] : live) before[a] = awake_bytes(h);
      try {
        auto report = p.sleep(r);
        for (auto& [a, h] : live)
          if (awake_bytes(h) < before[a] && !r.keep_everything && (h.tag ? !r.kept[h.tag] : r.drop_untagged))
            h.dropped = true;
        naps += report.memory != 0;
      } catch (SleepError& e) {
        if (!faults && !captures) say(std::string("sleep threw ") + e.what());
      } catch (DriverError& e) {
        excs++;
        if (!faults && bytes) say(std::string("sleep threw ") + e.what());
      }
      recount();
      audit();
    };
    auto wake_up = [&](bool all) {
      WakeRequest r;
      r.everything = all;
      for (Tag g : {Tag(1), Tag(2)}) r.tags[g] = rnd(2);
      try {
        p.wake(r);
        if (all)
          for (auto& [a, h] : live)
            if (!spy.mapped(a, h.size)) say("still asleep after waking everything");
      } catch (OutOfMemory&) {
        ooms++;
      } catch (SleepError& e) {
        if (!captures) say(std::string("wake threw ") + e.what());
      } catch (DriverError& e) {
        excs++;
        if (!faults) say(std::string("wake threw ") + e.what());
      }
      recount();
      audit();
    };
    auto dofree = [&](std::map<Addr, H>::iterator it) {
      H h = it->second;
      check_words(h);
      note_freed(h);
      live.erase(it);
      try {
        p.free(h.at);
      } catch (DriverError& e) {
        excs++;
        if (getenv("FREETHROW") || !faults) say(std::string("free threw ") + e.what());
        BlockInfo bi;
        if (p.find(h.at, &bi)) try {
            spy.fail_ppm = 0;
            p.free(h.at);
            spy.fail_ppm = faults;
          } catch (std::exception& e2) {
            say(std::string("free again threw ") + e2.what());
            spy.fail_ppm = faults;
          }
      }
    };
    for (n = 0; n < (unsigned)steps && err < 8; n++) {
      if (sleeps && rnd(40) == 0) rnd(2) ? fall_asleep() : wake_up(rnd(2));
      int d = int(rnd(1000));
      if (d < 480) {
        StreamId s = 100 + rnd(nstreams);
        Bytes sz;
        switch (rnd(5)) {
          case 0:
            sz = rnd(4096);
            break;
          case 1:
            sz = 1 + rnd(kMiB);
            break;
          case 2:
            sz = kMiB * (1 + rnd(8));
            break;
          default:
            sz = 1 + rnd(big);
        }
        if (debug) sz = 1 + sz % (4 * kMiB);
        Mobility m = Mobility(rnd(8) < 5 ? 0 : rnd(4));
        Addr a;
        const Tag tag = sleeps ? Tag(n / 40 % 3) : Tag(0);  // kinds come in phases, as layers and caches do
        try {
          set_current_tag(tag);
          a = p.malloc(sz, s, m);
        } catch (SleepError&) {
          if (!sleeps) say("malloc says it is asleep");
          if (rnd(3) == 0) wake_up(rnd(2));
          continue;
        } catch (OutOfMemory&) {
          ooms++;
          if (ooms % 2 == 0)
            for (int k = 0; k < 6 && !live.empty(); k++) {
              auto it = live.begin();
              std::advance(it, rnd(live.size()));
              dofree(it);
            }
          continue;
        } catch (DriverError& e) {
          excs++;
          if (!faults) say(std::string("malloc threw ") + e.what());
          continue;
        } catch (InvalidArgument& e) {
          if (!captures) say(std::string("malloc threw ") + e.what());
          continue;
        } catch (std::exception& e) {
          say(std::string("malloc threw ") + e.what());
          continue;
        }
        Bytes size = std::max<Bytes>(512, (sz + 511) / 512 * 512);
        H h{a, size, s, {}, seed << 32 | n, tag};
        Nanos now = E->now();
        Handle of = 0;
        spy.physical(a, size, [&](Handle hd, Bytes off, Bytes mm, Addr) {
          if (contiguous && of && of != hd) say("a block lies in two slabs");
          of = hd;
          auto& iv = owned[hd];
          auto it = iv.lower_bound(off);
          if (it != iv.end() && it->first < off + mm) say("OVERLAP of live bytes");
          if (it != iv.begin()) {
            --it;
            if (it->first + it->second > off) say("OVERLAP of live bytes");
          }
          iv[off] = mm;
          auto& us = spy.uses[hd];
          std::erase_if(us, [&](auto& u) { return u.done <= now; });
          for (auto& u : us)
            if (u.off < off + mm && off < u.off + u.n && u.s != s && u.done > now) {
              if (spy.order[s][u.s] > u.seq) continue;
              say("TOO EARLY: stream " + std::to_string(s) + " gets bytes in use by " + std::to_string(u.s) +
                  " until " + std::to_string(u.done) + " now " + std::to_string(now));
            }
        });
        if (bytes)
          for (Addr q : {h.at, h.at + h.size / 2 / 8 * 8, h.at + h.size - 8})
            if (!spy.write(q, &h.word, 8).ok()) say("write failed");
        if (live.count(a)) say("same address twice");
        live[a] = h;
      } else if (d < 850) {
        if (live.empty()) continue;
        auto it = live.begin();
        std::advance(it, rnd(live.size()));
        dofree(it);
      } else if (d < 905) {
        if (live.empty()) continue;
        auto it = live.begin();
        std::advance(it, rnd(live.size()));
        StreamId s = 100 + rnd(nstreams + 2);
        p.record_stream(it->first, s);
        if (s != it->second.s) it->second.other[s] = 1;
      } else if (d < 950) {
        StreamId s = 100 + rnd(nstreams + 2);
        busy[s] = std::max(E->now(), busy[s]) + Nanos(rnd(20'000'000));
        E->set_busy_until(s, busy[s]);
      } else if (d < 980) {
        t = E->now() + Nanos(rnd(6'000'000));
        E->advance_to(t);
      } else if (d < 985) {
        try {
          p.trim();
        } catch (DriverError& e) {
          excs++;
          if (!faults) say(std::string("trim threw ") + e.what());
        }
      } else if (d < 988) {
        p.set_limit(rnd(3) ? (32 + rnd(200)) * kMiB : 0);
      } else if (d < 990) {
        p.set_recorder(rnd(2) ? &rec : nullptr);
      } else if (d < 993) {
        StreamId s = 100 + rnd(nstreams);
        if (captures) {
          E->set_capturing(s, true);
        }
      } else if (d < 996) {
        if (captures)
          for (int k = 0; k < 8; k++) E->set_capturing(100 + k, false);
        else if (!live.empty()) { /* pin a while */ auto it = live.begin();
          std::advance(it, rnd(live.size()));
          p.pin(it->first);
          p.unpin(it->first);
        }
      } else {
        if (tenant) spy.em->give_memory(tenant), tenant = 0;
        else spy.em->take_memory(tenant = std::min(spy.em->memory().free, rnd(64) * kMiB));
      }
      if (n % 64 == 0 || getenv("AUDIT1")) audit();
      if (!spy.bad.empty()) {
        for (auto& s : spy.bad) say(s);
        spy.bad.clear();
      }
      const PoolStats st = p.stats();
      // What is held may lie above a limit that was lowered, but never rises there.
      const Bytes held_now[] = {Bytes(st.reserved_bytes[0].current), Bytes(st.slab_bytes.current)};
      for (int i = 0; i < 2; i++) {
        if (p.limit() && held_now[i] > p.limit() && held_now[i] > held_before[i]) say("past the limit");
        held_before[i] = held_now[i];
      }
      if (n % 16 == 0) {
        if (!st.asleep_bytes && Bytes(st.reserved_bytes[0].current) < Bytes(st.active_bytes[0].current))
          say("reserved<active");
        const Stat& held = contiguous ? st.slab_bytes : st.reserved_bytes[0];
        if (!faults && Bytes(held.current) != E->physical_in_use()) say("held != device");
        if (contiguous && held.current < st.reserved_bytes[0].current) say("marks past slabs");
      }
    }
    for (int k = 0; k < 8; k++) E->set_capturing(100 + k, false);
    spy.fail_ppm = 0;
    if (sleeps) {
      wake_up(true);  // with memory for it or not
      fall_asleep();
    }
    while (!live.empty()) dofree(live.begin());
    if (sleeps) {
      wake_up(true);
      if (p.stats().asleep_bytes) say("asleep at the end");
      (void)p.free_host_slabs();
      if (p.stats().host_bytes) say("host memory left");
    }
    E->advance_to(E->now() + 1'000'000'000);
    try {
      p.set_limit(0);
      p.trim();
      E->advance_to(E->now() + 1'000'000'000);
      p.trim();
    } catch (std::exception& e) {
      say(std::string("end: ") + e.what());
    }
    auto st = p.stats();
    if (st.allocated_bytes[0].current || st.pending_bytes.current) say("left over");
    if (st.reserved_bytes[0].current || st.slab_bytes.current)
      say("reserved left " + std::to_string(st.reserved_bytes[0].current));
    audit();
    if (getenv("V"))
      printf(
          "seed %llu ooms %ld excs %ld stitches %lld reuses %lld waits %lld alias %d lim %llu cont %d debug %d streams "
          "%d naps %ld\n",
          (unsigned long long)seed, ooms, excs, (long long)st.num_stitches, (long long)st.num_stitch_reuses,
          (long long)st.num_stream_waits, c.alias, (unsigned long long)c.limit, contiguous, debug, nstreams, naps);
  }
  if (E->physical_in_use()) say("device memory left");
  if (E->mappings()) say("mappings left");
  if (!getenv("NOVIOL"))
    for (auto& s : C->violations()) say("VIOL " + s);
  return err;
}
int main(int argc, char** argv) {
  std::uint64_t s0 = strtoull(argv[1], 0, 10);
  int N = atoi(argv[2]), steps = atoi(argv[3]);
  bool bytes = atoi(argv[4]);
  int bad = 0;
  for (int i = 0; i < N; i++) {
    int e = run(s0 + i, steps, bytes);
    bad += e != 0;
    if (bad > 6) break;
  }
  printf("runs %d bad %d\n", N, bad);
  return bad != 0;
}
