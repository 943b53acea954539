// A driver that passes every call on to another: what a decorator derives from, to override only what it decorates.
// `Base` is Driver, or a decorator's own interface (which derives from Driver). The other driver must outlive this one;
// who owns it is the decorator's matter. Adds no lock and no state.
#pragma once
#include "driver/driver.hpp"

namespace dymem {

template <class Base = Driver>
class Forwarding : public Base {
 public:
  const char* name() const override { return to_.name(); }
  int device() const override { return to_.device(); }
  Bytes granularity() const override { return to_.granularity(); }
  bool has_vmm() const override { return to_.has_vmm(); }
  DeviceMemory memory() override { return to_.memory(); }
  Status reserve(Bytes size, Addr* out) override { return to_.reserve(size, out); }
  Status release_addresses(Addr base, Bytes size) override { return to_.release_addresses(base, size); }
  Status create(Bytes size, Handle* out) override { return to_.create(size, out); }
  Status destroy(Handle handle) override { return to_.destroy(handle); }
  Status map(Addr at, Bytes size, Handle handle) override { return to_.map(at, size, handle); }
  Status set_access(Addr at, Bytes size) override { return to_.set_access(at, size); }
  Status unmap(Addr at, Bytes size) override { return to_.unmap(at, size); }
  Status export_handle(Handle handle, int* fd) override { return to_.export_handle(handle, fd); }
  Status import_handle(int fd, Bytes size, Handle* out) override { return to_.import_handle(fd, size, out); }
  Status set_peer_access(Addr at, Bytes size, int peer) override { return to_.set_peer_access(at, size, peer); }
  Status host_alloc(Bytes size, void** out) override { return to_.host_alloc(size, out); }
  Status host_free(void* base) override { return to_.host_free(base); }
  Status copy_to_host(void* to, Addr from, Bytes n, StreamId stream) override {
    return to_.copy_to_host(to, from, n, stream);
  }
  Status copy_to_device(Addr to, const void* from, Bytes n, StreamId stream) override {
    return to_.copy_to_device(to, from, n, stream);
  }
  Status synchronize() override { return to_.synchronize(); }
  Status slab_alloc(Bytes size, Addr* out) override { return to_.slab_alloc(size, out); }
  Status slab_free(Addr base) override { return to_.slab_free(base); }
  Status export_slab(Addr base, SlabTicket* out) override { return to_.export_slab(base, out); }
  Status open_slab(const SlabTicket& ticket, Addr* out, Bytes* size) override {
    return to_.open_slab(ticket, out, size);
  }
  Status close_slab(Addr base) override { return to_.close_slab(base); }
  Status event_create(EventId* out) override { return to_.event_create(out); }
  Status event_destroy(EventId event) override { return to_.event_destroy(event); }
  Status event_record(EventId event, StreamId stream) override { return to_.event_record(event, stream); }
  Status event_query(EventId event) override { return to_.event_query(event); }
  Status event_synchronize(EventId event) override { return to_.event_synchronize(event); }
  Status stream_wait(StreamId stream, EventId event) override { return to_.stream_wait(stream, event); }
  bool is_capturing(StreamId stream) override { return to_.is_capturing(stream); }
  Nanos now() override { return to_.now(); }
  Status write(Addr at, const void* from, Bytes n) override { return to_.write(at, from, n); }
  Status read(Addr at, void* to, Bytes n) override { return to_.read(at, to, n); }
  DriverCounters counters() const override { return to_.counters(); }

 protected:
  explicit Forwarding(Driver& to) : to_(to) {}
  Driver& to_;
};

}  // namespace dymem
