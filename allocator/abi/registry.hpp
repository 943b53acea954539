// The process's pools: one per device, made at first use, never destroyed at exit (a dead driver must not be called).
// The only process-wide state of dymem. Configuration comes from configure() or from DYMEM_CONF, whichever is first.
#pragma once
#include <string>

#include "pool/config.hpp"
#include "pool/pool.hpp"

namespace dymem {

enum class DriverKind : std::uint8_t { cuda, emulated };

struct ProcessConfig {
  PoolConfig pool;
  DriverKind driver = DriverKind::cuda;
  Bytes emulated_capacity = 8 * kGiB;  // size of each emulated device
  int emulated_devices = 1;
  bool record_trace = false;
};

// Parses "key:value,key:value" (keys as in dymem.Config); throws InvalidArgument naming the valid keys.
ProcessConfig parse_config(const std::string& text);
std::string config_to_string(const ProcessConfig& config);

// Sets the configuration; throws InvalidArgument if a pool exists already or another configuration was set.
void configure(const ProcessConfig& config);
const ProcessConfig& process_config();

int device_count();              // touches the driver only for cuda
Pool& pool(int device);          // made at first use; throws DriverError, InvalidArgument (no such device)
Pool* pool_if_made(int device);  // nullptr when that device was not used yet
bool forked();                   // this process is a fork of one that used the pool: nothing may be called

TraceRecorder* recorder(int device);  // nullptr unless record_trace

}  // namespace dymem
