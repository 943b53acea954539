// See tagger.hpp (F1..F7).
#include "pool/tagger.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/errors.hpp"

namespace dymem {
namespace {

constexpr std::uint32_t kNoPlace = ~std::uint32_t{0};
using Last = std::uint64_t;                       // the last steps, a byte each
constexpr Last kNoSteps = 0x7f7f7f7f7f7f7f7f;  // as the last ones of a stream that did nothing: no step is 0x7f

Last with(Last last, std::int8_t step) { return last << 8 | std::uint8_t(step); }
static_assert(Tagger::kAligned == sizeof(Last));

void check_one(const StreamPattern& p) {
  const std::string of = "dymem: the pattern of stream " + std::to_string(p.stream);
  if (p.steps.empty() || p.steps.size() >= kNoPlace) throw InvalidArgument(of + " has no steps, or too many.");
  if (p.steps.size() != p.classes.size())
    throw InvalidArgument(of + " has " + std::to_string(p.steps.size()) + " steps and " +
                          std::to_string(p.classes.size()) + " classes; it is one class a step.");
  if (p.steps.size() != p.widths.size())
    throw InvalidArgument(of + " has " + std::to_string(p.steps.size()) + " steps and " +
                          std::to_string(p.widths.size()) + " widths; it is one width a step.");
  for (std::int8_t step : p.steps)
    if (step < Tagger::kOther || step > int(Tagger::kFar))
      throw InvalidArgument(of + " has a step " + std::to_string(step) + "; steps are from -1 to 16.");
  for (std::uint8_t tag : p.classes)
    if (tag > std::uint8_t(Mobility::reclaimed))
      throw InvalidArgument(of + " has a class " + std::to_string(tag) + "; classes are from 0 to 3.");
}

}  // namespace

struct Tagger::Pattern {
  explicit Pattern(const StreamPattern& of)
      : stream(of.stream), steps(of.steps), classes(of.classes), widths(of.widths) {
    const std::size_t n = steps.size();
    places.reserve(n);
    Last last = kNoSteps;
    for (std::size_t i = 0; i < kAligned; i++) last = with(last, steps[(n * kAligned - kAligned + i) % n]);
    for (std::size_t i = 0; i < n; i++) {
      last = with(last, steps[i]);
      places.emplace_back(last, std::uint32_t(i));
    }
    std::sort(places.begin(), places.end());
  }

  std::uint32_t after(std::uint32_t place) const { return place + 1 == steps.size() ? 0 : place + 1; }

  // The place nearest to `to` before which, it included, the last steps are these; ahead if one behind is as near.
  std::uint32_t nearest(Last last, std::uint32_t to) const {
    const auto ahead = std::lower_bound(places.begin(), places.end(), Ending{last, to});
    const bool here = ahead != places.end() && ahead->first == last;
    const bool before = ahead != places.begin() && ahead[-1].first == last;
    // With none on one side, the first or last of them all is the next on the circle.
    if (!here && !before) return kNoPlace;
    const auto n = std::uint32_t(steps.size());
    const auto first = here ? ahead : std::lower_bound(places.begin(), ahead, Ending{last, 0});
    const auto final = before ? ahead - 1 : std::upper_bound(ahead, places.end(), Ending{last, kNoPlace}) - 1;
    const std::uint32_t up = first->second, down = final->second;
    return (up >= to ? up - to : n - (to - up)) <= (down <= to ? to - down : n - (down - to)) ? up : down;
  }

  StreamId stream;
  std::vector<std::int8_t> steps;
  std::vector<std::uint8_t> classes, widths;
  using Ending = std::pair<Last, std::uint32_t>;
  std::vector<Ending> places;  // of each: the steps that end there, and where; sorted
  bool seen = false;                  // its own stream did something
};

struct Tagger::Follower {
  struct Found {
    std::uint32_t at;      // where the step stands in the pattern; kNoPlace: nowhere
    bool departs, unlike;  // it is not the next place; what was allocated there is of quite another size
    unsigned trust;        // once it has gone so
  };
  // `wide`: an allocation's width, 0 for a free.
  Found find(std::int8_t step, std::uint8_t wide) const {
    Found f{};
    f.departs = !lost && pattern->steps[next] != step;
    f.at = lost || f.departs ? pattern->nearest(with(last, step), next) : next;
    const unsigned there = f.at == kNoPlace ? 0 : pattern->widths[f.at];
    f.unlike = wide && there && (wide > there ? wide - there : there - wide) > kUnlike;
    const unsigned lost_trust = f.departs ? kDeparted : f.unlike ? 1 : 0;
    f.trust = trust > lost_trust ? trust - lost_trust : 0;
    if (f.at != kNoPlace && !f.unlike) f.trust = std::min(f.trust + 1, kTrustMost);
    return f;
  }
  // Of an allocation that was found so.
  Mobility of(const Found& f) const {
    if (f.unlike || (f.at == kNoPlace && f.departs)) return trust >= kSure ? Mobility::temporary : Mobility::untagged;
    return f.at == kNoPlace || f.trust < kTrusted ? Mobility::untagged : Mobility(pattern->classes[f.at]);
  }
  void go(std::int8_t step, std::uint8_t wide, FollowingStats* stats) {
    if (!pattern) return;
    const Found f = find(step, wide);
    stats->departures += f.departs;
    trust = f.trust;
    last = with(last, step);
    lost = f.at == kNoPlace;
    if (!lost) next = pattern->after(f.at);
  }

