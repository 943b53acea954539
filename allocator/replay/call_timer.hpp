// Nanoseconds of single calls, tens of nanoseconds long, without changing what they cost.
//
// Uses the cycle counter where there is one (x86: invariant on every machine a GPU sits in), calibrated against the
// steady clock over the whole measurement; the cost of an empty measurement is taken off. One timer per thread, no
// locks.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace dymem {

class CallTimer {
 public:
  CallTimer() : clock_start_(clock()), ticks_start_(ticks()) {
    std::vector<std::uint32_t> empty(257);
    for (auto& sample : empty) {
      const std::uint64_t t = ticks();
      sample = since(t);
    }
    std::nth_element(empty.begin(), empty.begin() + 128, empty.end());
    empty_ = empty[128];
  }

  static std::uint64_t ticks() {
#if defined(__x86_64__)
    _mm_lfence();
    const std::uint64_t t = __rdtsc();
    _mm_lfence();
    return t;
#else
    return static_cast<std::uint64_t>(clock());
#endif
  }
  static std::uint32_t since(std::uint64_t start) {
    const std::uint64_t n = ticks() - start;
    return n > 0xffffffffu ? 0xffffffffu : static_cast<std::uint32_t>(n);
  }

  // The q-quantile of samples (reordered), in nanoseconds; 0 of none.
  double quantile_ns(std::vector<std::uint32_t>& samples, double q) const {
    if (samples.empty()) return 0;
    const auto at = samples.begin() + static_cast<std::ptrdiff_t>(q * double(samples.size() - 1));
    std::nth_element(samples.begin(), at, samples.end());
    const std::uint64_t clock_now = static_cast<std::uint64_t>(clock() - clock_start_);
    const std::uint64_t ticks_now = ticks() - ticks_start_;
    const double ns_per_tick = ticks_now == 0 ? 1.0 : double(clock_now) / double(ticks_now);
    return *at <= empty_ ? 0 : double(*at - empty_) * ns_per_tick;
  }

 private:
  static std::int64_t clock() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::int64_t clock_start_;
  std::uint64_t ticks_start_;
  std::uint32_t empty_ = 0;
};

}  // namespace dymem
