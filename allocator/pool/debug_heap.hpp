// Debug mode: every block has granules and a mapping of its own, between unmapped guard pages, ending where the mapping
// ends. Reads and writes past a block, and after its free, fault in the kernel that does them, where pooled and aliased
// memory would hide them from compute-sanitizer. Slow and hungry on purpose; freeing waits for the GPU.
// Lock: the pool's.
#pragma once
#include <unordered_map>

#include "driver/driver.hpp"
#include "space/address_ranges.hpp"
#include "space/leftovers.hpp"

namespace dymem {

class DebugHeap {
 public:
  explicit DebugHeap(Driver& driver);
  ~DebugHeap();
  // `size` is a multiple of 512 B. out_of_memory if the device has no more.
  Status take(Bytes size, Addr* out);
  void give(Addr at);  // no work uses the block any more
  Addr mapping(Addr at, Handle* handle, Bytes* size) const;  // of a block: where it begins, and what is mapped there
  Bytes reserved() const { return reserved_; }
  std::uint64_t mappings() const { return mappings_.size(); }
  std::uint64_t created() const { return created_; }
  bool owns(Addr at) const { return ranges_.owns(at); }

 private:
  struct Mapping {
    Addr base;
    Bytes mapped, span;
    Handle handle;
  };
  Driver& driver_;
  AddressRanges ranges_;
  Leftovers leftovers_;
  std::unordered_map<Addr, Mapping> mappings_;
  Bytes reserved_ = 0;
  std::uint64_t created_ = 0;
};

}  // namespace dymem
