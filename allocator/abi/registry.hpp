// The process's pools: one per device, made at first use, never destroyed at exit (a dead driver must not be called).
// The only process-wide state of dymem. Configuration comes from configure() or from DYMEM_CONF, whichever is first.
//
//   G1  A pool, once published, lives until the process ends, and its address does not change.
//   G2  Looking up a pool that exists takes no lock: one atomic load.
//   G3  In a child forked from a process that used a pool, every lookup answers nullptr and forked() is true: the
//       child's copies of the pools are never touched, since the driver behind them works in the parent only.
// Locks: one mutex of the registry's own, around configuring and making pools; never held while a pool is called,
// except by the hook of on_pool_made() on a pool that nobody else can see yet.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "pool/config.hpp"
#include "pool/pool.hpp"

namespace dymem {

class TraceRecorder;

enum class DriverKind : std::uint8_t { cuda, emulated };

struct ProcessConfig {
  PoolConfig pool;
  DriverKind driver = DriverKind::cuda;
  Bytes emulated_capacity = 8 * kGiB;  // size of each emulated device
  int emulated_devices = 1;
  bool record_trace = false;
  bool automatic_mobility = false;  // heeded by python/dymem/mobility/automatic.py
};

// Parses "key:value,key:value" (keys as in dymem.Config); throws InvalidArgument naming the valid keys.
ProcessConfig parse_config(const std::string& text);
std::string config_to_string(const ProcessConfig& config);  // every key, in the order of config_keys()
const std::vector<std::string>& config_keys();

// Sets the configuration; throws InvalidArgument if a pool exists already or another configuration was set.
void configure(const ProcessConfig& config);
const ProcessConfig& process_config();

constexpr int kDevicesMax = 64;

namespace detail {
extern std::atomic<Pool*> pools[kDevicesMax];
extern std::atomic<Pool*> only_pool;  // the one pool there is; nullptr while there are none or several
Pool* pool_owning(Addr address);
}  // namespace detail

int device_count();      // touches the driver only for cuda
Pool& pool(int device);  // made at first use; throws DriverError, InvalidArgument (no such device; forked child)
// nullptr when that device was not used yet.
inline Pool* pool_if_made(int device) {
  return static_cast<unsigned>(device) < static_cast<unsigned>(kDevicesMax)
             ? detail::pools[device].load(std::memory_order_acquire)
             : nullptr;
}
// The pool that `address` may belong to: certain to be its owner only when several pools exist. nullptr: none.
inline Pool* pool_of(Addr address) {
  Pool* only = detail::only_pool.load(std::memory_order_acquire);
  return only ? only : detail::pool_owning(address);
}
bool forked();  // this process is a fork of one that used the pool: nothing may be called

// Called once for each pool, those that exist and those to come, before anyone else can use it.
using PoolHook = void (*)(int device, Pool& pool);
void on_pool_made(PoolHook hook);

// Around a call of a pool that does not come through PyTorch (holders.hpp, trim_all), with no lock held: the adapter's sink
// is attached to a pool that nobody used yet, and what it left for the calling thread is told.
struct ForeignCallHooks {
  void (*before)(int device) noexcept = nullptr;
  void (*after)() noexcept = nullptr;
};
void on_foreign_call(const ForeignCallHooks* hooks);  // for good
class ForeignCall {
 public:
  explicit ForeignCall(int device = -1);  // -1: of a pool that was used before
  ~ForeignCall();
  ForeignCall(const ForeignCall&) = delete;
  ForeignCall& operator=(const ForeignCall&) = delete;
};

TraceRecorder* recorder(int device);  // nullptr unless record_trace

}  // namespace dymem
