// Finds how many steps an iteration of a program has: the period of what its busiest stream does, told in steps that
// tell no sizes (stream_steps.hpp), so that iterations of varying shape are alike. Nothing is said by the program.
//
// A *context* is the last kContext steps; the *gap* of a place is how far back its context was met last. Layers of an
// iteration meet theirs soon; where forward begins, where it turns, in the optimizer, a context is met once an
// iteration, and its gap is the period. So the period is the largest gap that is met again and again, with next to
// nothing beyond it:
//
//   P1  A place is *steady* if its context's last two gaps are alike (within a quarter of the larger): it was met three
//       times, so two whole repeats lie between. The period P is the commonest gap of a group of gaps (from 4/5 of the
//       largest to that), and of the last 2 P places at least twice as many are steady with a gap within a quarter of P
//       as have one beyond 5/4 P or none. Groups are tried from the largest gap down. Of P <= 1/3 of all steps.
//   P2  A larger group that has as many such places, of which some were met only twice so far, may be the period once
//       it is steady: then nothing is said yet. So layers and micro-batches are no iterations once one is over.
//   P3  *Repeats* are the runs of P steps, counted back from the last step, in which at most a quarter of the places
//       have a gap beyond 5/4 P or none. Fewer than two, or less than a quarter of all steps: nothing is said.
//   P4  Cost is linear in the steps, and paid by who asks: a step itself costs a byte. Memory is bounded: kKept steps
//       of each of kStreams streams. The older half of a longer one goes, and the least busy of more streams.
// What no step shows is not found: accumulated gradients whose iterations differ from micro-batches in nothing have the
// micro-batch's period; and within the first iterations, a repetition inside may be taken for one. Who asks must wait.
// Locks: a PeriodFinder's own is a leaf: nothing is called under it. find_period() takes none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/lock.hpp"
#include "base/units.hpp"
#include "pool/stream_steps.hpp"

namespace dymem {

struct Period {
  std::uint32_t steps = 0;    // of one iteration; 0: none is recognised
  std::uint32_t repeats = 0;  // whole iterations up to the last step that are like those before them
  // Steps since the fewest blocks were held, of the last iteration's: where an iteration begins.
  std::uint32_t since = 0;
};

// Of a stream's steps (kOther … kFar).
Period find_period(const std::vector<std::int8_t>& steps);

// Of one device.
class PeriodFinder {
 public:
  static constexpr std::size_t kContext = 15;     // steps: as many as one number of 64 bits tells exactly
  static constexpr std::size_t kKept = 1u << 20;  // steps
  static constexpr std::size_t kStreams = 8;

  // Whether a stream has reached the step of wake_at(): told once.
  bool allocated(StreamId stream, Bytes bytes, Addr at) noexcept;
  bool freed(StreamId stream, Addr at) noexcept;
  std::uint64_t steps() const;  // that the busiest stream has done since clear()
  Period find() const;          // of that stream; may throw std::bad_alloc
  void wake_at(std::uint64_t step);
  void clear();
  void made_in_child();  // of a fork, which has one thread: it knows nothing, and nobody holds the lock

 private:
  struct Stream {
    StreamId stream = 0;
    StreamSteps steps;
    std::uint64_t count = 0;
    std::vector<std::int8_t> kept;
  };
  Stream* of(StreamId stream);
  bool add(Stream* s, std::int8_t step);
  const Stream* busiest() const;

  mutable Lock lock_;
  std::vector<Stream> streams_;
  std::uint64_t wake_ = ~std::uint64_t{0};
};

}  // namespace dymem
