// Unusable free space (HPDC 2020, section 3.3.1): U_f(j) = (TotalFree - sum over i >= j of 2^i k_i) / TotalFree, the
// share of what is free that a request of 2^j bytes cannot use. 0: no fragmentation; 1: such a request must grow the
// pool.
//
// The paper counts free nodes by powers of two; nodes here are runs of any size, so a run counts, whole, for every
// power it holds. Where granules can be mapped a second time, idle ones lying apart count as one node too: that is what
// stitching makes of them. Streams are left out: what one of them would have to wait for is free all the same.
// Pure; who fills it holds the pool's lock.
#pragma once
#include <array>
#include <bit>

#include "base/units.hpp"

namespace dymem {

class UnusableFree {
 public:
  static constexpr int kLeast = 9;  // 2^9: the unit of blocks
  static constexpr int kMost = 46;  // kRequestMax

  // A run of free bytes, and how many of them are of granules that lie idle as a whole and may be stitched.
  void add(Bytes run, Bytes idle = 0) {
    if (run == 0) return;
    Node& node = nodes_[std::bit_width(run) - 1];
    node.runs += run;
    node.idle += idle;
    free_ += run;
    idle_ += idle;
  }
  Bytes free() const { return free_; }
  // Of free bytes, those that one request of 2^j bytes could have been cut from.
  Bytes usable(int j) const {
    const bool stitched = idle_ >> j != 0;
    Bytes n = 0;
    for (int b = 0; b < int(nodes_.size()); b++) n += b >= j ? nodes_[b].runs : stitched ? nodes_[b].idle : 0;
    return n;
  }
  double share(int j) const { return free_ == 0 ? 0 : double(free_ - usable(j)) / double(free_); }

 private:
  struct Node {
    Bytes runs = 0, idle = 0;
  };
  std::array<Node, 64> nodes_{};  // by the largest power of two that the run holds
  Bytes free_ = 0, idle_ = 0;
};

}  // namespace dymem
