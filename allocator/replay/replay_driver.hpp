// The driver under a replay: the emulated one, except that the lag counts for the trace's own streams only. The streams
// which stand for a completion that the trace tells (completion_streams.hpp) finish at exactly that time.
// Everything else is passed on. Thread safety: a replay has one thread.
#pragma once
#include "driver/emulated.hpp"
#include "replay/completion_streams.hpp"

namespace dymem {

class ReplayDriver final : public Driver {
 public:
  ReplayDriver(EmulatedDriver& device, const CompletionStreams& completions, Nanos lag)
      : device_(device), completions_(completions), lag_(lag) {
    device_.set_lag(lag_);
  }

  Status event_record(EventId event, StreamId stream) override {
    if (!completions_.ours(stream)) return device_.event_record(event, stream);
    device_.set_lag(0);
    const Status status = device_.event_record(event, stream);
    device_.set_lag(lag_);
    return status;
  }

  const char* name() const override { return "replay(emulated)"; }
  int device() const override { return device_.device(); }
  Bytes granularity() const override { return device_.granularity(); }
  bool has_vmm() const override { return device_.has_vmm(); }
  DeviceMemory memory() override { return device_.memory(); }
  Status reserve(Bytes size, Addr* out) override { return device_.reserve(size, out); }
  Status release_addresses(Addr base, Bytes size) override { return device_.release_addresses(base, size); }
  Status create(Bytes size, Handle* out) override { return device_.create(size, out); }
  Status destroy(Handle handle) override { return device_.destroy(handle); }
  Status map(Addr at, Bytes size, Handle handle) override { return device_.map(at, size, handle); }
  Status set_access(Addr at, Bytes size) override { return device_.set_access(at, size); }
  Status unmap(Addr at, Bytes size) override { return device_.unmap(at, size); }
  Status export_handle(Handle handle, int* fd) override { return device_.export_handle(handle, fd); }
  Status set_peer_access(Addr at, Bytes size, int peer) override { return device_.set_peer_access(at, size, peer); }
  Status slab_alloc(Bytes size, Addr* out) override { return device_.slab_alloc(size, out); }
  Status slab_free(Addr base) override { return device_.slab_free(base); }
  Status event_create(EventId* out) override { return device_.event_create(out); }
  Status event_destroy(EventId event) override { return device_.event_destroy(event); }
  Status event_query(EventId event) override { return device_.event_query(event); }
  Status event_synchronize(EventId event) override { return device_.event_synchronize(event); }
  Status stream_wait(StreamId stream, EventId event) override { return device_.stream_wait(stream, event); }
  bool is_capturing(StreamId stream) override { return device_.is_capturing(stream); }
  Nanos now() override { return device_.now(); }
  Status write(Addr at, const void* from, Bytes n) override { return device_.write(at, from, n); }
  Status read(Addr at, void* to, Bytes n) override { return device_.read(at, to, n); }
  DriverCounters counters() const override { return device_.counters(); }

 private:
  EmulatedDriver& device_;
  const CompletionStreams& completions_;
  const Nanos lag_;
};

}  // namespace dymem
