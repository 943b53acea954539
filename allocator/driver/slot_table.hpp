// Objects behind 64-bit ids that are never reused: a stale id is noticed instead of reaching somebody else's object.
//
//   S1  id = generation << 32 | index + 1, so 0 is never an id; erasing a slot bumps its generation.
//   S2  find() and erase() of an id that was erased, or never given, answer null / false.
// add, find and erase are O(1). No lock: the owner locks.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace dymem {

template <class T>
class SlotTable {
 public:
  std::uint64_t add(T value) {
    std::uint32_t index;
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.value = std::move(value);
    slot.used = true;
    ++size_;
    return std::uint64_t{slot.generation} << 32 | (index + 1u);
  }

  T* find(std::uint64_t id) {
    Slot* slot = slot_of(id);
    return slot ? &slot->value : nullptr;
  }

  bool erase(std::uint64_t id) {
    Slot* slot = slot_of(id);
    if (!slot) return false;
    slot->value = T{};
    slot->used = false;
    ++slot->generation;
    --size_;
    free_.push_back(static_cast<std::uint32_t>((id & 0xffffffffu) - 1));
    return true;
  }

  std::size_t size() const { return size_; }

  template <class Visit>
  void for_each(Visit visit) {
    for (Slot& slot : slots_)
      if (slot.used) visit(slot.value);
  }

 private:
  struct Slot {
    T value{};
    std::uint32_t generation = 0;
    bool used = false;
  };

  Slot* slot_of(std::uint64_t id) {
    const std::uint64_t index = (id & 0xffffffffu) - 1;  // id 0 wraps around and is out of range
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.used && slot.generation == id >> 32 ? &slot : nullptr;
  }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace dymem
