// Classes for the allocations of a program that repeats what it did in one profiled iteration: the live form of
// python/dymem/mobility/following.py, which says what steps, patterns and following are. One object a device.
//
//   F1  A pattern is one whole iteration, so after its last step comes its first, and the nearest place is the nearest
//       on that circle: no marks of iterations are needed.
//   F2  A step is an allocation that succeeded, or the free of a block that is held: in the order in which callers say
//       so. next() tells the class of an allocation to come and changes nothing of that; a request that fails is no step.
//   F3  A stream follows its own pattern. One that the profile has not follows that of the profile's streams that have
//       not been seen since, in the order in which both appeared, round and round (programs that make a stream for
//       every iteration have another number for it each time); with none left, it is untagged.
//   F4  Of the blocks it remembers the last kFar of each stream: older ones are all alike. Of streams the last
//       kStreamsMax that did something. So what it holds does not grow, and a step takes no memory from the heap.
//   F5  A step costs a comparison; where a stream has departed, one binary search among the pattern's places.
//   F6  A class is told only where a stream is trusted to be where it seems to be: having gone kTrusted steps as expected,
//       of which a departure takes kDeparted. A program does other things before its first iteration, and some runs of
//       allocations are alike. A new stream has the trust of the one that did something last.
//   F7  An allocation more than kUnlike powers of two larger or smaller than that of its place is another one, and
//       takes one from the trust. Where that is kSure, such a one and one where a stream departs are taken for
//       workspace: temporary.
// Locks: its own, a leaf: nothing is called under it. Never held together with the pool's.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "base/units.hpp"
#include "pool/mobility.hpp"
#include "pool/stream_steps.hpp"

namespace dymem {

// What one stream did in the profiled iteration.
struct StreamPattern {
  StreamPattern() = default;
  // As other languages have them.
  StreamPattern(StreamId of, const std::string& step_bytes, const std::string& class_bytes,
                const std::string& width_bytes)
      : stream(of),
        steps(step_bytes.begin(), step_bytes.end()),
        classes(class_bytes.begin(), class_bytes.end()),
        widths(width_bytes.begin(), width_bytes.end()) {}
  StreamId stream = 0;
  std::vector<std::int8_t> steps;      // Tagger::kAlike, kOther, or a free's age
  std::vector<std::uint8_t> classes;  // Mobility of each step; of a free untagged
  std::vector<std::uint8_t> widths;   // Tagger::width of each allocation's bytes; 0: of a free, or not known
};

struct FollowingStats {  // since follow()
  std::uint64_t allocations = 0, tagged = 0;
  Bytes allocated_bytes = 0, tagged_bytes = 0;  // as asked for
  std::uint64_t departures = 0;                 // steps that were not the one expected
  std::uint64_t streams = 0;                    // that did something

  // f(name, member) of each.
  template <class F>
  static void each(F f) {
    f("allocations", &FollowingStats::allocations);
    f("tagged", &FollowingStats::tagged);
    f("departures", &FollowingStats::departures);
    f("allocated_bytes", &FollowingStats::allocated_bytes);
    f("tagged_bytes", &FollowingStats::tagged_bytes);
    f("streams", &FollowingStats::streams);
  }
};

class Tagger {
 public:
  static constexpr std::int8_t kAlike = StreamSteps::kAlike, kOther = StreamSteps::kOther;
  static constexpr unsigned kFar = StreamSteps::kFar;
  static constexpr unsigned kAligned = 8;  // steps that must be the same where a departed stream is taken up again
  static constexpr unsigned kTrusted = 12, kDeparted = 6, kTrustMost = 64;  // steps (F6)
  static constexpr unsigned kSure = 52, kUnlike = 5;                        // trust, powers of two (F7)
  static constexpr std::size_t kStreamsMax = 64;

  Tagger();
  ~Tagger();
  Tagger(const Tagger&) = delete;
  Tagger& operator=(const Tagger&) = delete;

  // Powers of two in a block of so many requested bytes; the smallest ones are all alike.
  static std::uint8_t width(Bytes bytes) { return std::uint8_t(std::bit_width(std::max(bytes, kBlockUnit))); }

  // Throws InvalidArgument if these are no patterns, or two are of one stream.
  static void check(const std::vector<StreamPattern>& patterns);
  // From now on follows these (checked), in the order in which their streams appeared; nothing if there are none.
  // Statistics begin anew. `trusted`: the next step is known to be the pattern's first.
  void follow(const std::vector<StreamPattern>& patterns, bool trusted = false);
  void stop();  // statistics stay

  Mobility next(StreamId stream, Bytes bytes) noexcept;
  void allocated(StreamId stream, Bytes bytes, Addr at, Mobility given) noexcept;
  void freed(StreamId stream, Addr at) noexcept;

  FollowingStats stats() const;
  void made_in_child();  // of a fork, which has one thread: nothing is followed, and nobody holds the lock

 private:
  struct Pattern;
  struct Follower;
  struct Following;  // patterns and followers

  mutable Lock lock_;
  std::unique_ptr<Following> following_;
  FollowingStats stats_;
};

}  // namespace dymem
