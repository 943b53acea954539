// The contract police: a ledger of its own, asked before the wrapped driver is.
//
//   C1  A call that the contract forbids does not reach the wrapped driver; it answers Code::invalid and leaves one
//       sentence (call, arguments, rule).
//   C2  A call that the contract allows is passed on unchanged; if it fails the ledger does not change (D8).
//   C3  If the wrapped driver answers Code::invalid to an allowed call, that is a violation too: the driver's.
// One mutex guards the ledger and is held over the wrapped call, so that both see the calls in one order; only
// event_synchronize() waits without it.
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include "base/capture.hpp"
#include "driver/decorators.hpp"
#include "driver/forwarding.hpp"
#include "driver/host_ranges.hpp"
#include "driver/ledger.hpp"

namespace dymem {
namespace {

constexpr std::size_t kViolationsMax = 1000;

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

class Checked final : public Forwarding<CheckedDriver> {
 public:
  explicit Checked(std::unique_ptr<Driver> inner)
      : Forwarding(*inner),
        inner_(std::move(inner)),
        name_("checked(" + std::string(inner_->name()) + ")"),
        ledger_(inner_->granularity()) {}

  const char* name() const override { return name_.c_str(); }

  Status reserve(Bytes size, Addr* out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("reserve(%" PRIu64 ")", size); };
    if (const char* why = ledger_.refuse_size(size)) return forbid("reserve", call(), why);
    const Status status = pass(inner_->reserve(size, out), call);
    if (status.ok()) ledger_.add_reservation(*out, size);
    return status;
  }

