// Several GPUs of one host: what one device maps, others may be allowed to read and write.
//
// PyTorch enables peer access between a pair of devices once, at the first copy between them; from then on, kernels of
// the peer read this device's tensors directly. For memory of cuMemCreate that needs an access grant for each mapping,
// those that exist and those to come. This decorator remembers what is accessible and who the peers are, so that
// neither the pool nor the spaces need to know of peers. Without a peer it costs a map update next to driver calls
// that take tens of microseconds.
//   P1  A range that has access on its own device has it on every peer.
//   P2  A grant that fails leaves the range without access: set_access() reports it and the caller rolls back.
// Locks: its own mutex, held over the driver calls that change the set, so that enabling a peer misses no mapping.
#pragma once
#include <memory>

#include "driver/driver.hpp"

namespace dymem {

class PeerDriver : public Driver {
 public:
  virtual Status enable_peer(int peer) = 0;  // idempotent
  virtual Driver& inner() = 0;
};
std::unique_ptr<PeerDriver> make_peer_driver(std::unique_ptr<Driver> inner);

}  // namespace dymem
