// The pool beside another allocator that holds memory of its device under its limit: see claims.hpp and joint.hpp.
#include <chrono>
#include <thread>

#include "pool/impl.hpp"

namespace dymem {

Bytes Pool::claim_forwarded(Bytes more) {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  const Bytes granted = p.claims.begin(more, p.joint.reserved(), p.limit_left());
  p.home.let_marks_rise(p.allowance() != 0);
  return granted;
}

bool Pool::end_forwarded(Bytes claimed, bool settled) {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  p.claims.end(claimed, settled);
  if (!settled) p.joint.end_era();  // figures that others have asked for already may be from before what it took
  p.home.let_marks_rise(p.allowance() != 0);
  return p.config.limit && p.claims.too_high(p.joint.reserved(), p.limit_left());
}

ForwardedCap Pool::give_forwarded_cap() {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  if (!p.config.limit) {
    p.claims.give_none();
    return {kNoLimit, false};
  }
  const Bytes given = p.claims.give_cap(p.joint.reserved(), p.limit_left());
  p.home.let_marks_rise(p.allowance() != 0);
  return {given, p.claims.too_high(p.joint.reserved(), p.limit_left())};
}

void Pool::forwarded_lowered(Bytes given) {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  p.claims.lowered(given);
  p.home.let_marks_rise(p.allowance() != 0);
}

Bytes Pool::Impl::set_aside() const {
  return config.limit ? claims.most(joint.reserved()) - joint.reserved() : 0;
}

Bytes Pool::forwarded_claims() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->set_aside();
}

bool Pool::settle_forwarded(const PoolStats& held, std::uint64_t era) {
  std::lock_guard lock(impl_->mutex);
  Impl& p = *impl_;
  if (!p.joint.change(p.window_stats(), held, era)) return false;
  p.restart_peaks();
  p.claims.settled();
  p.home.let_marks_rise(p.allowance() != 0);
  return true;
}

std::uint64_t Pool::forwarded_era() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->joint.era();
}

void Pool::set_patience(Patience patience) {
  std::lock_guard lock(impl_->mutex);
  impl_->patience = patience;
}

// Calls under way may have claimed more than they take. `needed`: what the pool holds at least once the request is served.
// Nothing is asked of CUDA, so this may be done during captures; the caller looks at everything anew.
bool Pool::Impl::claims_came_back(Bytes needed, std::unique_lock<Lock>& lock) {
  const Bytes before = set_aside();
  if (!before || !patience || needed + joint.reserved() > config.limit) return false;
  const auto until = std::chrono::steady_clock::now() + patience();
  while (set_aside() >= before && std::chrono::steady_clock::now() < until) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return set_aside() < before;
}

}  // namespace dymem
