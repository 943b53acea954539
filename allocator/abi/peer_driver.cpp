// See peer_driver.hpp (P1, P2).
#include "abi/peer_driver.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "driver/forwarding.hpp"

namespace dymem {
namespace {

class PeerDriverImpl final : public Forwarding<PeerDriver> {
 public:
  explicit PeerDriverImpl(std::unique_ptr<Driver> inner) : Forwarding(*inner), inner_(std::move(inner)) {}

  Status enable_peer(int peer) override {
    std::lock_guard lock(mutex_);
    // Known from now on, also if this fails: PyTorch holds the pair for enabled before it asks, and asks once.
    if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) {
      peers_.push_back(peer);
      behind_.push_back(peer);
    }
    return catch_up_locked();
  }
  Driver& inner() override { return *inner_; }

  Status set_access(Addr at, Bytes size) override {
    std::lock_guard lock(mutex_);
    if (Status status = inner_->set_access(at, size); !status.ok()) return status;
    for (int peer : peers_)
      if (Status status = inner_->set_peer_access(at, size, peer); !status.ok()) return status;
    (void)catch_up_locked();  // of what was there before: no matter of this range
    remember_locked(at, size);
    return {};
  }
  Status unmap(Addr at, Bytes size) override {
    std::lock_guard lock(mutex_);
    Status status = inner_->unmap(at, size);
    if (status.ok()) forget_locked(at, size);
    return status;
  }

 private:
  // Peers that were refused some range get them all once more.
  Status catch_up_locked() {
    Status last;
    std::erase_if(behind_, [&](int peer) {
      for (const auto& [at, size] : accessible_)
        if (Status status = inner_->set_peer_access(at, size, peer); !status.ok()) return last = status, false;
      return true;
    });
    return last;
  }
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
  std::vector<int> behind_;  // of them: those that lack access to some accessible range
};

}  // namespace

std::unique_ptr<PeerDriver> make_peer_driver(std::unique_ptr<Driver> inner) {
  return std::make_unique<PeerDriverImpl>(std::move(inner));
}

}  // namespace dymem
