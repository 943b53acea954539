// The program's allocations followed along a profiled iteration (pool/tagger.hpp), so that each has its class: what
// dymem.mobility.follow() switches on. One Tagger a device, never destroyed, like the pools.
//
//   W1  Off costs nothing: the adapter's one branch on who watches is there already (watching.hpp).
//   W2  What is followed is what PyTorch asks of the pools: not what private pools take. Blocks of other holders
//       (abi/holders.hpp) do not pass here; where the profile has some, a stream departs and is taken up again.
//   W3  Nothing throws, and nothing is asked of a pool under a Tagger's lock.
//   W4  Of a block the pool knows the stream, so nothing is kept for a block but in the Tagger's few last ones. It is asked
//       before the block is freed (adapter.cpp), when nobody else can have its address.
// Locks: one mutex around switching; a Tagger's own is a leaf.
#pragma once
#include <utility>
#include <vector>

#include "abi/registry.hpp"
#include "pool/tagger.hpp"

namespace dymem {

class Following {
 public:
  using DevicePattern = std::pair<int, StreamPattern>;

  // From now on, on every device that one of them is of; what was followed before is not any more. Throws
  // InvalidArgument, and then all is as it was. `trusted`: as Tagger::follow().
  void follow(const std::vector<DevicePattern>& patterns, bool trusted);
  void stop();
  bool on() const;
  FollowingStats stats() const;  // of all devices, since follow()

  Tagger& tagger(int device) { return taggers_[device]; }  // a device of registry.hpp's

 private:
  friend Following& following();
  Following();
  static void forget_in_child();
  Tagger taggers_[kDevicesMax];
};

Following& following();

}  // namespace dymem
