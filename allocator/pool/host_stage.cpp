#include "pool/host_stage.hpp"

#include <algorithm>

namespace dymem {

// Large enough for copies at full speed and few system calls; small enough that the last one wastes little.
constexpr Bytes kSlab = 512 * kMiB, kSlabUnit = 2 * kMiB;

HostStage::~HostStage() {
  for (const Slab& slab : slabs_)
    if (slab.base) (void)driver_.host_free(slab.base);
}

Status HostStage::grow(Bytes bytes) {
  Bytes room = 0;
  for (const Slab& slab : slabs_) room += slab.base ? slab.size - slab.next : 0;
  const std::size_t before = slabs_.size();
  while (room < bytes) {
    const Bytes size = std::min(kSlab, round_up(bytes - room, kSlabUnit));
    void* base = nullptr;
    const Status status = driver_.host_alloc(size, &base);
    if (!status.ok()) {
      for (std::size_t i = before; i < slabs_.size(); i++) {
        (void)driver_.host_free(slabs_[i].base);
        bytes_ -= slabs_[i].size;
      }
      slabs_.resize(before);
      return status;
    }
    slabs_.push_back({static_cast<char*>(base), size, 0, 0});
    bytes_ += size;
    room += size;
  }
  return {};
}

const HostStage::Slab* HostStage::first_with_room() const {
  for (const Slab& slab : slabs_)
    if (slab.base && slab.next < slab.size) return &slab;
  return nullptr;
}

Bytes HostStage::room_here() const {
  const Slab* slab = first_with_room();
  return slab ? slab->size - slab->next : 0;
}

HostStage::Piece HostStage::take(Bytes most) {
  const Slab* found = first_with_room();
  DYMEM_CHECK(found != nullptr, "host slabs are full");
  const auto i = std::size_t(found - slabs_.data());
  Slab& slab = slabs_[i];
  const Piece piece{slab.base + slab.next, std::min(most, slab.size - slab.next), i};
  slab.next += piece.size;
  slab.held += piece.size;
  return piece;
}

void HostStage::give(const Piece& piece) {
  Slab& slab = slabs_[piece.slab];
  slab.held -= piece.size;
  if (slab.held == 0) slab.next = 0;
}

Bytes HostStage::free_idle() {
  Bytes freed = 0;
  for (Slab& slab : slabs_) {
    if (!slab.base || slab.held || !driver_.host_free(slab.base).ok()) continue;
    freed += slab.size;
    slab = {nullptr, 0, 0, 0};
  }
  bytes_ -= freed;
  while (!slabs_.empty() && !slabs_.back().base) slabs_.pop_back();
  return freed;
}

}  // namespace dymem
