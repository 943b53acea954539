// Statistics of the pool together with what another allocator holds of the same device under the same limit (the
// adapter forwards private pools to PyTorch's own). Currents and totals are sums. A joint peak is not the sum of the two
// peaks: it is kept exactly, by ending a window each time the other side changes. Within a window the other side is
// constant, so the joint peak is the pool's peak of that window plus the constant.
//
//   J1  peaks of the pool itself, over all windows, are what they would be without this class.
//   J2  figures() never goes back to older figures of the other side: its counters only rise, and say which is newer;
//       figures from before its peaks or totals were last reset do not count.
// Lock: the pool's.
#pragma once
#include <algorithm>

#include "pool/stats.hpp"

namespace dymem {

class Joint {
 public:
  static constexpr int kArrays = 9;
  static const StatArray& array(const PoolStats& s, int i) {
    const StatArray* const all[kArrays] = {&s.allocation,           &s.segment,         &s.active,
                                           &s.inactive_split,       &s.allocated_bytes, &s.reserved_bytes,
                                           &s.active_bytes,         &s.inactive_split_bytes, &s.requested_bytes};
    return *all[i];
  }
  static StatArray& array(PoolStats& s, int i) {
    return const_cast<StatArray&>(array(static_cast<const PoolStats&>(s), i));
  }

  const PoolStats& other() const { return other_; }
  Bytes reserved() const { return Bytes(other_.reserved_bytes[kAll].current); }
  bool used() const { return used_; }
  // Figures count only if they were asked for in the era that lasts: it ends with a reset of peaks or totals, and when what
  // the other holds has become unknown.
  std::uint64_t era() const { return era_; }
  void end_era() { ++era_; }

  // The other side's figures are now `next`; false when they are older than those that are known. `window`: the pool's,
  // peaks since the last window ended. `era`: era() before they were asked for. When true, the caller starts a new
  // window of the pool's peaks.
  bool change(const PoolStats& window, const PoolStats& next, std::uint64_t era) {
    if (era != era_ || (used_ && age(next) < age(other_))) return false;
    end_window(window);
    for (int i = 0; i < kArrays; i++)
      for (int p = 0; p < kStatPools; p++) {
        const Stat &own = array(window, i)[p], &old = array(other_, i)[p], &now = array(next, i)[p];
        // Its own peak rose: that was in between, while the pool held what it holds.
        const std::int64_t between = now.peak > old.peak ? now.peak : now.current;
        peak_[i][p] = std::max(peak_[i][p], own.current + std::max(between, now.current));
      }
    other_ = next;
    used_ = true;
    return true;
  }

  // From the pool's figures of this window: its own figures, over all windows.
  void widen(PoolStats* s) const {
    if (!used_) return;
    for (int i = 0; i < kArrays; i++)
      for (int p = 0; p < kStatPools; p++) raise(&array(*s, i)[p].peak, own_peak_[i][p]);
    raise(&s->pending_bytes.peak, pending_peak_);
    raise(&s->slab_bytes.peak, slab_peak_);
  }

  // From the pool's figures of this window: those of both sides together.
  void add(PoolStats* s) const {
    if (!used_) return;
    for (int i = 0; i < kArrays; i++)
      for (int p = 0; p < kStatPools; p++) {
        Stat& sum = array(*s, i)[p];
        const Stat& other = array(other_, i)[p];
        sum.peak = std::max(peak_[i][p], sum.peak + other.current);
        sum.current += other.current;
        sum.allocated += other.allocated;
        sum.freed += other.freed;
      }
    s->num_alloc_retries += other_.num_alloc_retries;
    // Failures that no caller saw are taken off before the other counts anew: the sum may be one short for a moment.
    s->num_ooms = std::max<std::int64_t>(0, s->num_ooms + other_.num_ooms);
    s->num_sync_all_streams += other_.num_sync_all_streams;
    s->num_device_alloc += other_.num_device_alloc;
    s->num_device_free += other_.num_device_free;
  }

  std::int64_t num_ooms() const { return other_.num_ooms; }

  // Peaks begin anew, on the other side too: figures that it gave before have the old ones. `window`: the pool's,
  // after it has reset its own.
  void reset_peak(const PoolStats& window) {
    end_era();
    for (int i = 0; i < kArrays; i++)
      for (int p = 0; p < kStatPools; p++) {
        own_peak_[i][p] = array(window, i)[p].current;
        array(other_, i)[p].reset_peak();
        peak_[i][p] = array(window, i)[p].current + array(other_, i)[p].current;
      }
    pending_peak_ = window.pending_bytes.current;
    slab_peak_ = window.slab_bytes.current;
  }
  // Totals begin anew, on the other side too: what it says next is newer, however small.
  void reset_accumulated() {
    end_era();
    for (int i = 0; i < kArrays; i++)
      for (Stat& s : array(other_, i)) s.reset_accumulated();
    other_.num_alloc_retries = other_.num_ooms = other_.num_sync_all_streams = 0;
    other_.num_device_alloc = other_.num_device_free = 0;
  }

 private:
  static constexpr int kReserved = 5;
  static void raise(std::int64_t* to, std::int64_t by) { *to = std::max(*to, by); }
  // Grows with every change of the figures, whichever it is.
  static std::int64_t age(const PoolStats& s) {
    std::int64_t sum = 0;
    for (int i = 0; i < kArrays; i++) sum += array(s, i)[kAll].allocated + array(s, i)[kAll].freed;
    return sum;
  }
  void end_window(const PoolStats& window) {
    for (int i = 0; i < kArrays; i++)
      for (int p = 0; p < kStatPools; p++) {
        raise(&own_peak_[i][p], array(window, i)[p].peak);
        raise(&peak_[i][p], array(window, i)[p].peak + array(other_, i)[p].current);
      }
    raise(&pending_peak_, window.pending_bytes.peak);
    raise(&slab_peak_, window.slab_bytes.peak);
  }

  PoolStats other_;
  bool used_ = false;
  std::uint64_t era_ = 0;
  std::int64_t peak_[kArrays][kStatPools] = {}, own_peak_[kArrays][kStatPools] = {};
  std::int64_t pending_peak_ = 0, slab_peak_ = 0;
};

}  // namespace dymem
