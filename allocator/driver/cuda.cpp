// The driver seam on a real card: CUDA's virtual memory management through the driver API.
//
//   K1  The device's primary context (the one PyTorch uses) is retained at the first call that needs it, so making a
//       driver creates no context. It is current during a call: pushed only if the calling thread has another or none.
//   K2  Handles and events are ids of our own (slot_table.hpp): a stale one is refused before CUDA, which would crash.
//   K3  Events record no time and are pooled: a destroyed one is handed out again, counting as never recorded.
//   K4  Nothing here waits for the device but event_synchronize(), synchronize(), slab_free(), host_free(), read() and
//       write(). No lock of ours is held while CUDA is called, save for the first call's retaining.
//   K5  Pinned host memory is made by pinning pages that exist: an order of magnitude faster than cuMemHostAlloc, which
//       is asked where pages cannot be pinned.
//   K6  "Unknown error" from a call that can be made again without harm (create, set_access) is no answer yet: it is asked
//       again for kPatience. A card that other processes worked on gave it, and took the same call later (decision 0001).
// CUDA does not refuse all that the contract forbids: a mapping may run over the end of its reservation (which then
// cannot be released), and unmapping a range takes what is mapped in it, gaps or not. The checked decorator finds both.
// Times in counters() are of the host's steady clock. The mutex guards the tables; counters are atomics.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver/cuda_table.hpp"
#include "driver/driver.hpp"
#include "driver/host_ranges.hpp"
#include "driver/refusals.hpp"
#include "driver/slot_table.hpp"
#include "driver/touched_host.hpp"

namespace dymem {
namespace {

using namespace cuda_abi;

Code code_of(Result result) {
  switch (result) {
    case kSuccess:
      return Code::ok;
    case kErrorOutOfMemory:
      return Code::out_of_memory;
    case kErrorNotReady:
      return Code::not_ready;
    case kErrorInvalidValue:
    case kErrorInvalidHandle:
      return Code::invalid;
    case kErrorNotSupported:
      return Code::unsupported;
    default:
      break;
  }
  // A call that a capture forbids is the caller's breach of the contract.
  if (result >= kErrorCaptureUnsupported && result <= kErrorCaptureWrongThread) return Code::invalid;
  return Code::failed;
}

Status status_of(const char* call, Result result) { return {code_of(result), call, result}; }

std::string describe(const CudaTable& cuda, Result result) {
  const char* text = nullptr;
  return cuda.get_error_string(result, &text) == kSuccess && text ? text : "unknown error";
}

constexpr Nanos kPatience = 2'000'000'000, kFirstPause = 100'000, kLongestPause = 50'000'000;  // of K6

Nanos steady_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Makes `context` current for a scope.
class Current {
 public:
  Current(const CudaTable& cuda, Context context) : cuda_(cuda) {
    Context now = nullptr;
    error = cuda.context_current(&now);
    if (error != kSuccess || now == context) return;
    error = cuda.context_push(context);
    pushed_ = error == kSuccess;
  }
  ~Current() {
    Context popped = nullptr;
    if (pushed_) cuda_.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Result error = kSuccess;

 private:
  const CudaTable& cuda_;
  bool pushed_ = false;
};

class Cuda final : public Driver {
 public:
  Cuda(const CudaTable& cuda, int ordinal, Device device) : cuda_(cuda), ordinal_(ordinal), device_(device) {
    vmm_ = cuda.has_vmm && attribute(kAttributeVmm) != 0;
    exportable_ = attribute(kAttributePosixHandles) != 0;
    rdma_ = attribute(kAttributeRdmaWithVmm) != 0;
    std::size_t unit = 0;
    const AllocationProp prop = properties(false, false);
    if (vmm_ && cuda.granularity(&unit, &prop, kGranularityMinimum) == kSuccess && unit) granularity_ = unit;
    else vmm_ = false;
  }

  ~Cuda() override {
    const Context context = context_.load();
    if (!context) return;
    host_.each([&](void* base, Bytes) { (void)host_free_now(base); });
    // At process exit the driver may be gone: then every call fails, and there is nothing left to give back.
    {
      const Current current(cuda_, context);
      if (current.error != kSuccess) return;
      for (const Event event : spare_events_) cuda_.event_destroy(event);
      events_.for_each([&](CudaEvent& event) { cuda_.event_destroy(event.native); });
    }
    cuda_.primary_release(device_);
  }

