// Which pinned host memory exists, and which copies may still be using it (D9 of driver.hpp). Bookkeeping only.
// Cost: O(log n) in the number of allocations; a copy is remembered until an event or a synchronize() says it is done.
// No lock: the owner locks.
#pragma once
#include <map>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class HostRanges {
 public:
  void add(void* base, Bytes size) { ranges_.emplace(static_cast<char*>(base), size); }
  void remove(void* base) { ranges_.erase(static_cast<char*>(base)); }
  Bytes size(void* base) const {  // 0 = not one of ours
    const auto it = ranges_.find(static_cast<char*>(base));
    return it == ranges_.end() ? 0 : it->second;
  }
  bool holds(const void* at, Bytes n) const {  // all of it in one allocation
    const char* from = static_cast<const char*>(at);
    auto it = ranges_.upper_bound(const_cast<char*>(from));
    if (it == ranges_.begin()) return false;
    --it;
    const auto offset = static_cast<Bytes>(from - it->first);
    return offset <= it->second && n <= it->second - offset;
  }
  template <class F>
  void each(F f) const {
    for (const auto& [base, size] : ranges_) f(base, size);
  }

 private:
  std::map<char*, Bytes> ranges_;
};

class CopiesUnderWay {
 public:
  void started(Addr device, const void* host, Bytes n, StreamId stream) {
    copies_.push_back({device, static_cast<const char*>(host), n, stream, ++last_});
  }
  void recorded(EventId event, StreamId stream) { covers_[event] = {stream, last_}; }
  void forget(EventId event) { covers_.erase(event); }
  void completed(EventId event) {
    const auto it = covers_.find(event);
    if (it == covers_.end() || copies_.empty()) return;
    std::erase_if(copies_, [&](const Copy& c) { return c.stream == it->second.stream && c.number <= it->second.number; });
  }
  void all_done() { copies_.clear(); }
  bool use_device(Addr at, Bytes n) const {
    for (const Copy& c : copies_)
      if (c.device < at + n && at < c.device + c.size) return true;
    return false;
  }
  bool use_host(const void* base, Bytes n) const {
    const char* at = static_cast<const char*>(base);
    for (const Copy& c : copies_)
      if (c.host < at + n && at < c.host + c.size) return true;
    return false;
  }

 private:
  struct Copy {
    Addr device;
    const char* host;
    Bytes size;
    StreamId stream;
    std::uint64_t number;
  };
  struct Covered {
    StreamId stream;
    std::uint64_t number;
  };
  std::vector<Copy> copies_;
  std::unordered_map<EventId, Covered> covers_;  // what an event covers: the copies of its stream up to that number
  std::uint64_t last_ = 0;
};

}  // namespace dymem
