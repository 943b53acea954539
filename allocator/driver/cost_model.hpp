// What driver calls cost, in microseconds for one handle of s MiB (measured on an H200, driver 580; remade by
// bench/probe_gpu). Replay charges these; policies that need costs measure their own machine.
#pragma once
#include "base/units.hpp"

namespace dymem::cost {

constexpr double mib(Bytes n) { return double(n) / double(kMiB); }
constexpr double create_us(Bytes n) { return 15.0 + 0.033 * mib(n); }
constexpr double map_us(Bytes n) { return 1.5 + 0.004 * mib(n); }
constexpr double access_us(Bytes n) { return 38.0 + 0.075 * mib(n); }
constexpr double unmap_us(Bytes n) { return 26.0 + 0.036 * mib(n); }
constexpr double destroy_us(Bytes n) { return 14.0 + 0.5 * mib(n); }

// Copies between pinned host memory and the device: 55 GB/s, and what a piece costs of its own.
constexpr double copy_us(Bytes n) { return 8.0 + double(n) / 55'000.0; }

}  // namespace dymem::cost
