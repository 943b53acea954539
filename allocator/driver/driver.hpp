// The one seam to a machine: everything the pool asks of a device, one Driver per device.
//
// Contract (tests/contract runs it over every implementation):
//   D1  A handle is one physical allocation (a granule). It is mapped whole, at offset 0, or not at all; it may be
//       mapped at several addresses at once (aliases), and bytes written through one are read through the others by
//       work that is ordered after the write.
//   D2  map() gives no access; set_access() over one or several adjacent whole mappings of one reservation does.
//   D3  unmap() takes one or several adjacent whole mappings of one reservation; never a part of one.
//   D4  destroy() drops our reference; the bytes go back to the device when the last mapping is gone too.
//   D5  reserve() gives addresses only. release_addresses() takes exactly what reserve() gave, with nothing mapped in
//       it. A mapping lies in one reservation.
//   D6  No call waits for running work, except event_synchronize(), synchronize(), and slab_free() on a card. unmap()
//       does not wait either: the caller must know that no running work still uses the pages.
//   D7  An event completes when all work enqueued on its stream before record() is done.
//   D8  A failed call changes nothing; exhaustion is Status::out_of_memory, never an exception.
//   D9  copy_to_host() and copy_to_device() run on their stream, after what was enqueued there before, and return at
//       once. The host range lies in one host_alloc(); the device range is accessible. Neither may go away before the
//       copy is done. Not during a capture.
//   D10 import_handle() takes a descriptor that export_handle() gave, in any process, and gives a handle to the same
//       memory: mapped, unmapped and destroyed like one of create(), but on the exporter's account. Likewise open_slab()
//       with a ticket that export_slab() wrote; close_slab() takes exactly what it gave.
// Costs on a real card are in docs/decisions/0001; charged by the emulation (cost_model.hpp).
// Thread safety: calls may come from any thread; the pool serialises its own.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/errors.hpp"
#include "base/units.hpp"

namespace dymem {

using Handle = std::uint64_t;   // 0 = none
using EventId = std::uint64_t;  // 0 = none

enum class Code : std::uint8_t {
  ok,
  out_of_memory,  // no physical memory (create), no addresses (reserve)
  not_ready,      // event_query only: not complete yet
  invalid,        // the call breaks the contract
  unsupported,    // this device or driver cannot do it
  failed,         // anything else; `native` has the driver's own code
};

struct Status {
  Code code = Code::ok;
  const char* call = "";  // the driver's name for the call that failed
  int native = 0;         // its own error code
  bool ok() const { return code == Code::ok; }
  // Throws DriverError unless ok: for callers that have no way on.
  void expect_ok() const {
    if (!ok()) throw DriverError(call, native, "");
  }
};

struct DeviceMemory {
  Bytes free = 0;
  Bytes total = 0;
};

// Names a slab to other processes, for as long as it exists. On a card the bytes are a CUDA IPC memory handle.
struct SlabTicket {
  unsigned char bytes[64] = {};
};

// What a driver counts of itself since it was made; times are what the calls cost (measured or charged).
struct DriverCounters {
  std::uint64_t reserve = 0, create = 0, map = 0, set_access = 0, unmap = 0, destroy = 0;  // calls
  std::uint64_t event_record = 0, event_query = 0, event_wait = 0;                         // calls
  std::uint64_t asked_again = 0;  // times that a call was made again because the device answered "unknown error"
  Nanos memory_time_ns = 0;  // creating, mapping, access, unmapping, releasing
  std::uint64_t memory_calls() const { return create + map + set_access + unmap + destroy; }
};

class Driver {
 public:
  virtual ~Driver() = default;

  // --- what the device is
  virtual const char* name() const = 0;  // "cuda", "emulated", "checked(emulated)", …
  virtual int device() const = 0;
  virtual Bytes granularity() const = 0;  // unit of create(): 2 MiB
  virtual bool has_vmm() const = 0;       // false: reserve/create/map are unsupported; use slab_alloc
  virtual DeviceMemory memory() = 0;

  // --- addresses
  virtual Status reserve(Bytes size, Addr* out) = 0;  // aligned to granularity()
  virtual Status release_addresses(Addr base, Bytes size) = 0;

  // --- physical memory (granules), created exportable (POSIX file descriptor) where the device can
  virtual Status create(Bytes size, Handle* out) = 0;
  virtual Status destroy(Handle handle) = 0;
  virtual Status map(Addr at, Bytes size, Handle handle) = 0;  // size = the handle's whole size
  virtual Status set_access(Addr at, Bytes size) = 0;
  virtual Status unmap(Addr at, Bytes size) = 0;
  // A file descriptor for another process; the caller closes it.
  virtual Status export_handle(Handle handle, int* fd) = 0;
  // The granule behind such a descriptor (which stays the caller's); `size` is what it was created with.
  virtual Status import_handle(int fd, Bytes size, Handle* out) = 0;
  // Let `peer` device read and write what is mapped at [at, at+size).
  virtual Status set_peer_access(Addr at, Bytes size, int peer) = 0;

  // --- pinned host memory, and copies between it and the device (D9)
  virtual Status host_alloc(Bytes size, void** out) = 0;
  virtual Status host_free(void* base) = 0;
  virtual Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) = 0;
  virtual Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) = 0;
  virtual Status synchronize() = 0;  // waits on the host for all work of the device; not during a capture

  // --- one plain allocation, for devices without VMM (the contiguous backing)
  virtual Status slab_alloc(Bytes size, Addr* out) = 0;
  virtual Status slab_free(Addr base) = 0;
  virtual Status export_slab(Addr base, SlabTicket* out) = 0;
  virtual Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) = 0;  // of another process
  virtual Status close_slab(Addr base) = 0;  // the caller knows that no work uses it

  // --- streams and events
  virtual Status event_create(EventId* out) = 0;
  virtual Status event_destroy(EventId event) = 0;
  virtual Status event_record(EventId event, StreamId stream) = 0;
  virtual Status event_query(EventId event) = 0;                   // ok = complete, not_ready = not yet
  virtual Status event_synchronize(EventId event) = 0;             // waits on the host
  virtual Status stream_wait(StreamId stream, EventId event) = 0;  // later work on stream waits for event
  virtual bool is_capturing(StreamId stream) = 0;                  // a graph capture is under way: no calls then

  // --- clock, and bytes for tests (synchronous; unsupported in accounting-only emulation)
  virtual Nanos now() = 0;
  virtual Status write(Addr at, const void* from, Bytes n) = 0;
  virtual Status read(Addr at, void* to, Bytes n) = 0;

  virtual DriverCounters counters() const = 0;
};

// cuda.cpp. Throws DriverError with one clear sentence when there is no driver, no device, or the device is unusable.
std::unique_ptr<Driver> make_cuda_driver(int device);
// Devices the driver API reports; 0 without a driver. Initialises the driver API, creates no context.
int cuda_device_count();

}  // namespace dymem
