// Ten thousand iterations whose length is drawn anew each time, through the pool: does anything grow?
//
//   soak emulated|cuda ITERATIONS WINDOW SCALE SEED [limit_bytes]
//
// An iteration is shaped like a language model's training step: per layer, activations that live from forward to
// backward and temporaries that do not, all proportional to the length; logits in the middle; now and then a block that
// a side stream fills and the main stream reads (record_stream). SCALE multiplies the lengths' bytes (1 = about 20
// GiB). One line of JSON per window of iterations, then one with the final audit. The emulated driver only accounts;
// its streams finish 10 ms late. Nothing is launched on a GPU.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "driver/driver.hpp"
#include "driver/emulated.hpp"
#include "pool/pool.hpp"
#include "replay/call_timer.hpp"

namespace {

using namespace dymem;

constexpr StreamId kMain = 0, kSide = 7;
constexpr int kLayers = 16;
constexpr Nanos kCallEvery = 100'000;  // of virtual time, so that an iteration takes tens of milliseconds

Bytes resident_bytes() {
  std::ifstream file("/proc/self/statm");
  Bytes total = 0, resident = 0;
  file >> total >> resident;
  return resident * Bytes(sysconf(_SC_PAGESIZE));
}

class Soak {
 public:
  Soak(bool cuda, double scale, std::uint64_t seed, Bytes limit) : scale_(scale), random_(seed) {
    if (cuda) {
      driver_ = make_cuda_driver(0);
      side_ = kMain;  // no stream of ours exists there: nothing is launched
    } else {
      EmulatedOptions options;
      options.bytes = false;
      auto emulated = make_emulated_driver(options);
      emulated->set_lag(10'000'000);
      emulated_ = emulated.get();
      driver_ = std::move(emulated);
    }
    PoolConfig config;
    config.limit = limit;
    config.grow_ratio = 0;  // stitches in every window: what a soak is for
    pool_ = std::make_unique<Pool>(*driver_, config);
    for (int i = 0; i < kLayers * 9; ++i) weights_.push_back(pool_->malloc(scaled(12 << 20), kMain));
  }

  void run(int iterations, int window) {
    malloc_ticks_.assign(std::size_t(window) * 1024, 0);  // touched now, so that they do not grow later
    free_ticks_.assign(std::size_t(window) * 1024, 0);
    const double started = wall_seconds();
    for (int first = 0; first < iterations; first += window) {
      malloc_ticks_.clear();
      free_ticks_.clear();
      const DriverCounters before = driver_->counters();
      pool_->reset_peak_stats();
      const double start = wall_seconds();
      const int count = std::min(window, iterations - first);
      for (int i = 0; i < count; ++i) iterate();
      report(first + count, wall_seconds() - start, before);
    }
    const auto audit = pool_->audit();
    std::string sentences;
    for (const auto& sentence : audit) {
      for (char c : sentence)
        if (c != '"' && c != '\\') sentences += c;
      sentences += "; ";
    }
    std::printf("{\"done\": true, \"driver\": \"%s\", \"seconds\": %.3f, \"audit_findings\": %zu, \"audit\": \"%s\"}\n",
                driver_->name(), wall_seconds() - started, audit.size(), sentences.c_str());
  }

 private:
  static double wall_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Bytes scaled(double bytes) const { return Bytes(std::max(1.0, bytes * scale_)); }

  Addr take(double bytes, StreamId stream = kMain) {
    tick();
    const Bytes n = scaled(bytes);
    const std::uint64_t start = CallTimer::ticks();
    const Addr block = pool_->malloc(n, stream);
    malloc_ticks_.push_back(CallTimer::since(start));
    return block;
  }
  void give(Addr block) {
    tick();
    const std::uint64_t start = CallTimer::ticks();
    pool_->free(block);
    free_ticks_.push_back(CallTimer::since(start));
  }
  void tick() {
    if (emulated_) emulated_->advance_to(emulated_->now() + kCallEvery);
  }

