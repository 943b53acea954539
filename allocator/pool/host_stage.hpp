// Where contents wait on the host: pinned slabs, kept from one sleep to the next, since pinning costs more than copying.
//
//   C1  A piece lies in one slab. Pieces taken one after the other are adjacent, until a slab is full.
//   C2  A slab whose pieces were all given back is used from its start again; free_idle() gives such slabs to the system.
// Lock: the pool's. Cost: take() and give() a few steps a slab; grow() pins.
#pragma once
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class HostStage {
 public:
  explicit HostStage(Driver& driver) : driver_(driver) {}
  ~HostStage();

  struct Piece {
    char* at = nullptr;
    Bytes size = 0;
    std::size_t slab = 0;
  };
  Status grow(Bytes bytes);  // so that pieces of that many bytes together can be taken; or nothing is changed
  Piece take(Bytes most);    // a piece of at most that many bytes; grow() has made room for it
  void give(const Piece& piece);
  Bytes room_here() const;   // bytes that the next pieces can have in one slab
  Bytes bytes() const { return bytes_; }  // pinned
  Bytes free_idle();         // returns the bytes given to the system

 private:
  struct Slab {
    char* base;  // nullptr: given to the system
    Bytes size, next, held;
  };
  const Slab* first_with_room() const;
  Driver& driver_;
  std::vector<Slab> slabs_;
  Bytes bytes_ = 0;
};

}  // namespace dymem
