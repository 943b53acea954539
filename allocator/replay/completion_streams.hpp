// Streams that exist only in a replay: each finishes exactly when the trace says that a pending block was done.
//
// A stream does its work in order, so one stream can stand for several completions only if they come in the order in
// which they were given to it. Each completion goes to the stream whose last one is the latest that does not come after
// it; a new stream is taken when there is none. That is the fewest streams that keep every completion exact.
#pragma once
#include <iterator>
#include <map>
#include <unordered_set>

#include "base/units.hpp"

namespace dymem {

class CompletionStreams {
 public:
  // `taken`: ids that the trace itself uses.
  explicit CompletionStreams(std::unordered_set<StreamId> taken) : taken_(std::move(taken)) {}

  StreamId stream_for(Nanos completion) {
    StreamId id = 0;
    auto after = free_from_.upper_bound(completion);
    if (after == free_from_.begin()) {
      do id = next_++;
      while (taken_.count(id));
      ours_.insert(id);
    } else {
      const auto best = std::prev(after);
      id = best->second;
      free_from_.erase(best);
    }
    free_from_.emplace(completion, id);
    return id;
  }
  bool ours(StreamId id) const { return ours_.count(id) != 0; }

 private:
  std::unordered_set<StreamId> taken_, ours_;
  std::multimap<Nanos, StreamId> free_from_;  // completion given last -> stream
  StreamId next_ = 0x7d00000000000001ULL;
};

}  // namespace dymem
