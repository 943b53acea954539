// A mutex for sections of a tenth of a microsecond that are seldom contended, some of which take long (driver calls):
// locking is one atomic operation, unlocking a plain store.
//
// An unlock that asks whether somebody waits is a second atomic operation, a tenth of a free. So nobody is woken: who
// waits looks for a moment, then sleeps and looks again; longer and longer, up to kNapMost.
// The pool's only lock: std::mutex costs about twice as much where nobody waits, which is nearly always.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace dymem {

class Lock {
 public:
  void lock() {
    if (held_.exchange(true, std::memory_order_acquire)) lock_slow();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  static constexpr std::chrono::microseconds kNapMost{100};
  [[gnu::noinline]] void lock_slow() {
    for (std::chrono::microseconds nap{1};; nap = std::min(2 * nap, kNapMost)) {
      for (int i = 0; i < 64; i++) {  // a fast path elsewhere is over sooner than a sleep begins
        if (!held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire)) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      std::this_thread::sleep_for(nap);
    }
  }
  std::atomic<bool> held_{false};
};

}  // namespace dymem
