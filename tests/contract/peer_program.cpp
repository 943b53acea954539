// What peers may reach when the card refuses them something once: driven by test_peer_driver.py. Prints, per line, what was
// asked and how it went.
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

#include "abi/peer_driver.cpp"
#include "driver/emulated.hpp"
#include "driver/forwarding.hpp"

using namespace dymem;

namespace {

constexpr Bytes kGranule = 2 << 20;

class Refusing final : public Forwarding<Driver> {
 public:
  explicit Refusing(std::unique_ptr<Driver> to) : Forwarding(*to), owned_(std::move(to)) {}
  Status set_peer_access(Addr at, Bytes size, int peer) override {
    if (refuse_nth && --refuse_nth == 0) return {Code::out_of_memory, "cuMemSetAccess", 2};
    granted.insert({peer, at});
    return to_.set_peer_access(at, size, peer);
  }
  int refuse_nth = 0;
  std::set<std::pair<int, Addr>> granted;

 private:
  std::unique_ptr<Driver> owned_;
};

}  // namespace

int main() {
  EmulatedOptions options;
  options.capacity = 1 << 30;
  auto owned = std::make_unique<Refusing>(make_emulated_driver(options));
  Refusing& card = *owned;
  auto driver = make_peer_driver(std::move(owned));
  Addr base = 0;
  if (!driver->reserve(32 * kGranule, &base).ok()) return 1;
  const auto make = [&](int place) {
    Handle handle = 0;
    const Addr at = base + Bytes(2 * place) * kGranule;
    if (!driver->create(kGranule, &handle).ok() || !driver->map(at, kGranule, handle).ok()) return false;
    return driver->set_access(at, kGranule).ok();
  };
  std::printf("two granules %d\n", make(0) && make(1));
  card.refuse_nth = 2;
  std::printf("enabled %d\n", driver->enable_peer(1).ok());
  std::printf("granted %zu\n", card.granted.size());
  std::printf("a third granule %d\n", make(2));
  std::printf("granted %zu\n", card.granted.size());
  card.refuse_nth = 1;
  std::printf("a fourth %d\n", make(3));
  std::printf("enabled again %d\n", driver->enable_peer(1).ok());
  std::printf("another peer %d\n", driver->enable_peer(2).ok());
  std::printf("granted %zu\n", card.granted.size());
}
