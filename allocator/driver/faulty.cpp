// Fault injection: the Nth call that can fail does, before it reaches the wrapped driver; so it changes nothing (D8).
// Counted are reserve, create, destroy, map, set_access, unmap, slab_alloc, slab_free, the calls of events but destroying
// them, host_alloc, the copies, synchronize, and what sharing with other processes calls: export_handle, import_handle,
// export_slab, open_slab.
// Everything else passes through.
// The counters are behind a mutex; the wrapped call is made without it.
#include <mutex>

#include "driver/decorators.hpp"
#include "driver/forwarding.hpp"

namespace dymem {
namespace {

class Faulty final : public Forwarding<FaultyDriver> {
 public:
  explicit Faulty(std::unique_ptr<Driver> inner)
      : Forwarding(*inner), inner_(std::move(inner)), name_("faulty(" + std::string(inner_->name()) + ")") {}

  const char* name() const override { return name_.c_str(); }

  Status reserve(Bytes size, Addr* out) override {
    Status fault;
    return strikes("reserve", &fault) ? fault : inner_->reserve(size, out);
  }
  Status create(Bytes size, Handle* out) override {
    Status fault;
    return strikes("create", &fault) ? fault : inner_->create(size, out);
  }
  Status destroy(Handle handle) override {
    Status fault;
    return strikes("destroy", &fault) ? fault : inner_->destroy(handle);
  }
  Status map(Addr at, Bytes size, Handle handle) override {
    Status fault;
    return strikes("map", &fault) ? fault : inner_->map(at, size, handle);
  }
  Status set_access(Addr at, Bytes size) override {
    Status fault;
    return strikes("set_access", &fault) ? fault : inner_->set_access(at, size);
  }
  Status unmap(Addr at, Bytes size) override {
    Status fault;
    return strikes("unmap", &fault) ? fault : inner_->unmap(at, size);
  }
  Status slab_alloc(Bytes size, Addr* out) override {
    Status fault;
    return strikes("slab_alloc", &fault) ? fault : inner_->slab_alloc(size, out);
  }
  Status slab_free(Addr base) override {
    Status fault;
    return strikes("slab_free", &fault) ? fault : inner_->slab_free(base);
  }

  Status event_create(EventId* out) override {
    Status fault;
    return strikes("event_create", &fault) ? fault : inner_->event_create(out);
  }
  Status event_record(EventId event, StreamId stream) override {
    Status fault;
    return strikes("event_record", &fault) ? fault : inner_->event_record(event, stream);
  }
  Status event_query(EventId event) override {
    Status fault;
    return strikes("event_query", &fault) ? fault : inner_->event_query(event);
  }
  Status event_synchronize(EventId event) override {
    Status fault;
    return strikes("event_synchronize", &fault) ? fault : inner_->event_synchronize(event);
  }
  Status stream_wait(StreamId stream, EventId event) override {
    Status fault;
    return strikes("stream_wait", &fault) ? fault : inner_->stream_wait(stream, event);
  }

  Status host_alloc(Bytes size, void** out) override {
    Status fault;
    return strikes("host_alloc", &fault) ? fault : inner_->host_alloc(size, out);
  }
  Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) override {
    Status fault;
    return strikes("copy_to_host", &fault) ? fault : inner_->copy_to_host(to, from, n, stream);
  }
  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) override {
    Status fault;
    return strikes("copy_to_device", &fault) ? fault : inner_->copy_to_device(to, from, n, stream);
  }
  Status synchronize() override {
    Status fault;
    return strikes("synchronize", &fault) ? fault : inner_->synchronize();
  }

  Status export_handle(Handle handle, int* fd) override {
    Status fault;
    return strikes("export_handle", &fault) ? fault : inner_->export_handle(handle, fd);
  }
  Status import_handle(int fd, Bytes size, Handle* out) override {
    Status fault;
    return strikes("import_handle", &fault) ? fault : inner_->import_handle(fd, size, out);
  }
  Status export_slab(Addr base, SlabTicket* out) override {
    Status fault;
    return strikes("export_slab", &fault) ? fault : inner_->export_slab(base, out);
  }
  Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) override {
    Status fault;
    return strikes("open_slab", &fault) ? fault : inner_->open_slab(ticket, out, size);
  }

  void fail_nth(std::uint64_t nth, FaultKind kind, Code as) override {
    if (nth == 0) throw InvalidArgument("fail_nth: calls are counted from 1, the next one; give 1 or more");
    if (as != Code::out_of_memory && as != Code::failed)
      throw InvalidArgument("fail_nth: a call fails as out_of_memory or as failed; give one of these");
    const Lock lock(mutex_);
    left_ = nth;
    kind_ = kind;
    as_ = as;
  }
  void disarm() override {
    const Lock lock(mutex_);
    left_ = 0;
  }
  std::uint64_t calls() const override {
    const Lock lock(mutex_);
    return calls_;
  }
  std::uint64_t failures() const override {
    const Lock lock(mutex_);
    return failures_;
  }
  Driver& inner() override { return *inner_; }

 private:
  using Lock = std::lock_guard<std::mutex>;

  bool strikes(const char* call, Status* fault) {
    const Lock lock(mutex_);
    ++calls_;
    if (left_ == 0) return false;  // disarmed
    if (left_ > 1) return --left_, false;
    if (kind_ == FaultKind::once) left_ = 0;
    ++failures_;
    *fault = {as_, call, as_ == Code::out_of_memory ? 2 : 999};  // CUDA's codes: out of memory, unknown
    return true;
  }

  std::unique_ptr<Driver> inner_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t left_ = 0;  // calls until the fault, the failing one included; 0 = disarmed
  FaultKind kind_ = FaultKind::once;
  Code as_ = Code::failed;
  std::uint64_t calls_ = 0, failures_ = 0;
};

}  // namespace

std::unique_ptr<FaultyDriver> make_faulty_driver(std::unique_ptr<Driver> inner) {
  if (!inner) throw InvalidArgument("make_faulty_driver: there is no driver to wrap");
  return std::make_unique<Faulty>(std::move(inner));
}

}  // namespace dymem
