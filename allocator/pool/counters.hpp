// The statistics that every malloc and free touches, kept with as few stores as can be; stats() makes PyTorch's
// figures of them. Derived, not stored: accumulated allocations (current + freed), and everything "active"
// (live + pending), whose peak is live's unless blocks were pending meanwhile. Lock: the pool's.
#pragma once
#include <algorithm>

#include "pool/stats.hpp"

namespace dymem {

class Counters {
 public:
  enum What : int { kBlocks, kBytes, kRequested, kWhats };

  void up(int part, Bytes size, Bytes requested) {  // part: kSmall or kLarge
    const std::int64_t n[kWhats] = {1, std::int64_t(size), std::int64_t(requested)};
    for (int w = 0; w < kWhats; w++) {
      live_[part][w].up(n[w]);
      live_[kAll][w].up(n[w]);
    }
    if (__builtin_expect(any_pending(), 0)) note_active(part);
  }
  void down(int part, Bytes size, Bytes requested) {
    const std::int64_t n[kWhats] = {1, std::int64_t(size), std::int64_t(requested)};
    for (int w = 0; w < kWhats; w++) {
      live_[part][w].down(n[w]);
      live_[kAll][w].down(n[w]);
    }
  }
  // A freed block waits for other streams / is done waiting. Call pend() before down().
  void pend(int part, Bytes size) {
    const std::int64_t n[2] = {1, std::int64_t(size)};
    for (int p : {int(kAll), part})
      for (int w = 0; w < 2; w++) {
        // Until now active was live: what live's peak was, active's was too.
        if (!any_pending()) active_peak_[p][w] = std::max(active_peak_[p][w], live_[p][w].peak);
      }
    for (int p : {int(kAll), part})
      for (int w = 0; w < 2; w++) pending_[p][w].up(n[w]);
  }
  void unpend(int part, Bytes size) {
    const std::int64_t n[2] = {1, std::int64_t(size)};
    for (int p : {int(kAll), part})
      for (int w = 0; w < 2; w++) pending_[p][w].down(n[w]);
  }

  // Ever: the pool's clocks, which resetting statistics must not turn back.
  std::uint64_t handed_out() const {  // blocks
    return std::uint64_t(freed_before_[kBlocks] + live_[kAll][kBlocks].current + live_[kAll][kBlocks].freed);
  }
  Bytes bytes_handed_out() const {
    return Bytes(freed_before_[kBytes] + live_[kAll][kBytes].current + live_[kAll][kBytes].freed);
  }
  Bytes live() const { return Bytes(live_[kAll][kBytes].current); }
  Bytes pending() const { return Bytes(pending_[kAll][kBytes].current); }
  Bytes occupied() const { return live() + pending(); }
  Bytes occupied_peak() const {  // never reset
    return Bytes(std::max({occupied_before_, active_peak_[kAll][kBytes], live_[kAll][kBytes].peak}));
  }

  void fill(PoolStats* s) const {
    for (int p = 0; p < kStatPools; p++) {
      s->allocation[p] = live_[p][kBlocks].stat();
      s->allocated_bytes[p] = live_[p][kBytes].stat();
      s->requested_bytes[p] = live_[p][kRequested].stat();
      s->active[p] = active(p, kBlocks);
      s->active_bytes[p] = active(p, kBytes);
    }
    s->pending_bytes = pending_[kAll][kBytes].stat();
    s->occupied_peak = std::int64_t(occupied_peak());
  }
  void reset_peak() {
    occupied_before_ = std::int64_t(occupied_peak());
    for (int p = 0; p < kStatPools; p++)
      for (int w = 0; w < kWhats; w++) {
        live_[p][w].peak = live_[p][w].current;
        if (w < 2) {
          pending_[p][w].peak = pending_[p][w].current;
          active_peak_[p][w] = live_[p][w].current + pending_[p][w].current;
        }
      }
  }
  void reset_accumulated() {
    for (int w = 0; w < 2; w++) freed_before_[w] += live_[kAll][w].freed;
    for (int p = 0; p < kStatPools; p++)
      for (int w = 0; w < kWhats; w++) {
        live_[p][w].reset_accumulated();
        if (w < 2) pending_[p][w].reset_accumulated();
      }
  }

 private:
  struct Counter {
    std::int64_t current = 0, peak = 0, freed = 0, base = 0;  // base: current when last reset
    void up(std::int64_t n) {
      current += n;
      if (current > peak) peak = current;
    }
    void down(std::int64_t n) {
      current -= n;
      freed += n;
    }
    void reset_accumulated() {
      freed = 0;
      base = current;
    }
    Stat stat() const { return {current, peak, current + freed - base, freed}; }
  };
  bool any_pending() const { return pending_[kAll][kBlocks].current != 0; }
  void note_active(int part) {
    for (int p : {int(kAll), part})
      for (int w = 0; w < 2; w++)
        active_peak_[p][w] = std::max(active_peak_[p][w], live_[p][w].current + pending_[p][w].current);
  }
  Stat active(int p, int w) const {
    const Counter &l = live_[p][w], &q = pending_[p][w];
    // A block is allocated once, and freed for good when it is neither live nor pending.
    Stat s;
    s.current = l.current + q.current;
    s.peak = std::max(active_peak_[p][w], l.peak);
    s.allocated = l.current + l.freed - l.base;
    s.freed = s.allocated - s.current + l.base + q.base;
    return s;
  }

  Counter live_[kStatPools][kWhats];
  Counter pending_[kStatPools][2];
  std::int64_t active_peak_[kStatPools][2] = {};
  std::int64_t occupied_before_ = 0;
  std::int64_t freed_before_[2] = {};  // blocks and bytes, before the accumulated statistics were last reset
};

}  // namespace dymem