  const char* name() const override { return "cuda"; }
  int device() const override { return ordinal_; }
  Bytes granularity() const override { return granularity_; }
  bool has_vmm() const override { return vmm_; }

  DeviceMemory memory() override {
    std::size_t free = 0, total = 0;
    const Status status = call("cuMemGetInfo", [&] { return cuda_.memory_info(&free, &total); });
    if (!status.ok()) throw DriverError(status.call, status.native, describe(cuda_, status.native));
    return {free, total};
  }

  // --- addresses

  Status reserve(Bytes size, Addr* out) override {
    if (!vmm_) return unsupported("cuMemAddressReserve");
    if (size == 0 || size % granularity_) return invalid("cuMemAddressReserve");
    DevicePtr base = 0;
    const Status status =
        call("cuMemAddressReserve", [&] { return cuda_.address_reserve(&base, size, granularity_, 0, 0); });
    if (!status.ok()) return status;
    ++calls_.reserve;
    *out = base;
    return status;
  }

  Status release_addresses(Addr base, Bytes size) override {
    if (!vmm_) return unsupported("cuMemAddressFree");
    return call("cuMemAddressFree", [&] { return cuda_.address_free(base, size); });
  }

  // --- physical memory

  Status create(Bytes size, Handle* out) override {
    if (!vmm_) return unsupported("cuMemCreate");
    if (size == 0 || size % granularity_) return invalid("cuMemCreate");
    Allocation native = 0;
    bool exported = exportable_, rdma = rdma_;
    const Nanos end = steady_now() + kPatience;
    Status status;
    for (;;) {
      const AllocationProp prop = properties(exported, rdma);
      status = patiently("cuMemCreate", end, [&] { return cuda_.mem_create(&native, size, &prop, 0); });
      if (status.ok() || status.code == Code::out_of_memory || !(exported || rdma)) break;
      // Some machines (containers, virtual GPUs) report what they then refuse: do without. What was granted once is not
      // refused, though, when the card is out of sorts (K6).
      if (status.native == kErrorUnknown && calls_.create) break;
      if (rdma) rdma = false;
      else exported = false;
    }
    if (!status.ok()) return status;
    exportable_ = exported;
    rdma_ = rdma;
    ++calls_.create;
    const Lock lock(mutex_);
    *out = handles_.add({native, size, exported});
    return status;
  }

  Status destroy(Handle handle) override {
    Granule granule;
    if (!take_handle(handle, &granule)) return invalid("cuMemRelease");
    const Status status = timed("cuMemRelease", [&] { return cuda_.mem_release(granule.native); });
    if (status.ok()) {
      ++calls_.destroy;
      const Lock lock(mutex_);
      handles_.erase(handle);
    }
    return status;
  }

  Status map(Addr at, Bytes size, Handle handle) override {
    if (!vmm_) return unsupported("cuMemMap");
    Granule granule;
    if (!take_handle(handle, &granule) || granule.size != size || at % granularity_) return invalid("cuMemMap");
    const Status status = timed("cuMemMap", [&] { return cuda_.mem_map(at, size, 0, granule.native, 0); });
    if (status.ok()) ++calls_.map;
    return status;
  }

  Status set_access(Addr at, Bytes size) override { return give_access(at, size, ordinal_); }

  Status set_peer_access(Addr at, Bytes size, int peer) override {
    if (peer == ordinal_) return invalid("cuMemSetAccess");
    Device other = 0;
    int can = 0;
    if (cuda_.device_get(&other, peer) != kSuccess) return invalid("cuDeviceGet");
    if (cuda_.device_can_access_peer(&can, other, device_) != kSuccess || !can)
      return unsupported("cuDeviceCanAccessPeer");
    return give_access(at, size, peer);
  }

  Status unmap(Addr at, Bytes size) override {
    if (!vmm_) return unsupported("cuMemUnmap");
    if (size == 0) return invalid("cuMemUnmap");
    const Status status = timed("cuMemUnmap", [&] { return cuda_.mem_unmap(at, size); });
    if (status.ok()) ++calls_.unmap;
    return status;
  }

