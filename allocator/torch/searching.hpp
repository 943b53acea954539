// The program's iterations looked for in what its pools are asked (pool/period.hpp): what `mobility:auto` switches on
// until one was profiled. One PeriodFinder a device, never destroyed, like the pools.
//
//   R1  Off costs nothing: the adapter's one branch on who watches is there already (watching.hpp).
//   R2  The steps are those that are followed later (following.hpp W2): what PyTorch asks of the pools.
//   R3  Python gets control where it asked to, without a hook in the program: a stream that reaches wake_at() lets the
//       interpreter call `waker` in its main thread, between two of its instructions. That is after the operator at
//       hand, and after the whole of a backward. Nothing of Python runs here.
//   R4  Nothing throws, and nothing is asked of a pool under a finder's lock.
// Locks: one mutex around switching; a finder's own is a leaf.
#pragma once
#include <atomic>

#include "abi/registry.hpp"
#include "pool/period.hpp"

namespace dymem {

class Searching {
 public:
  // `waker` must not block, may be called on any thread, and with any lock of the program held.
  void start(void (*waker)());
  void stop();  // forgets all
  bool on() const;
  std::uint64_t steps() const;       // of the busiest stream of all devices
  Period find() const;               // of that stream
  void wake_at(std::uint64_t step);  // once, when a stream has done so many; the last call counts

  void allocated(int device, StreamId stream, Bytes bytes, const void* pointer) noexcept;
  void freeing(int device, StreamId stream, Addr at) noexcept;  // a block, about to be freed

 private:
  friend Searching& searching();
  Searching();
  static void forget_in_child();
  int busiest() const;
  void wake() noexcept;
  PeriodFinder finders_[kDevicesMax];
  std::atomic<void (*)()> waker_{nullptr};
};

Searching& searching();

}  // namespace dymem
