// See searching.hpp (R1..R4).
#include "torch/searching.hpp"

#include <mutex>

#include "torch/switching.hpp"

namespace dymem {

void Searching::forget_in_child() {
  for (PeriodFinder& finder : searching().finders_) finder.made_in_child();
}

Searching::Searching() { off_in_children<Watch::searching, forget_in_child>(); }

Searching& searching() {
  static auto* const instance = new Searching;
  return *instance;
}

void Searching::start(void (*waker)()) {
  std::lock_guard lock(switching());
  waker_ = waker;
  set_watching(Watch::searching, true);
}

void Searching::stop() {
  std::lock_guard lock(switching());
  set_watching(Watch::searching, false);
  for (PeriodFinder& finder : finders_) finder.clear();
}

bool Searching::on() const { return watching() & Watch::searching; }

int Searching::busiest() const {
  int most = 0;
  for (int device = 1; device < kDevicesMax; device++)
    if (finders_[device].steps() > finders_[most].steps()) most = device;
  return most;
}

std::uint64_t Searching::steps() const { return finders_[busiest()].steps(); }

Period Searching::find() const { return finders_[busiest()].find(); }

void Searching::wake_at(std::uint64_t step) {
  for (PeriodFinder& finder : finders_) finder.wake_at(step);
}

void Searching::wake() noexcept {
  if (auto* const waker = waker_.load()) waker();
}

void Searching::allocated(int device, StreamId stream, Bytes bytes, const void* pointer) noexcept {
  if (finders_[device].allocated(stream, bytes, reinterpret_cast<Addr>(pointer))) wake();
}

void Searching::freeing(int device, StreamId stream, Addr at) noexcept {
  if (finders_[device].freed(stream, at)) wake();
}

}  // namespace dymem
