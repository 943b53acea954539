// The emulated device (emulated.hpp says what it promises). Put together from
//   ledger           what the contract allows (D1..D5),
//   host_pages       real bytes, or address_space: invented addresses,
//   virtual_streams  clock, streams, events,
// and the cost model. Order within a call: ask the ledger, then the host, then write the ledger; so a call that fails
// has changed nothing (D8) and counts nothing. `native` carries the code CUDA would give, or errno of the host.
// One mutex guards everything.
#include "driver/emulated.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "driver/address_space.hpp"
#include "driver/cost_model.hpp"
#include "driver/host_pages.hpp"
#include "driver/host_ranges.hpp"
#include "driver/ledger.hpp"
#include "driver/refusals.hpp"
#include "driver/touched_host.hpp"
#include "driver/virtual_streams.hpp"

namespace dymem {
namespace {

constexpr Addr kInventedBase = 0x10'0000'0000;
constexpr Addr kInventedEnd = Addr{1} << 47;
constexpr Bytes kHostPage = 4096;

Status exhausted(const char* call) { return {Code::out_of_memory, call, cuda_abi::kErrorOutOfMemory}; }
Status host_failed(const char* call, int error) {
  return {error == ENOMEM ? Code::out_of_memory : Code::failed, call, error};
}

// What a ticket of the emulation says: whoever may look into the exporter's descriptors finds the pages there.
struct PagesElsewhere {
  char magic[8] = {'d', 'y', 'm', 'e', 'm', 's', 'l', 'b'};
  std::int64_t process = 0;
  std::int64_t file = 0;
  std::uint64_t offset = 0;
  Bytes size = 0;
};
static_assert(sizeof(PagesElsewhere) <= sizeof(SlabTicket));

class Emulated final : public EmulatedDriver {
 public:
  explicit Emulated(const EmulatedOptions& options)
      : options_(options),
        ledger_(options.granularity),
        addresses_(kInventedBase, kInventedEnd - kInventedBase, options.granularity),
        pages_(options.granularity),
        streams_(options.realtime) {}

  ~Emulated() override {
    if (options_.bytes) release_pages();
    host_.each([](void* base, Bytes size) { unmap_host(base, size); });
  }

  void release_pages() {
    for (const auto& [base, size] : ledger_.reservations()) pages_.release(base, size);
    for (const auto& [base, size] : ledger_.slabs()) pages_.release(base, size);
    for (const auto& [base, size] : ledger_.opened()) pages_.release(base, size);
    for (const auto& [handle, backing] : backings_)
      if (backing.file >= 0) close(backing.file);
  }

  const char* name() const override { return "emulated"; }
  int device() const override { return options_.device; }
  Bytes granularity() const override { return options_.granularity; }
  bool has_vmm() const override { return options_.vmm; }

  DeviceMemory memory() override {
    const Lock lock(mutex_);
    return {free_bytes(), options_.capacity};
  }

  // --- addresses

  Status reserve(Bytes size, Addr* out) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("reserve");
    if (ledger_.refuse_size(size)) return invalid("reserve");
    if (size > options_.address_space - ledger_.reserved_addresses()) return exhausted("reserve");
    Addr base = 0;
    if (options_.bytes) {
      if (const int error = pages_.reserve(size, &base)) return host_failed("reserve", error);
    } else if (!(base = addresses_.take(size))) {
      return exhausted("reserve");
    }
    ledger_.add_reservation(base, size);
    ++counters_.reserve;
    *out = base;
    return {};
  }

  Status release_addresses(Addr base, Bytes size) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("release_addresses");
    if (ledger_.refuse_release(base, size)) return invalid("release_addresses");
    give_back_addresses(base, size);
    ledger_.remove_reservation(base);
    return {};
  }

  // --- physical memory

