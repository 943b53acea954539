// Many threads at one pool, on the checked emulated device with real bytes; built under sanitizers by
// test_sanitizers.py.
//
//   pool_stress THREADS STEPS SEED vmm|remap|contiguous|limit
//
// Every thread allocates, fills with words of its own, records streams, frees, some blocks through other threads; one
// more moves the clock, trims, asks for statistics, lists blocks, changes the limit and reads the recorder. What a
// block held when it is freed must be what its thread wrote. At the end: nothing live, the audit sound, the contract
// kept, the device empty after a trim. Exit 0 = all of it held; 1 with a sentence otherwise.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "driver/decorators.hpp"
#include "driver/emulated.hpp"
#include "pool/pool.hpp"
#include "trace/recorder.hpp"

using namespace dymem;

namespace {

struct Held {
  Addr address = 0;
  Bytes size = 0;
  std::uint64_t word = 0;
};

std::atomic<bool> failed{false};

void fail(const std::string& sentence) {
  failed = true;
  std::fprintf(stderr, "pool_stress: %s\n", sentence.c_str());
}

// Blocks on their way from the thread that made them to the one that frees them.
class Mailbox {
 public:
  void put(const Held& held) {
    std::lock_guard lock(mutex_);
    blocks_.push_back(held);
  }
  bool take(Held* held) {
    std::lock_guard lock(mutex_);
    if (blocks_.empty()) return false;
    *held = blocks_.front();
    blocks_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Held> blocks_;
};

struct Shared {
  Pool& pool;
  CheckedDriver& checked;
  EmulatedDriver& device;
  Mailbox mailbox;
  std::atomic<Nanos> clock{0};
  std::atomic<std::uint64_t> out_of_memory{0};
};

// First and last words, and a few between: enough to see another owner.
std::vector<Addr> probes(const Held& held) {
  std::vector<Addr> at = {held.address, held.address + held.size - 8};
  for (Bytes offset = 64 * kKiB; offset < held.size; offset += 512 * kKiB) at.push_back(held.address + offset);
  return at;
}

void fill(Shared& s, const Held& held) {
  for (Addr at : probes(held)) s.checked.write(at, &held.word, 8).expect_ok();
}

void verify(Shared& s, const Held& held) {
  for (Addr at : probes(held)) {
    std::uint64_t got = 0;
    s.checked.read(at, &got, 8).expect_ok();
    if (got != held.word) {
      fail("block of word " + std::to_string(held.word) + " was overwritten by " + std::to_string(got));
      return;
    }
  }
}

void release(Shared& s, const Held& held) {
  verify(s, held);
  s.pool.free(held.address);
}

void worker(Shared& s, int id, int steps, std::uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + std::uint64_t(id));
  std::vector<Held> held;
  std::uint64_t made = 0;
  const StreamId own = 100 + StreamId(id) % 3;  // threads share streams
  try {
    for (int i = 0; i < steps && !failed; ++i) {
      const auto dice = random() % 100;
      if (dice < 50 || held.empty()) {
        const int scale = int(random() % 14);
        const Bytes size = 1 + random() % (Bytes{512} << scale);
        const auto mobility = Mobility(random() % 4);
        try {
          Held h{s.pool.malloc(size, own, mobility), block_size(size), std::uint64_t(id + 1) << 40 | ++made};
          fill(s, h);
          held.push_back(h);
        } catch (const OutOfMemory&) {
          ++s.out_of_memory;
          for (const Held& h : held) release(s, h);
          held.clear();
        }
      } else if (dice < 85) {
        const std::size_t which = random() % held.size();
        release(s, held[which]);
        held[which] = held.back();
        held.pop_back();
      } else if (dice < 93) {
        const StreamId other = 200 + random() % 4;
        s.device.set_busy_until(other, s.clock.load() + Nanos(random() % 5000));
        s.pool.record_stream(held[random() % held.size()].address, other);
      } else if (dice < 97) {
        s.mailbox.put(held.back());
        held.pop_back();
        Held foreign;
        if (s.mailbox.take(&foreign)) release(s, foreign);
      } else {
        BlockInfo info;
        const Held& h = held[random() % held.size()];
        if (!s.pool.find(h.address, &info) || info.address != h.address || info.size < h.size)
          fail("a held block is not found at its own address");
        if (s.pool.largest_free(own) > s.device.memory().total) fail("the largest free block exceeds the device");
      }
    }
    for (const Held& h : held) release(s, h);
  } catch (const std::exception& e) {
    fail(std::string("worker: ") + e.what());
  }
}

void overseer(Shared& s, std::atomic<bool>& stop, TraceRecorder& recorder, bool limits) {
  std::uint64_t turn = 0;
  try {
    while (!stop) {
      s.device.advance_to(s.clock += 1000);
      const PoolStats stats = s.pool.stats();
      const auto& active = stats.active_bytes[kAll];
      if (active.current != stats.allocated_bytes[kAll].current + stats.pending_bytes.current)
        fail("occupied is not live plus pending");
      if (stats.reserved_bytes[kAll].current < active.current) fail("more is occupied than reserved");
      if (turn % 16 == 0) s.pool.trim();
      if (turn % 32 == 1) {
        for (const std::string& sentence : s.pool.audit()) fail("audit: " + sentence);
        (void)s.pool.blocks();
      }
      if (turn % 64 == 2) (void)recorder.events();
      if (limits && turn % 8 == 3) s.pool.set_limit((64 + turn % 7 * 16) * kMiB);
      ++turn;
      std::this_thread::yield();
    }
  } catch (const std::exception& e) {
    fail(std::string("overseer: ") + e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: pool_stress THREADS STEPS SEED vmm|remap|contiguous|limit\n");
    return 2;
  }
  const int threads = std::atoi(argv[1]), steps = std::atoi(argv[2]);
  const auto seed = std::strtoull(argv[3], nullptr, 10);
  const std::string mode = argv[4];

  EmulatedOptions options;
  options.capacity = kGiB;
  auto emulated = make_emulated_driver(options);
  EmulatedDriver& device = *emulated;
  auto checked = make_checked_driver(std::move(emulated));
  PoolConfig config;
  config.alias = mode != "remap";
  if (mode == "contiguous") config.backing = Backing::contiguous;
  if (mode == "limit") config.limit = 96 * kMiB;

  {
    TraceRecorder recorder(10'000);
    Pool pool(*checked, config);
    pool.set_recorder(&recorder);
    Shared shared{pool, *checked, device, {}, {}, {}};
    std::atomic<bool> stop{false};
    std::thread watching([&] { overseer(shared, stop, recorder, mode == "limit"); });
    std::vector<std::thread> working;
    for (int t = 0; t < threads; ++t) working.emplace_back([&, t] { worker(shared, t, steps, seed); });
    for (std::thread& t : working) t.join();
    stop = true;
    watching.join();

    try {
      Held left;
      while (shared.mailbox.take(&left)) release(shared, left);
      device.advance_to(shared.clock + 1'000'000);
      pool.set_limit(0);
      pool.trim();
      device.advance_to(shared.clock + 2'000'000);
      pool.trim();
      const PoolStats stats = pool.stats();
      if (stats.allocated_bytes[kAll].current != 0 || stats.pending_bytes.current != 0) fail("bytes are left over");
      if (stats.allocation[kAll].allocated != stats.allocation[kAll].freed) fail("blocks are left over");
      for (const std::string& sentence : pool.audit()) fail("audit at the end: " + sentence);
      std::printf("%s: %lld blocks, %llu out of memory, %lld stitches\n", mode.c_str(),
                  static_cast<long long>(stats.allocation[kAll].allocated),
                  static_cast<unsigned long long>(shared.out_of_memory.load()),
                  static_cast<long long>(stats.num_stitches));
    } catch (const std::exception& e) {
      fail(std::string("at the end: ") + e.what());
    }
  }
  if (device.physical_in_use() != 0) fail("the device holds granules after the pool is gone");
  if (device.mappings() != 0) fail("the device holds views after the pool is gone");
  for (const std::string& sentence : checked->violations()) fail("contract: " + sentence);
  return failed ? 1 : 0;
}