  void iterate() {
    const double length = double(256 + random_() % 1793), batch = 8, hidden = 2048, vocabulary = 32000;
    const double row = batch * length * hidden * 2;
    const Addr tokens = take(batch * length * 8);
    for (int layer = 0; layer < kLayers; ++layer) {
      auto& kept = saved_[layer];
      const Addr normed = take(row);
      for (int i = 0; i < 3; ++i) kept.push_back(take(row));  // q, k, v
      const Addr scores = take(batch * length * 16 * 4);
      kept.push_back(take(row));  // attention's output
      give(scores);
      const Addr gate = take(row * 2.75), up = take(row * 2.75);
      kept.push_back(take(row * 2.75));
      kept.push_back(gate);
      kept.push_back(up);
      for (int i = 0; i < 4; ++i) give(take(512.0 * double(1 + random_() % 64)));
      give(normed);
      if (random_() % 4 == 0) {
        const Addr handed_over = take(row, side_stream());
        pool_->record_stream(handed_over, kMain);
        give(handed_over);
      }
    }
    const Addr logits = take(batch * length * vocabulary * 2), loss = take(batch * length * vocabulary * 4);
    give(take(batch * length * vocabulary * 2));
    give(loss);
    give(logits);
    std::vector<Addr> gradients;
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const Addr incoming = take(row), wide = take(row * 2.75);
      for (Addr block : saved_[layer]) give(block);
      saved_[layer].clear();
      for (int i = 0; i < 9; ++i) gradients.push_back(take(12 << 20));
      give(wide);
      give(incoming);
    }
    for (Addr block : gradients) {
      give(take(12 << 20));
      give(block);
    }
    give(tokens);
  }
  StreamId side_stream() const { return emulated_ ? kSide : side_; }

  void report(int done, double seconds, const DriverCounters& before) {
    const PoolStats stats = pool_->stats();
    const DriverCounters after = driver_->counters();
    const auto reserved = stats.reserved_bytes[kAll].peak, occupied = stats.active_bytes[kAll].peak;
    std::printf(
        "{\"iterations\": %d, \"seconds\": %.3f, \"calls\": %zu, \"malloc_ns_median\": %.1f, \"malloc_ns_p99\": %.1f, "
        "\"free_ns_median\": %.1f, \"free_ns_p99\": %.1f, \"rss_bytes\": %llu, \"views\": %llu, \"va_bytes\": %llu, "
        "\"reserved_peak_bytes\": %lld, \"occupied_peak_bytes\": %lld, \"overhead\": %.5f, \"driver_calls\": %llu, "
        "\"driver_time_us\": %.1f, \"stitches\": %lld}\n",
        done, seconds, malloc_ticks_.size() + free_ticks_.size(), timer_.quantile_ns(malloc_ticks_, 0.5),
        timer_.quantile_ns(malloc_ticks_, 0.99), timer_.quantile_ns(free_ticks_, 0.5),
        timer_.quantile_ns(free_ticks_, 0.99), (unsigned long long)resident_bytes(), (unsigned long long)stats.views,
        (unsigned long long)stats.va_bytes, (long long)reserved, (long long)occupied,
        occupied ? double(reserved) / double(occupied) - 1 : 0.0,
        (unsigned long long)(after.memory_calls() - before.memory_calls()),
        double(after.memory_time_ns - before.memory_time_ns) / 1e3, (long long)stats.num_stitches);
    std::fflush(stdout);
  }

  double scale_;
  std::mt19937_64 random_;
  std::unique_ptr<Driver> driver_;
  EmulatedDriver* emulated_ = nullptr;
  std::unique_ptr<Pool> pool_;
  StreamId side_ = kMain;
  CallTimer timer_;
  std::vector<Addr> weights_;
  std::vector<Addr> saved_[kLayers];
  std::vector<std::uint32_t> malloc_ticks_, free_ticks_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool known = argc >= 6 && (!std::strcmp(argv[1], "emulated") || !std::strcmp(argv[1], "cuda"));
  if (!known || std::atoi(argv[2]) < 1 || std::atoi(argv[3]) < 1 || std::atof(argv[4]) <= 0) {
    std::fprintf(stderr, "usage: soak emulated|cuda ITERATIONS WINDOW SCALE SEED [limit_bytes]\n");
    return 2;
  }
  try {
    Soak soak(!std::strcmp(argv[1], "cuda"), std::atof(argv[4]), std::strtoull(argv[5], nullptr, 10),
              argc > 6 ? std::strtoull(argv[6], nullptr, 10) : 0);
    soak.run(std::atoi(argv[2]), std::atoi(argv[3]));
  } catch (const dymem::Error& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 1;
  }
  return 0;
}
