// What calls of the other allocator that are under way may make it hold (joint.hpp; the adapter forwards private pools
// to PyTorch's own). It knows one cap for all of its callers, so what one call claimed and did not take, another one
// that is under way can still take: such a rest goes back only when the cap has come down or nobody is calling.
//
//   C1  While a call is under way the other holds at most most(held), whatever calls end meanwhile.
//   C2  With none under way nothing is set aside.
// `held`: bytes that the other holds, as last known. Lock: the pool's.
#pragma once
#include <algorithm>

#include "base/units.hpp"

namespace dymem {

class Claims {
 public:
  // A call begins; of `more` bytes it gets what is left of `limit_left`, the limit less what the pool itself holds.
  Bytes begin(Bytes more, Bytes held, Bytes limit_left) {
    calls_++;
    const Bytes wanted = held + claimed_;
    const Bytes granted = limit_left > wanted ? std::min(more, limit_left - wanted) : 0;
    claimed_ += granted;
    cap_ = std::max(cap_, cap(held));
    return granted;
  }
  void end(Bytes claimed) {
    claimed_ -= claimed;
    if (--calls_ == 0) cap_ = 0;
  }
  // The other is capped at `most` by now, and `held` is from later than that.
  void lowered(Bytes most, Bytes held) {
    if (calls_) cap_ = std::max(most, cap(held));
  }

  Bytes cap(Bytes held) const { return held + claimed_; }  // what to cap the other at
  Bytes most(Bytes held) const { return std::max(cap(held), cap_); }
  bool too_high(Bytes held) const { return cap_ > cap(held); }

 private:
  unsigned calls_ = 0;
  Bytes claimed_ = 0;  // by calls under way
  Bytes cap_ = 0;      // the highest that the other may still go by; 0: no call is under way
};

}  // namespace dymem