  Status export_handle(Handle handle, int* fd) override {
    if (!vmm_) return unsupported("cuMemExportToShareableHandle");
    Granule granule;
    if (!take_handle(handle, &granule)) return invalid("cuMemExportToShareableHandle");
    if (!granule.exportable) return unsupported("cuMemExportToShareableHandle");
    return call("cuMemExportToShareableHandle",
                [&] { return cuda_.mem_export(fd, granule.native, kHandlePosixFileDescriptor, 0); });
  }

  Status import_handle(int fd, Bytes size, Handle* out) override {
    if (!vmm_) return unsupported("cuMemImportFromShareableHandle");
    if (fd < 0 || size == 0 || size % granularity_) return invalid("cuMemImportFromShareableHandle");
    Allocation native = 0;
    const Status status = timed("cuMemImportFromShareableHandle", [&] {
      // The descriptor itself, in the place of a pointer to it.
      return cuda_.mem_import(&native, reinterpret_cast<void*>(std::intptr_t{fd}), kHandlePosixFileDescriptor);
    });
    if (!status.ok()) return status;
    const Lock lock(mutex_);
    *out = handles_.add({native, size, false});
    return status;
  }

  // --- pinned host memory and copies

  Status host_alloc(Bytes size, void** out) override {
    if (size == 0 || size > kRequestMax) return invalid("cuMemHostAlloc");
    void* base = nullptr;
    if (map_host(size, &base) == 0) {
      touch_host(base, size);
      const Status status =
          call("cuMemHostRegister", [&] { return cuda_.host_register(base, size, kHostPortable); });
      if (status.ok()) {
        const Lock lock(mutex_);
        host_.add(base, size);
        registered_.insert(base);
        *out = base;
        return status;
      }
      unmap_host(base, size);
    }
    const Status status = call("cuMemHostAlloc", [&] { return cuda_.host_alloc(&base, size, kHostPortable); });
    if (!status.ok()) return status;
    const Lock lock(mutex_);
    host_.add(base, size);
    *out = base;
    return status;
  }

  Status host_free(void* base) override {
    {
      const Lock lock(mutex_);
      if (!host_.size(base)) return invalid("cuMemFreeHost");
    }
    const Status status = host_free_now(base);
    const Lock lock(mutex_);
    if (status.ok()) host_.remove(base), registered_.erase(base);
    return status;
  }

  Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) override {
    if (const Status status = copyable("cuMemcpyDtoHAsync", from, to, n); !status.ok() || n == 0) return status;
    return call("cuMemcpyDtoHAsync", [&] { return cuda_.copy_to_host_async(to, from, n, stream_of(stream)); });
  }

  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) override {
    if (const Status status = copyable("cuMemcpyHtoDAsync", to, from, n); !status.ok() || n == 0) return status;
    return call("cuMemcpyHtoDAsync", [&] { return cuda_.copy_to_device_async(to, from, n, stream_of(stream)); });
  }

  Status synchronize() override {
    return call("cuCtxSynchronize", [&] { return cuda_.context_synchronize(); });
  }

  // --- slabs

  Status slab_alloc(Bytes size, Addr* out) override {
    if (size == 0 || size > kRequestMax) return invalid("cuMemAlloc");
    DevicePtr base = 0;
    const Status status = timed("cuMemAlloc", [&] { return cuda_.mem_alloc(&base, size); });
    if (!status.ok()) return status;
    const Lock lock(mutex_);
    slabs_.emplace(base, size);
    *out = base;
    return status;
  }

  Status slab_free(Addr base) override {
    {
      const Lock lock(mutex_);
      if (!slabs_.count(base)) return invalid("cuMemFree");
    }
    const Status status = timed("cuMemFree", [&] { return cuda_.mem_free(base); });
    const Lock lock(mutex_);
    if (status.ok()) slabs_.erase(base);
    return status;
  }

  Status export_slab(Addr base, SlabTicket* out) override {
    {
      const Lock lock(mutex_);
      if (!slabs_.count(base)) return invalid("cuIpcGetMemHandle");
    }
    IpcMemHandle handle;
    static_assert(sizeof handle.bytes == sizeof out->bytes);
    const Status status = call("cuIpcGetMemHandle", [&] { return cuda_.ipc_get(&handle, base); });
    if (status.ok()) std::memcpy(out->bytes, handle.bytes, sizeof handle.bytes);
    return status;
  }