  Status release_addresses(Addr base, Bytes size) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("release_addresses", base, size); };
    if (const char* why = ledger_.refuse_release(base, size)) return forbid("release_addresses", call(), why);
    const Status status = pass(inner_->release_addresses(base, size), call);
    if (status.ok()) ledger_.remove_reservation(base);
    return status;
  }

  Status create(Bytes size, Handle* out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("create(%" PRIu64 ")", size); };
    if (const char* why = ledger_.refuse_size(size)) return forbid("create", call(), why);
    const Status status = pass(inner_->create(size, out), call);
    if (status.ok() && ledger_.known(*out)) {
      note(call(), "D4: the driver gave a handle that is still in use");
      return {Code::failed, "create", 0};
    }
    if (status.ok()) ledger_.add_granule(*out, size);
    return status;
  }

  Status destroy(Handle handle) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("destroy(handle %" PRIu64 ")", handle); };
    if (const char* why = ledger_.refuse_handle(handle)) return forbid("destroy", call(), why);
    const Status status = pass(inner_->destroy(handle), call);
    if (status.ok()) ledger_.destroy(handle);
    return status;
  }

  Status map(Addr at, Bytes size, Handle handle) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("map(0x%" PRIx64 ", %" PRIu64 ", handle %" PRIu64 ")", at, size, handle); };
    if (const char* why = may_map_in_capture() ? nullptr : capturing()) return forbid("map", call(), why);
    if (const char* why = ledger_.refuse_map(at, size, handle)) return forbid("map", call(), why);
    const Status status = pass(inner_->map(at, size, handle), call);
    if (status.ok()) ledger_.map(at, size, handle);
    return status;
  }

  Status set_access(Addr at, Bytes size) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("set_access", at, size); };
    if (const char* why = ledger_.refuse_run(at, size)) return forbid("set_access", call(), why);
    const Status status = pass(inner_->set_access(at, size), call);
    if (status.ok()) ledger_.for_run(at, size, [](Addr, Ledger::View& view) { view.accessible = true; });
    return status;
  }

  Status set_peer_access(Addr at, Bytes size, int peer) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("set_peer_access", at, size); };
    if (peer < 0 || peer == device())
      return forbid("set_peer_access", call(), "D2: a peer is another device than this one");
    if (const char* why = ledger_.refuse_run(at, size)) return forbid("set_peer_access", call(), why);
    return pass(inner_->set_peer_access(at, size, peer), call);
  }

  Status unmap(Addr at, Bytes size) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("unmap", at, size); };
    if (const char* why = capturing()) return forbid("unmap", call(), why);
    if (const char* why = ledger_.refuse_run(at, size)) return forbid("unmap", call(), why);
    if (copies_.use_device(at, size)) return forbid("unmap", call(), "D9: a copy from or to these pages is under way");
    const Status status = pass(inner_->unmap(at, size), call);
    if (status.ok()) ledger_.unmap(at, size, [](Handle) {});
    return status;
  }

  Status export_handle(Handle handle, int* fd) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("export_handle(handle %" PRIu64 ")", handle); };
    if (const char* why = ledger_.refuse_handle(handle)) return forbid("export_handle", call(), why);
    return pass(inner_->export_handle(handle, fd), call);
  }

  Status import_handle(int fd, Bytes size, Handle* out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("import_handle(descriptor %d, %" PRIu64 ")", fd, size); };
    if (fd < 0) return forbid("import_handle", call(), "D10: a descriptor is not negative");
    if (const char* why = ledger_.refuse_size(size)) return forbid("import_handle", call(), why);
    const Status status = pass(inner_->import_handle(fd, size, out), call);
    if (status.ok() && ledger_.known(*out)) {
      note(call(), "D4: the driver gave a handle that is still in use");
      return {Code::failed, "import_handle", 0};
    }
    if (status.ok()) ledger_.add_import(*out, size);
    return status;
  }

  Status host_alloc(Bytes size, void** out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("host_alloc(%" PRIu64 ")", size); };
    if (size == 0) return forbid("host_alloc", call(), "a size of zero");
    if (size > kRequestMax) return forbid("host_alloc", call(), "an absurd size");
    const Status status = pass(inner_->host_alloc(size, out), call);
    if (status.ok()) host_.add(*out, size);
    return status;
  }

  Status host_free(void* base) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("host_free(%p)", base); };
    const Bytes size = host_.size(base);
    if (!size) return forbid("host_free", call(), "D9: this is not what host_alloc() gave");
    if (copies_.use_host(base, size)) return forbid("host_free", call(), "D9: a copy from or to it is under way");
    const Status status = pass(inner_->host_free(base), call);
    if (status.ok()) host_.remove(base);
    return status;
  }

  Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) override {
    return copy("copy_to_host", from, to, n, stream, [&] { return inner_->copy_to_host(to, from, n, stream); });
  }
  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) override {
    return copy("copy_to_device", to, from, n, stream, [&] { return inner_->copy_to_device(to, from, n, stream); });
  }

  Status synchronize() override {
    const auto call = [] { return std::string("synchronize()"); };
    {
      const Lock lock(mutex_);
      if (const char* why = capturing()) return forbid("synchronize", call(), why);
    }
    const Status status = inner_->synchronize();
    const Lock lock(mutex_);
    if (status.ok()) copies_.all_done();
    return pass(status, call);
  }

  Status slab_alloc(Bytes size, Addr* out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("slab_alloc(%" PRIu64 ")", size); };
    if (size == 0) return forbid("slab_alloc", call(), "a size of zero");
    if (size > kRequestMax) return forbid("slab_alloc", call(), "an absurd size");
    const Status status = pass(inner_->slab_alloc(size, out), call);
    if (status.ok()) ledger_.add_slab(*out, size);
    return status;
  }

  Status slab_free(Addr base) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("slab_free(0x%" PRIx64 ")", base); };
    if (const char* why = ledger_.refuse_slab(base)) return forbid("slab_free", call(), why);
    const Status status = pass(inner_->slab_free(base), call);
    if (status.ok()) ledger_.remove_slab(base);
    return status;
  }

  Status export_slab(Addr base, SlabTicket* out) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("export_slab(0x%" PRIx64 ")", base); };
    if (const char* why = ledger_.refuse_slab(base)) return forbid("export_slab", call(), why);
    return pass(inner_->export_slab(base, out), call);
  }

  Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) override {
    const Lock lock(mutex_);
    const Status status = pass(inner_->open_slab(ticket, out, size), [] { return std::string("open_slab()"); });
    if (status.ok()) ledger_.add_opened(*out, *size);
    return status;
  }

  Status close_slab(Addr base) override {
    const Lock lock(mutex_);
    const auto call = [&] { return text("close_slab(0x%" PRIx64 ")", base); };
    if (const char* why = ledger_.refuse_slab_close(base)) return forbid("close_slab", call(), why);
    const Status status = pass(inner_->close_slab(base), call);
    if (status.ok()) ledger_.remove_opened(base);
    return status;
  }

  Status event_create(EventId* out) override {
    const Lock lock(mutex_);
    const Status status = pass(inner_->event_create(out), [] { return std::string("event_create()"); });
    if (status.ok()) events_.insert(*out);
    return status;
  }

  Status event_destroy(EventId event) override {
    const Lock lock(mutex_);
    const auto call = [&] { return of_event("event_destroy", event); };
    if (const char* why = no_event(event)) return forbid("event_destroy", call(), why);
    const Status status = pass(inner_->event_destroy(event), call);
    if (status.ok()) events_.erase(event), copies_.forget(event);
    return status;
  }

  Status event_record(EventId event, StreamId stream) override {
    const Lock lock(mutex_);
    streams_.insert(stream);
    const auto call = [&] { return of_event("event_record", event); };
    if (const char* why = no_event(event)) return forbid("event_record", call(), why);
    const Status status = pass(inner_->event_record(event, stream), call);
    if (status.ok()) copies_.recorded(event, stream);
    return status;
  }

  Status event_query(EventId event) override {
    const Lock lock(mutex_);
    const auto call = [&] { return of_event("event_query", event); };
    if (const char* why = no_event(event)) return forbid("event_query", call(), why);
    if (const char* why = capturing()) return forbid("event_query", call(), why);
    const Status status = pass(inner_->event_query(event), call);
    if (status.ok()) copies_.completed(event);
    return status;
  }

  Status event_synchronize(EventId event) override {
    const auto call = [&] { return of_event("event_synchronize", event); };
    {
      const Lock lock(mutex_);
      if (const char* why = no_event(event)) return forbid("event_synchronize", call(), why);
    }
    const Status status = inner_->event_synchronize(event);
    const Lock lock(mutex_);
    if (status.ok()) copies_.completed(event);
    return pass(status, call);
  }

  Status stream_wait(StreamId stream, EventId event) override {
    const Lock lock(mutex_);
    streams_.insert(stream);
    const auto call = [&] { return of_event("stream_wait", event); };
    if (const char* why = no_event(event)) return forbid("stream_wait", call(), why);
    return pass(inner_->stream_wait(stream, event), call);
  }

  bool is_capturing(StreamId stream) override {
    const Lock lock(mutex_);
    streams_.insert(stream);
    return inner_->is_capturing(stream);
  }

  Status write(Addr at, const void* from, Bytes n) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("write", at, n); };
    if (const char* why = ledger_.refuse_bytes(at, n)) return forbid("write", call(), why);
    return pass(inner_->write(at, from, n), call);
  }

  Status read(Addr at, void* to, Bytes n) override {
    const Lock lock(mutex_);
    const auto call = [&] { return range("read", at, n); };
    if (const char* why = ledger_.refuse_bytes(at, n)) return forbid("read", call(), why);
    return pass(inner_->read(at, to, n), call);
  }

  std::vector<std::string> violations() const override {
    const Lock lock(mutex_);
    return violations_;
  }

  std::string last_violation() const override {
    const Lock lock(mutex_);
    return last_;
  }

  void clear_violations() override {
    const Lock lock(mutex_);
    violations_.clear();
    last_.clear();
  }

  std::vector<std::string> leaks() const override {
    const Lock lock(mutex_);
    std::vector<std::string> all;
    for (const auto& [handle, granule] : ledger_.granules())
      if (!granule.destroyed)
        all.push_back(text("handle %" PRIu64 " of %" PRIu64 " bytes was not destroyed", handle, granule.size));
    for (const auto& [at, view] : ledger_.views())
      all.push_back(text("handle %" PRIu64 " is still mapped at 0x%" PRIx64, view.handle, at));
    for (const auto& [base, size] : ledger_.reservations())
      all.push_back(text("the reservation of %" PRIu64 " bytes at 0x%" PRIx64 " was not released", size, base));
    for (const auto& [base, size] : ledger_.slabs())
      all.push_back(text("the slab of %" PRIu64 " bytes at 0x%" PRIx64 " was not freed", size, base));
    for (const auto& [base, size] : ledger_.opened())
      all.push_back(text("the slab of %" PRIu64 " bytes opened at 0x%" PRIx64 " was not closed", size, base));
    host_.each([&](const void* base, Bytes size) {
      all.push_back(text("pinned host memory of %" PRIu64 " bytes at %p was not freed", size, base));
    });
    for (const EventId event : events_) all.push_back(text("event %" PRIu64 " was not destroyed", event));
    return all;
  }

  Driver& inner() override { return *inner_; }

 private:
  using Lock = std::lock_guard<std::mutex>;

  static std::string range(const char* call, Addr at, Bytes size) {
    return text("%s(0x%" PRIx64 ", %" PRIu64 ")", call, at, size);
  }
  static std::string of_event(const char* call, EventId event) { return text("%s(event %" PRIu64 ")", call, event); }

  const char* no_event(EventId event) const {
    return events_.count(event) ? nullptr : "D7: no such event; it was never created, or destroyed already";
  }

  const char* capturing() {
    for (const StreamId stream : streams_)
      if (inner_->is_capturing(stream)) return "a graph capture is under way on a stream";
    return nullptr;
  }

  void note(const std::string& call, const char* why) {
    last_ = call + ": " + why;
    if (violations_.size() < kViolationsMax) violations_.push_back(last_);
  }

  Status forbid(const char* name, const std::string& call, const char* why) {
    note(call, why);
    return {Code::invalid, name, 0};
  }

  template <class Inner>
  Status copy(const char* name, Addr device, const void* host, Bytes n, StreamId stream, const Inner& inner) {
    const Lock lock(mutex_);
    streams_.insert(stream);
    const auto call = [&] { return text("%s(0x%" PRIx64 ", %p, %" PRIu64 ")", name, device, host, n); };
    if (const char* why = capturing()) return forbid(name, call(), why);
    if (const char* why = ledger_.refuse_bytes(device, n)) return forbid(name, call(), why);
    if (!host_.holds(host, n)) return forbid(name, call(), "D9: the host range does not lie in one host_alloc()");
    const Status status = pass(inner(), call);
    if (status.ok()) copies_.started(device, host, n, stream);
    return status;
  }

  template <class Call>
  Status pass(Status status, const Call& call) {
    if (status.code == Code::invalid) note(call(), "the driver refuses what the contract allows");
    return status;
  }

  std::unique_ptr<Driver> inner_;
  const std::string name_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  HostRanges host_;
  CopiesUnderWay copies_;
  std::unordered_set<EventId> events_;
  std::unordered_set<StreamId> streams_;  // every stream named in a call
  std::vector<std::string> violations_;
  std::string last_;
};

}  // namespace

std::unique_ptr<CheckedDriver> make_checked_driver(std::unique_ptr<Driver> inner) {
  if (!inner) throw InvalidArgument("make_checked_driver: there is no driver to wrap");
  return std::make_unique<Checked>(std::move(inner));
}

}  // namespace dymem
