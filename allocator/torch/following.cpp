// See following.hpp (W1..W4).
#include "torch/following.hpp"

#include <array>
#include <mutex>
#include <string>

#include "torch/switching.hpp"

namespace dymem {

void Following::forget_in_child() {
  for (Tagger& tagger : following().taggers_) tagger.made_in_child();
}

Following::Following() { off_in_children<Watch::following, forget_in_child>(); }

Following& following() {
  static auto* const instance = new Following;
  return *instance;
}

void Following::follow(const std::vector<DevicePattern>& patterns, bool trusted) {
  std::array<std::vector<StreamPattern>, kDevicesMax> of;
  for (const auto& [device, pattern] : patterns) {
    if (device < 0 || device >= kDevicesMax)
      throw InvalidArgument("dymem: there is no device " + std::to_string(device) + " to follow.");
    of[std::size_t(device)].push_back(pattern);
  }
  if (patterns.empty()) throw InvalidArgument("dymem: there are no patterns to follow.");
  for (const auto& device : of) Tagger::check(device);
  std::lock_guard lock(switching());
  for (std::size_t device = 0; device < of.size(); device++) taggers_[device].follow(of[device], trusted);
  set_watching(Watch::following, true);
}

void Following::stop() {
  std::lock_guard lock(switching());
  set_watching(Watch::following, false);
  for (Tagger& tagger : taggers_) tagger.stop();
}

bool Following::on() const { return watching() & Watch::following; }

FollowingStats Following::stats() const {
  FollowingStats sum;
  for (const Tagger& tagger : taggers_) {
    const FollowingStats one = tagger.stats();
    FollowingStats::each([&](const char*, auto member) { sum.*member += one.*member; });
  }
  return sum;
}

}  // namespace dymem
