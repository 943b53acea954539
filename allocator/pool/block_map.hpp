// Address -> held block: open addressing, linear probing, deletion by shifting back. One cache line a look-up.
// At most a quarter full: a deletion then looks at 1.4 slots on average, at 2.5 if half were full.
#pragma once
#include <vector>

#include "pool/block.hpp"

namespace dymem {

class BlockMap {
 public:
  BlockMap() : slots_(4096), mask_(4095) {}
  void insert(Addr at, BlockId id) {
    if (count_ * 4 >= slots_.size()) grow();
    std::size_t i = home(at);
    while (slots_[i].at) i = (i + 1) & mask_;
    slots_[i] = {at, id};
    count_++;
  }
  BlockId find(Addr at) const {
    for (std::size_t i = home(at); slots_[i].at; i = (i + 1) & mask_)
      if (slots_[i].at == at) return slots_[i].id;
    return kNoBlock;
  }
  BlockId take(Addr at) {  // find and erase
    std::size_t i = home(at);
    for (;; i = (i + 1) & mask_) {
      if (!slots_[i].at) return kNoBlock;  // first: address 0 is never held
      if (slots_[i].at == at) break;
    }
    BlockId id = slots_[i].id;
    for (std::size_t j = (i + 1) & mask_; slots_[j].at; j = (j + 1) & mask_) {
      std::size_t h = home(slots_[j].at);
      if (((j - h) & mask_) >= ((j - i) & mask_)) {
        slots_[i] = slots_[j];
        i = j;
      }
    }
    slots_[i] = {};
    count_--;
    return id;
  }
  std::size_t size() const { return count_; }
  template <class F>
  void each(F f) const {
    for (auto& s : slots_)
      if (s.at) f(s.at, s.id);
  }

 private:
  struct Slot {
    Addr at = 0;
    BlockId id = kNoBlock;
  };
  std::size_t home(Addr at) const { return std::size_t((at >> 9) * 0x9E3779B97F4A7C15ull >> 32) & mask_; }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (auto& s : old)
      if (s.at) {
        std::size_t i = home(s.at);
        while (slots_[i].at) i = (i + 1) & mask_;
        slots_[i] = s;
      }
  }
  std::vector<Slot> slots_;
  std::size_t mask_, count_ = 0;
};

}  // namespace dymem
