// What calls of the other allocator that are under way may make it hold (joint.hpp; the adapter forwards private pools
// to PyTorch's own). It knows one cap for all of its callers, so what one call claimed and did not take, another one
// that is under way can still take: such a rest goes back only when the cap has come down or nobody is calling.
//
//   C1  While a call is under way the other holds at most most(held), whatever calls end meanwhile.
//   C2  With none under way nothing is set aside, but for those that ended unsettled: what they took is not known before
//       the next figures.
//   C3  A cap that is given never exceeds `limit_left`, the limit less what the pool itself holds, unless as much is held.
//       A call that has taken its bytes and not ended counts twice, in `held` and in its claim: to go by their sum would
//       let the others take those bytes once more.
// `held`: bytes that the other holds, as last known; never less than what it held when the last call ended.
// Lock: the pool's.
#pragma once
#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace dymem {

class Claims {
 public:
  // A call begins; of `more` bytes it gets what is left of `limit_left`.
  Bytes begin(Bytes more, Bytes held, Bytes limit_left) {
    calls_++;
    const Bytes wanted = held + claimed_;
    const Bytes granted = limit_left > wanted ? std::min(more, limit_left - wanted) : 0;
    claimed_ += granted;
    return granted;
  }
  // `settled`: `held` is from after all that the call took.
  void end(Bytes claimed, bool settled) {
    calls_--;
    unsettled_ = unsettled_ || !settled;
    if (settled) claimed_ -= claimed;
    else left_ += claimed;
    if (!calls_ && !unsettled_) cap_ = 0;
  }
  // `held` is from after all that ended calls took.
  void settled() {
    if (!unsettled_) return;
    unsettled_ = false;
    claimed_ -= std::exchange(left_, 0);
    if (!calls_) cap_ = 0;
  }

  // What the calls under way need the other to be capped at.
  Bytes needed(Bytes held, Bytes limit_left) const { return std::max(held, std::min(held + claimed_, limit_left)); }
  // The same, to be given to the other now: from here on it may hold as much.
  Bytes give_cap(Bytes held, Bytes limit_left) {
    const Bytes given = needed(held, limit_left);
    if (calls_) cap_ = std::max(cap_, given);  // else nobody calls before it has given a cap of its own
    return given;
  }
  // The same where there is no limit.
  void give_none() {
    if (calls_) cap_ = kNoLimit;
  }
  // The other goes by `given` by now, the latest, and `held` is from later than that.
  void lowered(Bytes given) {
    if (calls_) cap_ = given;
  }

  Bytes most(Bytes held) const { return std::max(held + claimed_, cap_); }
  bool too_high(Bytes held, Bytes limit_left) const { return cap_ > needed(held, limit_left); }

 private:
  unsigned calls_ = 0;
  Bytes claimed_ = 0;  // by calls under way, and by those that ended unsettled:
  Bytes left_ = 0;
  bool unsettled_ = false;  // there are such
  Bytes cap_ = 0;      // the highest that the other may still go by; 0: none was given to calls under way
};

}  // namespace dymem
