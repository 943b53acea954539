// The emulated device under the sanitizers: threads that map, alias, write, read, unmap and fence, each on addresses of
// its own, over faulty(checked(emulated)); with a few planted mistakes, since refusals must be clean, too.
//   driver_program ROUNDS bytes|accounting      prints one line and exits 0 if nothing was lost
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "driver/decorators.hpp"
#include "driver/emulated.hpp"

using namespace dymem;

namespace {

constexpr int kThreads = 3;
constexpr Bytes kUnits = 16;  // of one thread's range

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Calls that fail on purpose now and then, and changed nothing when they did.
template <class Call>
void persist(const Call& call) {
  while (!call().ok()) {
  }
}

void work(Driver& driver, Addr base, unsigned seed, int rounds, bool bytes) {
  std::mt19937 random(seed);
  const Bytes unit = driver.granularity();
  for (int round = 0; round < rounds; ++round) {
    const Bytes units = 1 + random() % (kUnits / 2), size = units * unit;
    const Addr alias = base + size;
    Handle handle = 0;
    EventId event = 0;
    if (!driver.create(size, &handle).ok()) continue;  // a fault on purpose
    const bool first = driver.map(base, size, handle).ok();
    const bool second = driver.map(alias, size, handle).ok();
    if (first && second && driver.set_access(base, 2 * size).ok() && bytes) {
      const Addr at = random() % (size - 8);
      const std::uint64_t sent = random();
      std::uint64_t got = 0;
      require(driver.write(base + at, &sent, sizeof sent).ok(), "write");
      require(driver.read(alias + at, &got, sizeof got).ok() && got == sent, "the alias reads what was written");
      require(driver.write(alias + size - 4, &sent, sizeof sent).code == Code::invalid || units * 2 < kUnits,
              "a write beyond the views is refused");
    }
    require(!driver.map(base + 1, size, handle).ok(), "an unaligned map is refused");
    require(units == 1 || !driver.unmap(base, unit).ok(), "a partial unmap is refused");
    persist([&] { return driver.event_create(&event); });
    (void)driver.event_record(event, seed);  // may be the call that fails
    persist([&] { return driver.event_query(event); });  // an idle stream is done
    persist([&] { return driver.stream_wait(seed + 1, event); });
    persist([&] { return driver.event_synchronize(event); });
    require(driver.event_destroy(event).ok() && !driver.event_destroy(event).ok(), "an event is destroyed once");
    persist([&] { return driver.destroy(handle); });
    require(!driver.destroy(handle).ok(), "a handle is destroyed once");
    for (const auto& [mapped, at] : {std::pair{first, base}, std::pair{second, alias}})
      if (mapped) persist([&] { return driver.unmap(at, size); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 3, "usage: driver_program ROUNDS bytes|accounting");
  const int rounds = std::atoi(argv[1]);
  EmulatedOptions options;
  options.bytes = std::strcmp(argv[2], "bytes") == 0;
  options.granularity = 64 * kKiB;
  auto owned = make_emulated_driver(options);
  EmulatedDriver& emulated = *owned;
  auto checked = make_checked_driver(std::move(owned));
  CheckedDriver& police = *checked;
  auto faulty = make_faulty_driver(std::move(checked));

  const Bytes size = kUnits * options.granularity;
  std::vector<Addr> bases(kThreads);
  for (Addr& base : bases) require(faulty->reserve(size, &base).ok(), "reserve");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] { work(*faulty, bases[i], 10 + i, rounds, options.bytes); });
  for (int i = 0; i < rounds; ++i) {  // faults, time and figures from outside while they work
    faulty->fail_nth(1 + i % 7, FaultKind::once, i % 2 ? Code::failed : Code::out_of_memory);
    emulated.advance_to(emulated.now() + 10);
    (void)emulated.counters();
    (void)police.leaks();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  faulty->disarm();
  for (const Addr base : bases) require(faulty->release_addresses(base, size).ok(), "release_addresses");
  for (const std::string& leak : police.leaks()) std::fprintf(stderr, "leak: %s\n", leak.c_str());
  require(police.leaks().empty(), "nothing leaks");
  require(emulated.physical_in_use() == 0 && emulated.mappings() == 0, "the device is empty again");
  std::printf("%s: %llu calls, %llu failed on purpose\n", argv[2], static_cast<unsigned long long>(faulty->calls()),
              static_cast<unsigned long long>(faulty->failures()));
}
