// A mutex whose uncontended lock and unlock are one atomic operation each; waiting is in the kernel.
// The pool's only lock: std::mutex costs about twice as much where nobody waits, which is nearly always.
#pragma once
#include <atomic>
#include <cstdint>

namespace dymem {

class Lock {
 public:
  void lock() {
    std::uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) lock_slow();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0, kHeld = 1, kAwaited = 2;
  void lock_slow() {
    for (int i = 0; i < 64; i++) {  // a fast path elsewhere is over sooner than a sleep begins
      std::uint32_t expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire))
        return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      state_.wait(kAwaited, std::memory_order_relaxed);
  }
  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace dymem