  // Opened again while it is open, CUDA counts, and gives the same address.
  Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) override {
    IpcMemHandle handle;
    std::memcpy(handle.bytes, ticket.bytes, sizeof handle.bytes);
    DevicePtr at = 0, base = 0;
    std::size_t whole = 0;
    Status status = timed("cuIpcOpenMemHandle", [&] { return cuda_.ipc_open(&at, handle, kIpcLazyPeerAccess); });
    if (!status.ok()) return status;
    status = call("cuMemGetAddressRange", [&] { return cuda_.mem_range(&base, &whole, at); });
    if (!status.ok()) {
      (void)call("cuIpcCloseMemHandle", [&] { return cuda_.ipc_close(at); });
      return status;
    }
    const Lock lock(mutex_);
    opened_.emplace(at, whole);
    *out = at;
    *size = whole;
    return status;
  }

  Status close_slab(Addr base) override {
    {
      const Lock lock(mutex_);
      if (!opened_.count(base)) return invalid("cuIpcCloseMemHandle");
    }
    const Status status = timed("cuIpcCloseMemHandle", [&] { return cuda_.ipc_close(base); });
    const Lock lock(mutex_);
    if (status.ok()) opened_.erase(opened_.find(base));
    return status;
  }

  // --- streams and events

  Status event_create(EventId* out) override {
    {
      const Lock lock(mutex_);
      if (!spare_events_.empty()) {
        *out = events_.add({spare_events_.back(), false});
        spare_events_.pop_back();
        return {};
      }
    }
    Event native = nullptr;
    const Status status = call("cuEventCreate", [&] { return cuda_.event_create(&native, kEventDisableTiming); });
    if (!status.ok()) return status;
    const Lock lock(mutex_);
    *out = events_.add({native, false});
    return status;
  }

  Status event_destroy(EventId event) override {
    const Lock lock(mutex_);
    CudaEvent* e = events_.find(event);
    if (!e) return invalid("cuEventDestroy");
    spare_events_.push_back(e->native);
    events_.erase(event);
    return {};
  }

  Status event_record(EventId event, StreamId stream) override {
    CudaEvent e;
    if (!take_event(event, &e)) return invalid("cuEventRecord");
    const Status status = call("cuEventRecord", [&] { return cuda_.event_record(e.native, stream_of(stream)); });
    if (!status.ok()) return status;
    ++calls_.event_record;
    if (e.recorded) return status;
    const Lock lock(mutex_);
    if (CudaEvent* still = events_.find(event)) still->recorded = true;
    return status;
  }

  Status event_query(EventId event) override {
    CudaEvent e;
    if (!take_event(event, &e)) return invalid("cuEventQuery");
    ++calls_.event_query;
    if (!e.recorded) return {};
    return call("cuEventQuery", [&] { return cuda_.event_query(e.native); });
  }

  Status event_synchronize(EventId event) override {
    CudaEvent e;
    if (!take_event(event, &e)) return invalid("cuEventSynchronize");
    if (!e.recorded) return {};
    return call("cuEventSynchronize", [&] { return cuda_.event_synchronize(e.native); });
  }

  Status stream_wait(StreamId stream, EventId event) override {
    CudaEvent e;
    if (!take_event(event, &e)) return invalid("cuStreamWaitEvent");
    ++calls_.event_wait;
    if (!e.recorded) return {};
    return call("cuStreamWaitEvent", [&] { return cuda_.stream_wait_event(stream_of(stream), e.native, 0); });
  }

  bool is_capturing(StreamId stream) override {
    unsigned capture = kCaptureNone;
    const Status status =
        call("cuStreamIsCapturing", [&] { return cuda_.stream_is_capturing(stream_of(stream), &capture); });
    // The legacy stream is never captured itself; asked while another stream is, CUDA answers with this error, and
    // anything put on the legacy stream now would break that capture.
    if (status.native == kErrorCaptureImplicit) return true;
    return status.ok() && capture != kCaptureNone;  // invalidated is still under way: until it is ended
  }

  // --- clock and bytes

  Nanos now() override { return steady_now(); }

  Status write(Addr at, const void* from, Bytes n) override {
    if (const Status status = accessible("cuMemcpyHtoD", at, n); !status.ok() || n == 0) return status;
    const Status status = call("cuMemcpyHtoD", [&] { return cuda_.copy_to_device(at, from, n); });
    return status.ok() ? synchronize() : status;  // CUDA returns once it holds a small copy: another device may read too soon
  }

