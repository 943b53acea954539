// Who watches the adapter's allocations and frees: one word for all of them, so that all together cost one predicted branch
// on a relaxed load while nobody does.
// Locks: none. Each bit is its owner's to set.
#pragma once
#include <atomic>
#include <cstdint>

namespace dymem {

struct Watch {
  static constexpr std::uint8_t history = 1;    // memory history is on, or there is a tracker (history.hpp)
  static constexpr std::uint8_t following = 2;  // allocations get their classes by a profiled iteration (following.hpp)
  static constexpr std::uint8_t searching = 4;  // iterations are looked for (searching.hpp)
};

namespace detail {
extern std::atomic<std::uint8_t> watching;
}

inline std::uint8_t watching() { return detail::watching.load(std::memory_order_relaxed); }
inline bool watched() { return __builtin_expect(watching() != 0, 0); }
inline void set_watching(std::uint8_t who, bool on) {
  if (on) detail::watching.fetch_or(who);
  else detail::watching.fetch_and(std::uint8_t(~who));
}

}  // namespace dymem
