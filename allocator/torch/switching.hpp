// What the watchers of allocations and frees share that can be switched on and off (following.hpp, searching.hpp).
// Locks: switching() itself, which is held for a moment and under which no other watcher is switched.
#pragma once
#include <pthread.h>

#include <cstdint>
#include <mutex>
#include <new>

#include "torch/watching.hpp"

namespace dymem {

inline std::mutex& switching() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// In each child that is forked (to load data) `kWho` is off and kForget() is called: it has no pool, and its copy of a lock
// may be held by nobody it has.
template <std::uint8_t kWho, void (*kForget)()>
void off_in_children() {
  pthread_atfork(nullptr, nullptr, [] {
    set_watching(kWho, false);
    new (&switching()) std::mutex;
    kForget();
  });
}

}  // namespace dymem