  Status read(Addr at, void* to, Bytes n) override {
    if (const Status status = accessible("cuMemcpyDtoH", at, n); !status.ok() || n == 0) return status;
    return call("cuMemcpyDtoH", [&] { return cuda_.copy_to_host(to, at, n); });
  }

  DriverCounters counters() const override {
    DriverCounters c;
    c.reserve = calls_.reserve, c.create = calls_.create, c.map = calls_.map;
    c.set_access = calls_.set_access, c.unmap = calls_.unmap, c.destroy = calls_.destroy;
    c.event_record = calls_.event_record, c.event_query = calls_.event_query, c.event_wait = calls_.event_wait;
    c.asked_again = calls_.asked_again;
    c.memory_time_ns = memory_time_;
    return c;
  }

 private:
  using Lock = std::lock_guard<std::mutex>;

  struct Granule {
    Allocation native = 0;
    Bytes size = 0;
    bool exportable = false;
  };
  struct CudaEvent {
    Event native = nullptr;
    bool recorded = false;
  };
  struct Calls {
    std::atomic<std::uint64_t> reserve{0}, create{0}, map{0}, set_access{0}, unmap{0}, destroy{0};
    std::atomic<std::uint64_t> event_record{0}, event_query{0}, event_wait{0}, asked_again{0};
  };

  static Stream stream_of(StreamId stream) { return reinterpret_cast<Stream>(stream); }

  int attribute(int which) const {
    int value = 0;
    return cuda_.device_attribute(&value, which, device_) == kSuccess ? value : 0;
  }

  AllocationProp properties(bool exportable, bool rdma) const {
    AllocationProp prop;
    prop.type = kAllocationPinned;
    prop.handle_types = exportable ? kHandlePosixFileDescriptor : kHandleNone;
    prop.location = {kLocationDevice, ordinal_};
    prop.flags.gpu_direct_rdma = rdma;
    return prop;
  }

  Result retain() {
    const Lock lock(retain_mutex_);
    if (context_.load()) return kSuccess;
    Context context = nullptr;
    const Result result = cuda_.primary_retain(&context, device_);
    if (result == kSuccess) context_.store(context);
    return result;
  }

  template <class Function>
  Status call(const char* name, const Function& function) {
    if (!context_.load(std::memory_order_acquire))
      if (const Result result = retain()) return status_of("cuDevicePrimaryCtxRetain", result);
    const Current current(cuda_, context_.load(std::memory_order_acquire));
    if (current.error != kSuccess) return status_of("cuCtxPushCurrent", current.error);
    return status_of(name, function());
  }

  // A call whose time counts as memory time; failed ones took time, too.
  template <class Function>
  Status timed(const char* name, const Function& function) {
    return call(name, [&] {
      const Nanos start = steady_now();
      const Result result = function();
      memory_time_ += steady_now() - start;
      return result;
    });
  }

