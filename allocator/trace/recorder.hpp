// Records what the pool is asked, cheaply enough to leave on: a store into a chunk under the pool's lock; chunks are
// taken from the heap ahead of need, and dropped oldest first past `max_events`.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "base/event.hpp"

namespace dymem {

class TraceRecorder : public EventSink {
 public:
  explicit TraceRecorder(std::uint64_t max_events = 4'000'000);
  ~TraceRecorder() override;
  // Under the pool's lock. Blocks from before the recording are left out.
  void record(const TraceEvent& event, Addr at = 0) override;
  std::vector<TraceEvent> events() const;         // oldest first
  std::uint64_t dropped() const;
  void clear();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dymem
