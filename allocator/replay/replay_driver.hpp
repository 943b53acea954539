// The driver under a replay: the emulated one, except that the lag counts for the trace's own streams only. The streams
// which stand for a completion that the trace tells (completion_streams.hpp) finish at exactly that time.
// Everything else is passed on. Thread safety: a replay has one thread.
#pragma once
#include "driver/emulated.hpp"
#include "driver/forwarding.hpp"
#include "replay/completion_streams.hpp"

namespace dymem {

class ReplayDriver final : public Forwarding<> {
 public:
  ReplayDriver(EmulatedDriver& device, const CompletionStreams& completions, Nanos lag)
      : Forwarding(device), device_(device), completions_(completions), lag_(lag) {
    device_.set_lag(lag_);
  }

  Status event_record(EventId event, StreamId stream) override {
    if (!completions_.ours(stream)) return device_.event_record(event, stream);
    device_.set_lag(0);
    const Status status = device_.event_record(event, stream);
    device_.set_lag(lag_);
    return status;
  }

  const char* name() const override { return "replay(emulated)"; }

 private:
  EmulatedDriver& device_;
  const CompletionStreams& completions_;
  const Nanos lag_;
};

}  // namespace dymem
