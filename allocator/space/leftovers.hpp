// What a rollback could not undo, because the driver refused that as well: mappings to remove, handles to release.
// Retried before anything new is mapped, and at trim; until then nothing is mapped over, and nothing is forgotten.
// Lock: the pool's. Cost: one emptiness check.
#pragma once
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class Leftovers {
 public:
  explicit Leftovers(Driver& driver) : driver_(driver) {}
  // Undo now, or remember. Mappings must be adjacent whole ones.
  void unmap(Addr at, Bytes size) {
    if (!driver_.unmap(at, size).ok()) mappings_.push_back({at, size});
  }
  void destroy(Handle handle) {
    if (!driver_.destroy(handle).ok()) handles_.push_back(handle);
  }
  // Tries again; ok when nothing is left.
  Status sweep() {
    Status last;
    std::erase_if(mappings_, [&](const Mapping& m) {
      Status s = driver_.unmap(m.at, m.size);
      if (!s.ok()) last = s;
      return s.ok();
    });
    std::erase_if(handles_, [&](Handle h) {
      Status s = driver_.destroy(h);
      if (!s.ok()) last = s;
      return s.ok();
    });
    return last;
  }
  bool empty() const { return mappings_.empty() && handles_.empty(); }

 private:
  struct Mapping {
    Addr at;
    Bytes size;
  };
  Driver& driver_;
  std::vector<Mapping> mappings_;
  std::vector<Handle> handles_;
};

}  // namespace dymem
