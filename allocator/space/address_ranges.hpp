// Address ranges handed out and taken back: first fit by address, free neighbours coalesced.
// Addresses come from the driver in pieces, on demand, since several GPUs of a process share one address space.
// Lock: the pool's. Cost: a map operation; only on slow paths (a driver call follows).
#pragma once
#include <map>
#include <vector>

#include "driver/driver.hpp"

namespace dymem {

class AddressRanges {
 public:
  AddressRanges(Driver& driver, Bytes piece) : driver_(driver), piece_(piece) {}
  ~AddressRanges();
  Status take(Bytes size, Addr* out);
  void give(Addr at, Bytes size);
  bool owns(Addr at) const;

 private:
  struct Piece {
    Addr base;
    Bytes size;
  };
  Driver& driver_;
  Bytes piece_;
  std::vector<Piece> pieces_;
  std::map<Addr, Bytes> free_;
};

}  // namespace dymem
