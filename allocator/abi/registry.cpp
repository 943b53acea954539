// See registry.hpp (G1..G3). The state is allocated once and never freed, so that a tensor that outlives main() still
// finds its pool and no destructor runs after the driver has gone.
#include "abi/registry.hpp"

#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "abi/peer_driver.hpp"
#include "driver/emulated.hpp"
#include "trace/recorder.hpp"

namespace dymem {

namespace detail {
std::atomic<Pool*> pools[kDevicesMax];
std::atomic<Pool*> only_pool;
}  // namespace detail

namespace {

struct Registry {
  std::mutex mutex;
  std::atomic<const ProcessConfig*> config{nullptr};  // set once, under the mutex; read without
  int pools_made = 0;
  std::unique_ptr<Driver> drivers[kDevicesMax];
  std::unique_ptr<TraceRecorder> recorders[kDevicesMax];
  std::vector<PoolHook> hooks;
};

std::atomic<Registry*> the_registry{nullptr};
std::atomic<bool> is_forked_child{false};
std::atomic<int> users{0};  // pools that were made or are being made

// Runs in every forked child; in those that inherit a pool, or half of one, there is none. Async-signal-safe: stores only,
// and a mutex made anew, since a thread that is not there may hold it.
void forget_in_child() {
  if (Registry* const inherited = the_registry.load(std::memory_order_acquire)) new (&inherited->mutex) std::mutex;
  if (users.load(std::memory_order_acquire) == 0) return;
  is_forked_child.store(true, std::memory_order_release);
  detail::only_pool.store(nullptr, std::memory_order_release);
  for (auto& entry : detail::pools) entry.store(nullptr, std::memory_order_release);
}

Registry& registry() {
  static Registry* const instance = [] {
    the_registry.store(new Registry, std::memory_order_release);
    pthread_atfork(nullptr, nullptr, forget_in_child);
    return the_registry.load();
  }();
  return *instance;
}

const ProcessConfig& config_locked(Registry& s) {
  if (!s.config.load()) {
    const char* text = std::getenv("DYMEM_CONF");
    s.config.store(new ProcessConfig(parse_config(text ? text : "")));
  }
  return *s.config.load();
}

std::unique_ptr<Driver> make_driver(const ProcessConfig& config, int device) {
  if (config.driver == DriverKind::cuda) return make_peer_driver(make_cuda_driver(device));
  EmulatedOptions options;
  options.device = device;
  options.capacity = config.emulated_capacity;
  options.bytes = true;
  options.realtime = true;
  return make_emulated_driver(options);
}

// While a pool is made, and from then on if it is: a child that is forked meanwhile inherits a driver in use.
struct Use {
  Use() { users.fetch_add(1, std::memory_order_release); }
  ~Use() {
    if (!lasts) users.fetch_sub(1, std::memory_order_release);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  bool lasts = false;
};

}  // namespace

void configure(const ProcessConfig& config) {
  Registry& s = registry();
  const auto is_set = [&] {
    const ProcessConfig* const set = s.config.load();
    if (!set || config_to_string(*set) == config_to_string(config)) return set != nullptr;
    if (users.load() > 0)
      throw InvalidArgument("dymem: the configuration cannot change once memory was allocated; it is " +
                            config_to_string(*set) + ".");
    throw InvalidArgument("dymem: this process is already configured with " + config_to_string(*set) +
                          "; configure it once, before the first use.");
  };
  if (is_set()) return;
  std::lock_guard lock(s.mutex);
  if (!is_set()) s.config.store(new ProcessConfig(config));
}

// Also called from the hooks of on_pool_made(), under the mutex: by then the configuration is set.
const ProcessConfig& process_config() {
  Registry& s = registry();
  if (const ProcessConfig* set = s.config.load()) return *set;
  std::lock_guard lock(s.mutex);
  return config_locked(s);
}

int device_count() {
  const ProcessConfig& config = process_config();
  return config.driver == DriverKind::emulated ? config.emulated_devices : cuda_device_count();
}

Pool& pool(int device) {
  if (Pool* made = pool_if_made(device)) return *made;
  if (forked())
    throw Error(
        "dymem: this process was forked from one that had already used the GPU, which CUDA does not allow: start "
        "workers with torch.multiprocessing.set_start_method('spawn'), or use the GPU only after forking.");
  Registry& s = registry();
  Use use;
  std::lock_guard lock(s.mutex);
  if (Pool* made = pool_if_made(device)) return *made;
  const ProcessConfig& config = config_locked(s);
  const bool emulated = config.driver == DriverKind::emulated;
  if (device < 0 || device >= (emulated ? config.emulated_devices : kDevicesMax))
    throw InvalidArgument(
        "dymem: there is no device " + std::to_string(device) + "; devices are numbered from 0" +
        (emulated ? " to " + std::to_string(config.emulated_devices - 1) + " (emulated_devices)." : std::string(".")));
  std::unique_ptr<Driver> driver = make_driver(config, device);
  auto made = std::make_unique<Pool>(*driver, config.pool);
  if (config.record_trace) {
    s.recorders[device] = std::make_unique<TraceRecorder>();
    made->set_recorder(s.recorders[device].get());
  }
  for (PoolHook hook : s.hooks) hook(device, *made);
  s.drivers[device] = std::move(driver);
  ++s.pools_made;
  use.lasts = true;
  Pool* published = made.release();
  // Before a second pool is seen, none is the only one: its blocks would be looked for in the first.
  if (s.pools_made > 1) detail::only_pool.store(nullptr, std::memory_order_release);
  detail::pools[device].store(published, std::memory_order_release);
  if (s.pools_made == 1) detail::only_pool.store(published, std::memory_order_release);
  return *published;
}

Pool* detail::pool_owning(Addr address) {
  for (auto& entry : pools)
    if (Pool* candidate = entry.load(std::memory_order_acquire); candidate && candidate->owns(address))
      return candidate;
  return nullptr;
}

bool forked() { return is_forked_child.load(std::memory_order_acquire); }

void on_pool_made(PoolHook hook) {
  Registry& s = registry();
  std::lock_guard lock(s.mutex);
  s.hooks.push_back(hook);
  for (int device = 0; device < kDevicesMax; ++device)
    if (Pool* made = pool_if_made(device)) hook(device, *made);
}

namespace {
std::atomic<const ForeignCallHooks*> foreign_call_hooks{nullptr};
}  // namespace

void on_foreign_call(const ForeignCallHooks* hooks) { foreign_call_hooks.store(hooks, std::memory_order_release); }

ForeignCall::ForeignCall(int device) {
  const auto* const hooks = foreign_call_hooks.load(std::memory_order_acquire);
  if (hooks && device >= 0) hooks->before(device);
}

ForeignCall::~ForeignCall() {
  if (const auto* const hooks = foreign_call_hooks.load(std::memory_order_acquire)) hooks->after();
}

TraceRecorder* recorder(int device) {
  if (device < 0 || device >= kDevicesMax) return nullptr;
  Registry& s = registry();
  std::lock_guard lock(s.mutex);
  return s.recorders[device].get();
}

}  // namespace dymem
