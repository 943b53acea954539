// See peer_driver.hpp (P1, P2).
#include "abi/peer_driver.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace dymem {
namespace {

class PeerDriverImpl final : public PeerDriver {
 public:
  explicit PeerDriverImpl(std::unique_ptr<Driver> inner) : inner_(std::move(inner)) {}

  Status enable_peer(int peer) override {
    std::lock_guard lock(mutex_);
    if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return {};
    for (const auto& [at, size] : accessible_)
      if (Status status = inner_->set_peer_access(at, size, peer); !status.ok()) return status;
    peers_.push_back(peer);
    return {};
  }
  Driver& inner() override { return *inner_; }

  Status set_access(Addr at, Bytes size) override {
    std::lock_guard lock(mutex_);
    if (Status status = inner_->set_access(at, size); !status.ok()) return status;
    for (int peer : peers_)
      if (Status status = inner_->set_peer_access(at, size, peer); !status.ok()) return status;
    remember_locked(at, size);
    return {};
  }
  Status unmap(Addr at, Bytes size) override {
    std::lock_guard lock(mutex_);
    Status status = inner_->unmap(at, size);
    if (status.ok()) forget_locked(at, size);
    return status;
  }

  const char* name() const override { return inner_->name(); }
  int device() const override { return inner_->device(); }
  Bytes granularity() const override { return inner_->granularity(); }
  bool has_vmm() const override { return inner_->has_vmm(); }
  DeviceMemory memory() override { return inner_->memory(); }
  Status reserve(Bytes size, Addr* out) override { return inner_->reserve(size, out); }
  Status release_addresses(Addr base, Bytes size) override { return inner_->release_addresses(base, size); }
  Status create(Bytes size, Handle* out) override { return inner_->create(size, out); }
  Status destroy(Handle handle) override { return inner_->destroy(handle); }
  Status map(Addr at, Bytes size, Handle handle) override { return inner_->map(at, size, handle); }
  Status export_handle(Handle handle, int* fd) override { return inner_->export_handle(handle, fd); }
  Status set_peer_access(Addr at, Bytes size, int peer) override { return inner_->set_peer_access(at, size, peer); }
  Status slab_alloc(Bytes size, Addr* out) override { return inner_->slab_alloc(size, out); }
  Status slab_free(Addr base) override { return inner_->slab_free(base); }
  Status event_create(EventId* out) override { return inner_->event_create(out); }
  Status event_destroy(EventId event) override { return inner_->event_destroy(event); }
  Status event_record(EventId event, StreamId stream) override { return inner_->event_record(event, stream); }
  Status event_query(EventId event) override { return inner_->event_query(event); }
  Status event_synchronize(EventId event) override { return inner_->event_synchronize(event); }
  Status stream_wait(StreamId stream, EventId event) override { return inner_->stream_wait(stream, event); }
  bool is_capturing(StreamId stream) override { return inner_->is_capturing(stream); }
  Nanos now() override { return inner_->now(); }
  Status write(Addr at, const void* from, Bytes n) override { return inner_->write(at, from, n); }
  Status read(Addr at, void* to, Bytes n) override { return inner_->read(at, to, n); }
  DriverCounters counters() const override { return inner_->counters(); }

 private:
  // Ranges may be granted in one piece and unmapped in several, or granted twice: keep them as disjoint intervals.
  void forget_locked(Addr at, Bytes size) {
    const Addr end = at + size;
    auto it = accessible_.lower_bound(at);
    if (it != accessible_.begin()) {
      auto before = std::prev(it);
      if (before->first + before->second > at) it = before;
    }
    while (it != accessible_.end() && it->first < end) {
      const Addr from = it->first, to = it->first + it->second;
      it = accessible_.erase(it);
      if (from < at) accessible_.emplace(from, at - from);
      if (to > end) accessible_.emplace(end, to - end);
    }
  }
  void remember_locked(Addr at, Bytes size) {
    forget_locked(at, size);
    accessible_.emplace(at, size);
  }

  std::unique_ptr<Driver> inner_;
  std::mutex mutex_;
  std::map<Addr, Bytes> accessible_;
  std::vector<int> peers_;
};

}  // namespace

std::unique_ptr<PeerDriver> make_peer_driver(std::unique_ptr<Driver> inner) {
  return std::make_unique<PeerDriverImpl>(std::move(inner));
}

}  // namespace dymem