  StreamId stream = 0;
  const Pattern* pattern = nullptr;  // nullptr: all is untagged
  std::uint32_t next = 0;
  Last last = kNoSteps;
  unsigned trust = 0;
  bool lost = false;
  StreamSteps steps;
  std::uint64_t used = 0;  // Following::turn when it last did something
};

struct Tagger::Following {
  std::vector<Pattern> patterns;
  std::vector<Follower> followers;
  std::size_t recent = 0;
  std::uint64_t turn = 0, strangers = 0;
  unsigned trust = 0;  // of the first stream

  Follower& of(StreamId stream) {
    if (recent >= followers.size() || followers[recent].stream != stream) recent = find(stream);
    followers[recent].used = ++turn;
    return followers[recent];
  }

  std::size_t find(StreamId stream) {
    for (std::size_t i = 0; i < followers.size(); i++)
      if (followers[i].stream == stream) return i;
    const unsigned of_last = followers.empty() ? trust : followers[recent].trust;
    std::size_t i = followers.size();
    if (i < kStreamsMax) {
      followers.emplace_back();  // reserved
    } else {
      const auto oldest = std::min_element(followers.begin(), followers.end(),
                                           [](const Follower& a, const Follower& b) { return a.used < b.used; });
      i = std::size_t(oldest - followers.begin());
      *oldest = Follower{};
    }
    followers[i].stream = stream;
    followers[i].pattern = pattern_for(stream);
    followers[i].trust = of_last;
    return i;
  }

  const Pattern* pattern_for(StreamId stream) {
    std::uint64_t unseen = 0;
    for (Pattern& p : patterns) {
      if (p.stream == stream) {
        p.seen = true;
        return &p;
      }
      unseen += !p.seen;
    }
    if (!unseen) return nullptr;
    std::uint64_t rank = strangers++ % unseen;
    for (const Pattern& p : patterns)
      if (!p.seen && rank-- == 0) return &p;
    return nullptr;
  }
};

Tagger::Tagger() = default;
Tagger::~Tagger() = default;

void Tagger::check(const std::vector<StreamPattern>& patterns) {
  for (const StreamPattern& p : patterns) {
    check_one(p);
    const auto same = [&](const StreamPattern& other) { return other.stream == p.stream; };
    if (std::count_if(patterns.begin(), patterns.end(), same) > 1)
      throw InvalidArgument("dymem: there are two patterns of stream " + std::to_string(p.stream) + ".");
  }
}

void Tagger::follow(const std::vector<StreamPattern>& patterns, bool trusted) {
  std::unique_ptr<Following> made;
  if (!patterns.empty()) {
    made = std::make_unique<Following>();
    made->patterns.reserve(patterns.size());
    made->followers.reserve(kStreamsMax);
    made->trust = trusted ? kTrustMost : 0;
    for (const StreamPattern& p : patterns) made->patterns.emplace_back(p);
  }
  std::lock_guard lock(lock_);
  made.swap(following_);  // what was followed goes when the lock is free again
  stats_ = {};
}

void Tagger::stop() {
  std::unique_ptr<Following> gone;
  std::lock_guard lock(lock_);
  if (following_) stats_.streams = following_->followers.size();
  gone.swap(following_);
}

Mobility Tagger::next(StreamId stream, Bytes bytes) noexcept {
  std::lock_guard lock(lock_);
  if (!following_) return Mobility::untagged;
  const Follower& f = following_->of(stream);
  if (!f.pattern) return Mobility::untagged;
  return f.of(f.find(f.steps.step_of(bytes), width(bytes)));
}

void Tagger::allocated(StreamId stream, Bytes bytes, Addr at, Mobility given) noexcept {
  std::lock_guard lock(lock_);
  if (!following_) return;
  Follower& f = following_->of(stream);
  f.go(f.steps.allocated(bytes, at), width(bytes), &stats_);
  stats_.allocations++;
  stats_.allocated_bytes += bytes;
  if (given == Mobility::untagged) return;
  stats_.tagged++;
  stats_.tagged_bytes += bytes;
}

void Tagger::freed(StreamId stream, Addr at) noexcept {
  std::lock_guard lock(lock_);
  if (!following_) return;
  Follower& f = following_->of(stream);
  f.go(f.steps.freed(at), 0, &stats_);
}

FollowingStats Tagger::stats() const {
  std::lock_guard lock(lock_);
  FollowingStats out = stats_;
  if (following_) out.streams = following_->followers.size();
  return out;
}

void Tagger::made_in_child() {
  new (&lock_) Lock;
  (void)following_.release();  // another thread may have been changing it
}

}  // namespace dymem
