// See period.hpp (P1..P4).
#include "pool/period.hpp"

#include <algorithm>
#include <mutex>
#include <new>

namespace dymem {
namespace {

constexpr std::uint32_t kNever = ~std::uint32_t{0};
constexpr std::uint64_t kSteps = StreamSteps::kFar + 2;  // how many different ones there are

constexpr std::uint64_t power(std::uint64_t base, std::size_t n) { return n ? base * power(base, n - 1) : 1; }
constexpr std::uint64_t kOldest = power(kSteps, PeriodFinder::kContext - 1);
static_assert(kOldest <= ~std::uint64_t{0} / kSteps);

struct StepPlace {
  std::uint32_t gap = kNever;
  bool steady = false;  // its context was met three times, in like gaps
  bool fresh = false;   // it was met for the second time
};

bool like(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t apart = a < b ? b - a : a - b;
  return 4 * apart <= std::max(a, b);
}
bool beyond(std::uint32_t gap, std::uint32_t period) { return 4 * std::uint64_t{gap} > 5 * std::uint64_t{period}; }
bool near(std::uint32_t gap, std::uint32_t period) {
  const std::uint64_t apart = gap < period ? period - gap : gap - period;
  return 4 * apart <= period;
}

std::vector<StepPlace> places_of(const std::vector<std::int8_t>& steps) {
  const std::size_t n = steps.size();
  std::vector<StepPlace> places(n);
  std::vector<std::uint64_t> contexts(n);
  std::size_t slots = 64;
  while (slots < 2 * n) slots *= 2;
  std::vector<std::uint32_t> last(slots, kNever);  // where a context was met last, by open addressing
  std::uint64_t context = 0;
  for (std::size_t i = 0; i < n; i++) {
    context = context % kOldest * kSteps + std::uint64_t(steps[i] - StreamSteps::kOther);
    contexts[i] = context;
    if (i + 1 < PeriodFinder::kContext) continue;
    std::size_t slot = std::size_t((context * 0x9e3779b97f4a7c15u) >> 20) & (slots - 1);
    while (last[slot] != kNever && contexts[last[slot]] != context) slot = (slot + 1) & (slots - 1);
    if (const std::uint32_t before = last[slot]; before != kNever) {
      StepPlace& p = places[i];
      p.gap = std::uint32_t(i) - before;
      p.fresh = places[before].gap == kNever;
      p.steady = !p.fresh && like(p.gap, places[before].gap);
    }
    last[slot] = std::uint32_t(i);
  }
  return places;
}

std::uint32_t repeats_of(const std::vector<StepPlace>& places, std::uint32_t period) {
  std::uint32_t repeats = 0;
  for (std::size_t end = places.size(); end >= period; end -= period, repeats++) {
    std::uint64_t strange = 0;
    for (std::size_t i = end - period; i < end; i++) strange += beyond(places[i].gap, period);
    if (4 * strange > period) break;
  }
  return repeats;
}

std::uint32_t since_fewest(const std::vector<std::int8_t>& steps, std::uint32_t period) {
  std::int64_t held = 0, fewest = 0;
  std::size_t at = steps.size() - period;  // steps before it are over
  for (std::size_t i = at; i < steps.size(); i++) {
    held += steps[i] <= 0 ? 1 : -1;
    if (held < fewest) fewest = held, at = i + 1;
  }
  return std::uint32_t(steps.size() - at);
}

}  // namespace

Period find_period(const std::vector<std::int8_t>& steps) {
  const std::size_t n = steps.size();
  const std::vector<StepPlace> places = places_of(steps);
  std::vector<bool> met(n / 2 + 1);  // gaps that may be a period, or become one
  for (const StepPlace& p : places)
    if (p.gap < met.size()) met[p.gap] = true;
  std::vector<std::uint32_t> counts(met.size());
  for (std::size_t top = met.size(); top-- > 1;) {
    if (!met[top]) continue;
    const auto low = (4 * top + 4) / 5;
    for (std::size_t i = n - 2 * top; i < n; i++)
      if ((places[i].steady || places[i].fresh) && places[i].gap >= low && places[i].gap <= top)
        counts[places[i].gap]++;
    std::uint32_t period = 0, most = 0;
    for (std::size_t gap = low; gap <= top; gap++)
      if (counts[gap] && counts[gap] >= most) most = counts[gap], period = std::uint32_t(gap);
    top = low;  // the next group lies below
    if (!period) continue;
    std::uint64_t steady = 0, fresh = 0, strange = 0;
    for (std::size_t i = n - 2 * std::size_t{period}; i < n; i++) {
      const StepPlace& p = places[i];
      strange += beyond(p.gap, period);
      steady += p.steady && near(p.gap, period);
      fresh += p.fresh && near(p.gap, period);
    }
    const std::uint64_t enough =
        std::max<std::uint64_t>(2 * strange, std::min<std::uint64_t>(period, 2 * PeriodFinder::kContext));
    if (steady >= enough && 3 * std::size_t{period} <= n) {  // P1
      const std::uint32_t repeats = repeats_of(places, period);
      if (repeats < 2 || 4 * std::uint64_t{repeats} * period < n) return {};
      return {period, repeats, since_fewest(steps, period)};
    }
    if (steady + fresh >= enough) return {};  // P2
  }
  return {};
}

PeriodFinder::Stream* PeriodFinder::of(StreamId stream) {
  for (Stream& s : streams_)
    if (s.stream == stream) return &s;
  if (streams_.size() < kStreams) {
    streams_.emplace_back();
  } else {
    const auto least = std::min_element(streams_.begin(), streams_.end(),
                                        [](const Stream& a, const Stream& b) { return a.count < b.count; });
    *least = Stream{};
    std::iter_swap(least, streams_.end() - 1);
  }
  streams_.back().stream = stream;
  return &streams_.back();
}

bool PeriodFinder::add(Stream* s, std::int8_t step) {
  if (s->kept.size() == kKept) s->kept.erase(s->kept.begin(), s->kept.begin() + kKept / 2);
  s->kept.push_back(step);
  if (++s->count < wake_) return false;
  wake_ = ~std::uint64_t{0};
  return true;
}

bool PeriodFinder::allocated(StreamId stream, Bytes bytes, Addr at) noexcept {
  std::lock_guard lock(lock_);
  try {
    Stream* const s = of(stream);
    return add(s, s->steps.allocated(bytes, at));
  } catch (const std::bad_alloc&) {  // a step that nobody has seen: a departure
    return false;
  }
}

bool PeriodFinder::freed(StreamId stream, Addr at) noexcept {
  std::lock_guard lock(lock_);
  try {
    Stream* const s = of(stream);
    return add(s, s->steps.freed(at));
  } catch (const std::bad_alloc&) {
    return false;
  }
}

const PeriodFinder::Stream* PeriodFinder::busiest() const {
  const auto most = std::max_element(streams_.begin(), streams_.end(),
                                     [](const Stream& a, const Stream& b) { return a.count < b.count; });
  return most == streams_.end() ? nullptr : &*most;
}

std::uint64_t PeriodFinder::steps() const {
  std::lock_guard lock(lock_);
  const Stream* const s = busiest();
  return s ? s->count : 0;
}

Period PeriodFinder::find() const {
  std::vector<std::int8_t> steps;
  {
    std::lock_guard lock(lock_);
    if (const Stream* const s = busiest()) steps = s->kept;
  }
  return find_period(steps);
}

void PeriodFinder::wake_at(std::uint64_t step) {
  std::lock_guard lock(lock_);
  wake_ = step;
}

void PeriodFinder::clear() {
  std::vector<Stream> gone;
  std::lock_guard lock(lock_);
  gone.swap(streams_);
  wake_ = ~std::uint64_t{0};
}

void PeriodFinder::made_in_child() {
  new (&lock_) Lock;
  new (&streams_) decltype(streams_);  // another thread may have been changing it: left as it is, and not freed
  wake_ = ~std::uint64_t{0};
}

}  // namespace dymem