  Status create(Bytes size, Handle* out) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("create");
    if (ledger_.refuse_size(size)) return invalid("create");
    if (size > free_bytes()) return exhausted("create");
    Backing backing;
    if (options_.bytes) {
      if (const int error = pages_.create(size, &backing.offset)) return host_failed("create", error);
      backing.size = size;
      backings_.emplace(next_handle_, backing);
    }
    ledger_.add_granule(next_handle_, size);
    ++counters_.create;
    charge(cost::create_us(size));
    *out = next_handle_++;
    return {};
  }

  Status destroy(Handle handle) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("destroy");
    if (ledger_.refuse_handle(handle)) return invalid("destroy");
    const Bytes size = ledger_.granule_size(handle);
    if (ledger_.destroy(handle)) drop_backing(handle);
    ++counters_.destroy;
    charge(cost::destroy_us(size));
    return {};
  }

  Status map(Addr at, Bytes size, Handle handle) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("map");
    if (ledger_.refuse_map(at, size, handle)) return invalid("map");
    if (options_.bytes) {
      const Backing& backing = backings_.at(handle);
      if (const int error = pages_.map(at, size, backing.offset, backing.file)) return host_failed("map", error);
    }
    ledger_.map(at, size, handle);
    mappings_max_ = std::max<std::uint64_t>(mappings_max_, ledger_.views().size());
    ++counters_.map;
    charge(cost::map_us(size));
    return {};
  }

  Status set_access(Addr at, Bytes size) override {
    const Lock lock(mutex_);
    return give_access("set_access", at, size);
  }

  Status set_peer_access(Addr at, Bytes size, int peer) override {
    const Lock lock(mutex_);
    if (peer < 0 || peer == options_.device) return invalid("set_peer_access");
    return give_access("set_peer_access", at, size);  // bytes are the host's: a peer sees them as we do
  }

  Status unmap(Addr at, Bytes size) override {
    const Lock lock(mutex_);
    if (!options_.vmm) return unsupported("unmap");
    if (ledger_.refuse_run(at, size)) return invalid("unmap");
    if (options_.bytes)
      if (const int error = pages_.unmap(at, size)) return host_failed("unmap", error);
    double us = 0;
    ledger_.for_run(at, size, [&](Addr, Ledger::View& view) { us += cost::unmap_us(view.size); });
    ledger_.unmap(at, size, [&](Handle handle) { drop_backing(handle); });
    ++counters_.unmap;
    charge(us);
    return {};
  }

  Status export_handle(Handle handle, int* fd) override {
    const Lock lock(mutex_);
    if (!options_.vmm || !options_.bytes) return unsupported("export_handle");
    if (ledger_.refuse_handle(handle)) return invalid("export_handle");
    Backing& backing = backings_.at(handle);
    if (backing.file >= 0) return unsupported("export_handle");  // as CUDA: only what was created here
    if (const int error = pages_.export_at(backing.offset, fd)) return host_failed("export_handle", error);
    backing.exported = true;
    return {};
  }

  Status import_handle(int fd, Bytes size, Handle* out) override {
    const Lock lock(mutex_);
    if (!options_.vmm || !options_.bytes) return unsupported("import_handle");
    if (fd < 0 || ledger_.refuse_size(size)) return invalid("import_handle");
    Backing backing;
    backing.size = size;
    if (const int error = HostPages::adopt(fd, size, &backing.file, &backing.offset))
      return error == EINVAL || error == ESPIPE || error == EBADF ? invalid("import_handle")
                                                                  : host_failed("import_handle", error);
    backings_.emplace(next_handle_, backing);
    ledger_.add_import(next_handle_, size);
    charge(cost::map_us(size));
    *out = next_handle_++;
    return {};
  }

  // --- pinned host memory and copies: bytes move at once, the stream is busy for as long as a card would be

  Status host_alloc(Bytes size, void** out) override {
    const Lock lock(mutex_);
    if (size == 0 || size > kRequestMax) return invalid("host_alloc");
    if (const int error = map_host(size, out)) return host_failed("host_alloc", error);
    host_.add(*out, size);
    return {};
  }

  Status host_free(void* base) override {
    const Lock lock(mutex_);
    const Bytes size = host_.size(base);
    if (!size) return invalid("host_free");
    unmap_host(base, size);
    host_.remove(base);
    return {};
  }

  Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) override {
    const Lock lock(mutex_);
    if (const Status status = copyable("copy_to_host", from, to, n); !status.ok()) return status;
    std::memcpy(to, reinterpret_cast<const void*>(from), n);
    streams_.enqueue(stream, std::llround(cost::copy_us(n) * 1000.0));
    return {};
  }

  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) override {
    const Lock lock(mutex_);
    if (const Status status = copyable("copy_to_device", to, from, n); !status.ok()) return status;
    std::memcpy(reinterpret_cast<void*>(to), from, n);
    streams_.enqueue(stream, std::llround(cost::copy_us(n) * 1000.0));
    return {};
  }

  Status synchronize() override {
    Nanos done = 0;
    {
      const Lock lock(mutex_);
      done = streams_.all_done();
    }
    wait_until(done);
    return {};
  }

  // --- slabs: charged as one granule mapped once

  Status slab_alloc(Bytes size, Addr* out) override {
    const Lock lock(mutex_);
    if (size == 0 || size > kRequestMax) return invalid("slab_alloc");
    size = round_up(size, options_.granularity);
    if (size > free_bytes()) return exhausted("slab_alloc");
    Addr base = 0;
    if (options_.bytes) {
      Backing backing;
      if (const int error = pages_.slab(size, &base, &backing.offset)) return host_failed("slab_alloc", error);
      backing.size = size;
      slab_backings_.emplace(base, backing);
    } else if (!(base = addresses_.take(size))) {
      return exhausted("slab_alloc");
    }
    ledger_.add_slab(base, size);
    charge(cost::create_us(size) + cost::map_us(size) + cost::access_us(size));
    *out = base;
    return {};
  }

  Status slab_free(Addr base) override {
    const Lock lock(mutex_);
    if (ledger_.refuse_slab(base)) return invalid("slab_free");
    const Bytes size = ledger_.slab_size(base);
    give_back_addresses(base, size);
    if (const auto it = slab_backings_.find(base); it != slab_backings_.end()) {
      if (!it->second.exported) pages_.destroy(it->second.offset, size);
      slab_backings_.erase(it);
    }
    ledger_.remove_slab(base);
    charge(cost::unmap_us(size) + cost::destroy_us(size));
    return {};
  }

  Status export_slab(Addr base, SlabTicket* out) override {
    const Lock lock(mutex_);
    if (!options_.bytes) return unsupported("export_slab");
    if (ledger_.refuse_slab(base)) return invalid("export_slab");
    Backing& backing = slab_backings_.at(base);
    PagesElsewhere where;
    where.process = getpid();
    where.file = pages_.file();
    where.offset = backing.offset;
    where.size = backing.size;
    std::memcpy(out->bytes, &where, sizeof where);
    backing.exported = true;
    return {};
  }

  Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) override {
    const Lock lock(mutex_);
    if (!options_.bytes) return unsupported("open_slab");
    PagesElsewhere where;
    std::memcpy(&where, ticket.bytes, sizeof where);
    if (std::memcmp(where.magic, PagesElsewhere().magic, sizeof where.magic) != 0) return invalid("open_slab");
    const std::string path = "/proc/" + std::to_string(where.process) + "/fd/" + std::to_string(where.file);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return host_failed("open_slab", errno);
    int error = lseek(fd, static_cast<off_t>(where.offset), SEEK_SET) < 0 ? errno : 0;
    Backing backing;
    Addr base = 0;
    if (!error) error = HostPages::adopt(fd, where.size, &backing.file, &backing.offset);
    close(fd);
    if (error) return host_failed("open_slab", error);
    error = pages_.reserve(where.size, &base);
    if (!error) {
      error = pages_.map(base, where.size, backing.offset, backing.file);
      if (!error) error = pages_.set_access(base, where.size);
      if (error) pages_.release(base, where.size);
    }
    close(backing.file);
    if (error) return host_failed("open_slab", error);
    ledger_.add_opened(base, where.size);
    charge(cost::map_us(where.size));
    *out = base;
    *size = where.size;
    return {};
  }

  Status close_slab(Addr base) override {
    const Lock lock(mutex_);
    if (ledger_.refuse_slab_close(base)) return invalid("close_slab");
    const Bytes size = ledger_.opened().at(base);
    pages_.release(base, size);
    ledger_.remove_opened(base);
    charge(cost::unmap_us(size));
    return {};
  }

  // --- streams and events

  Status event_create(EventId* out) override {
    const Lock lock(mutex_);
    *out = streams_.create();
    return {};
  }

  Status event_destroy(EventId event) override {
    const Lock lock(mutex_);
    return streams_.destroy(event) ? Status{} : invalid("event_destroy");
  }

  Status event_record(EventId event, StreamId stream) override {
    const Lock lock(mutex_);
    if (streams_.is_destroyed(stream)) return {Code::failed, "event_record", cuda_abi::kErrorInvalidHandle};
    if (!streams_.record(event, stream)) return invalid("event_record");
    ++counters_.event_record;
    return {};
  }

  Status event_query(EventId event) override {
    const Lock lock(mutex_);
    Nanos done = 0;
    if (!streams_.completion(event, &done)) return invalid("event_query");
    ++counters_.event_query;
    if (done <= streams_.now()) return {};
    return {Code::not_ready, "event_query", cuda_abi::kErrorNotReady};
  }

  Status event_synchronize(EventId event) override {
    Nanos done = 0;
    {
      const Lock lock(mutex_);
      if (!streams_.completion(event, &done)) return invalid("event_synchronize");
    }
    wait_until(done);
    return {};
  }

  Status stream_wait(StreamId stream, EventId event) override {
    const Lock lock(mutex_);
    if (!streams_.wait(stream, event)) return invalid("stream_wait");
    ++counters_.event_wait;
    return {};
  }

  bool is_capturing(StreamId stream) override {
    const Lock lock(mutex_);
    return streams_.is_capturing(stream);
  }

  // --- clock and bytes

  Nanos now() override {
    const Lock lock(mutex_);
    return streams_.now();
  }

  Status write(Addr at, const void* from, Bytes n) override {
    const Lock lock(mutex_);
    if (!options_.bytes) return unsupported("write");
    if (ledger_.refuse_bytes(at, n)) return invalid("write");
    std::memcpy(reinterpret_cast<void*>(at), from, n);
    return {};
  }

  Status read(Addr at, void* to, Bytes n) override {
    const Lock lock(mutex_);
    if (!options_.bytes) return unsupported("read");
    if (ledger_.refuse_bytes(at, n)) return invalid("read");
    std::memcpy(to, reinterpret_cast<const void*>(at), n);
    return {};
  }

  DriverCounters counters() const override {
    const Lock lock(mutex_);
    return counters_;
  }

  // --- the model's own controls

  void advance_to(Nanos t) override {
    const Lock lock(mutex_);
    streams_.advance_to(t);
  }
  void set_lag(Nanos lag) override {
    if (lag < 0) throw InvalidArgument("set_lag: a lag is not negative; give the nanoseconds that work takes to end");
    const Lock lock(mutex_);
    streams_.set_lag(lag);
  }
  void set_busy_until(StreamId stream, Nanos t) override {
    const Lock lock(mutex_);
    streams_.set_busy_until(stream, t);
  }
  void set_capturing(StreamId stream, bool capturing) override {
    const Lock lock(mutex_);
    streams_.set_capturing(stream, capturing);
  }
  void set_destroyed(StreamId stream, bool destroyed) override {
    const Lock lock(mutex_);
    streams_.set_destroyed(stream, destroyed);
  }
  void take_memory(Bytes n) override {
    const Lock lock(mutex_);
    if (n > free_bytes())
      throw InvalidArgument("take_memory: " + human_bytes(n) + " is more than the emulated device has free (" +
                            human_bytes(free_bytes()) + "): take less");
    taken_ += n;
  }
  void give_memory(Bytes n) override {
    const Lock lock(mutex_);
    if (n > taken_)
      throw InvalidArgument("give_memory: " + human_bytes(n) + " is more than was taken (" + human_bytes(taken_) +
                            "): give back less");
    taken_ -= n;
  }
  Bytes physical_in_use() const override {
    const Lock lock(mutex_);
    return ledger_.physical_bytes();
  }
  std::uint64_t mappings() const override {
    const Lock lock(mutex_);
    return ledger_.views().size();
  }
  std::uint64_t mappings_max() const override {
    const Lock lock(mutex_);
    return mappings_max_;
  }
  Bytes mapped_addresses() const override {
    const Lock lock(mutex_);
    return ledger_.mapped_bytes();
  }

 private:
  using Lock = std::lock_guard<std::mutex>;

  struct Backing {
    std::uint64_t offset = 0;
    Bytes size = 0;
    bool exported = false;
    int file = -1;  // imported: where the bytes are; -1 = in our own file
  };

  // The clock is moved, or real time passes: without the lock, and it may be pushed ahead meanwhile.
  void wait_until(Nanos done) {
    if (!options_.realtime) advance_to(done);
    for (Nanos left = done - now(); left > 0; left = done - now())
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<Nanos>(left, 1'000'000)));
  }

  Status copyable(const char* call, Addr device, const void* host, Bytes n) const {
    if (!options_.bytes) return unsupported(call);
    if (ledger_.refuse_bytes(device, n) || !host_.holds(host, n)) return invalid(call);
    return {};
  }

  Bytes free_bytes() const { return options_.capacity - taken_ - ledger_.physical_bytes(); }

  void charge(double us) { counters_.memory_time_ns += std::llround(us * 1000.0); }

  Status give_access(const char* call, Addr at, Bytes size) {
    if (!options_.vmm) return unsupported(call);
    if (ledger_.refuse_run(at, size)) return invalid(call);
    if (options_.bytes)
      if (const int error = pages_.set_access(at, size)) return host_failed(call, error);
    double us = 0;
    ledger_.for_run(at, size, [&](Addr, Ledger::View& view) {
      view.accessible = true;
      us += cost::access_us(view.size);
    });
    ++counters_.set_access;
    charge(us);
    return {};
  }

  void give_back_addresses(Addr base, Bytes size) {
    if (options_.bytes) pages_.release(base, size);
    else addresses_.give_back(base, size);
  }

  // What was exported may still be mapped by somebody: its host pages stay, though the device counts them as free.
  void drop_backing(Handle handle) {
    const auto it = backings_.find(handle);
    if (it == backings_.end()) return;
    if (it->second.file >= 0) close(it->second.file);
    else if (!it->second.exported) pages_.destroy(it->second.offset, it->second.size);
    backings_.erase(it);
  }

  const EmulatedOptions options_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  AddressSpace addresses_;
  HostPages pages_;
  HostRanges host_;
  VirtualStreams streams_;
  std::unordered_map<Handle, Backing> backings_;  // bytes mode only, as the next
  std::map<Addr, Backing> slab_backings_;
  Handle next_handle_ = 1;
  Bytes taken_ = 0;
  std::uint64_t mappings_max_ = 0;
  DriverCounters counters_;
};

}  // namespace

std::unique_ptr<EmulatedDriver> make_emulated_driver(const EmulatedOptions& options) {
  const Bytes unit = options.granularity;
  if (unit < kHostPage || (unit & (unit - 1)))
    throw InvalidArgument("emulated driver: the granularity must be a power of two of at least 4096 bytes, not " +
                          std::to_string(unit));
  if (options.device < 0) throw InvalidArgument("emulated driver: a device number is not negative");
  return std::make_unique<Emulated>(options);
}

}  // namespace dymem