  // A timed call that K6 is for, until `end`; the pauses are no memory time.
  template <class Function>
  Status patiently(const char* name, Nanos end, const Function& function) {
    Status status = timed(name, function);
    for (Nanos pause = kFirstPause; status.native == kErrorUnknown && steady_now() < end;
         pause = std::min(2 * pause, kLongestPause)) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
      ++calls_.asked_again;
      status = timed(name, function);
    }
    return status;
  }

  Status give_access(Addr at, Bytes size, int ordinal) {
    if (!vmm_) return unsupported("cuMemSetAccess");
    if (size == 0) return invalid("cuMemSetAccess");
    const AccessDesc desc{{kLocationDevice, ordinal}, kAccessReadWrite};
    const Status status = patiently("cuMemSetAccess", steady_now() + kPatience,
                                    [&] { return cuda_.mem_set_access(at, size, &desc, 1); });
    if (status.ok()) ++calls_.set_access;
    return status;
  }

  // For read() and write(), which are for tests: CUDA is asked for every granule of the range, since a copy from or to
  // pages without access may poison the context.
  Status accessible(const char* name, Addr at, Bytes n) {
    if (n == 0) return {};
    {
      const Lock lock(mutex_);
      for (const auto* slabs : {&slabs_, &opened_}) {
        auto slab = slabs->upper_bound(at);
        if (slab != slabs->begin() && at - (--slab)->first < slab->second)
          return slab->second - (at - slab->first) >= n ? Status{} : invalid(name);
      }
    }
    if (!vmm_) return invalid(name);
    const Location here{kLocationDevice, ordinal_};
    for (Addr page = round_down(at, granularity_); page < at + n; page += granularity_) {
      unsigned long long flags = 0;
      const Status status = call("cuMemGetAccess", [&] { return cuda_.mem_get_access(&flags, &here, page); });
      if (!status.ok() || flags != kAccessReadWrite) return invalid(name);
    }
    return {};
  }

  // Ends are looked at, not every page between: what is wholly unmapped CUDA refuses by itself.
  Status copyable(const char* name, Addr device, const void* host, Bytes n) {
    {
      const Lock lock(mutex_);
      if (!host_.holds(host, n)) return invalid(name);
    }
    if (n == 0) return {};
    const Status first = accessible(name, device, 1);
    return first.ok() ? accessible(name, device + n - 1, 1) : first;
  }

  // Takes the pages from CUDA and gives them back to the system.
  Status host_free_now(void* base) {
    Bytes size = 0;
    bool registered = false;
    {
      const Lock lock(mutex_);
      size = host_.size(base);
      registered = registered_.count(base) != 0;
    }
    if (!registered) return call("cuMemFreeHost", [&] { return cuda_.host_free(base); });
    const Status status = call("cuMemHostUnregister", [&] { return cuda_.host_unregister(base); });
    if (status.ok()) unmap_host(base, size);
    return status;
  }

  bool take_handle(Handle handle, Granule* out) {
    const Lock lock(mutex_);
    const Granule* granule = handles_.find(handle);
    if (granule) *out = *granule;
    return granule != nullptr;
  }

  bool take_event(EventId event, CudaEvent* out) {
    const Lock lock(mutex_);
    const CudaEvent* e = events_.find(event);
    if (e) *out = *e;
    return e != nullptr;
  }

  const CudaTable& cuda_;
  const int ordinal_;
  const Device device_;
  bool vmm_ = false;
  Bytes granularity_ = kGranuleUnit;
  std::atomic<bool> exportable_{false}, rdma_{false};
  std::atomic<Context> context_{nullptr};
  std::mutex retain_mutex_;
  std::mutex mutex_;  // the tables below
  SlotTable<Granule> handles_;
  SlotTable<CudaEvent> events_;
  std::vector<Event> spare_events_;
  std::multimap<Addr, Bytes> slabs_, opened_;  // ours; of other processes, once for each time it was opened
  HostRanges host_;
  std::set<void*> registered_;  // of host_: pages of ours that CUDA pinned
  Calls calls_;
  std::atomic<Nanos> memory_time_{0};
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(int device) {
  const CudaTable& cuda = cuda_table();
  if (!cuda.missing.empty()) throw DriverError("cuInit", kErrorNotInitialized, cuda.missing);
  if (const Result result = cuda.init(0))
    throw DriverError("cuInit", result, describe(cuda, result) + "; see whether nvidia-smi lists a GPU");
  int count = 0;
  if (const Result result = cuda.device_count(&count))
    throw DriverError("cuDeviceGetCount", result, describe(cuda, result));
  Device native = 0;
  if (const Result result = cuda.device_get(&native, device))
    throw DriverError("cuDeviceGet", result,
                      "there is no GPU " + std::to_string(device) + "; the driver reports " + std::to_string(count) +
                          " (CUDA_VISIBLE_DEVICES hides others)");
  int mode = 0;
  if (cuda.device_attribute(&mode, kAttributeComputeMode, native) == kSuccess && mode == kComputeModeProhibited)
    throw DriverError("cuDeviceGetAttribute", mode,
                      "GPU " + std::to_string(device) + " is in compute mode prohibited; nvidia-smi -c 0 lifts that");
  return std::make_unique<Cuda>(cuda, device, native);
}

int cuda_device_count() {
  const CudaTable& cuda = cuda_table();
  int count = 0;
  if (!cuda.missing.empty() || cuda.init(0) != kSuccess || cuda.device_count(&count) != kSuccess) return 0;
  return count;
}

}  // namespace dymem
