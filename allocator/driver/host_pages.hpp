// The emulation's bytes: pages of one memory file, mapped where and as often as the caller wants.
//
//   P1  A granule is a range of the file. Offsets are never reused; freed ranges are punched out, so they cost nothing.
//   P2  Reserved addresses without a view are PROT_NONE, as are views without access: touching them faults.
//   P3  A call that fails (errno is returned, 0 = done) has changed nothing.
// The kernel allows a process about 65,000 mappings; every view may need one. No lock: the owner locks.
#pragma once
#include "base/units.hpp"

namespace dymem {

class HostPages {
 public:
  explicit HostPages(Bytes granularity) : granularity_(granularity) {}
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  int reserve(Bytes size, Addr* out);  // aligned to the granularity
  void release(Addr base, Bytes size);
  int create(Bytes size, std::uint64_t* offset);
  void destroy(std::uint64_t offset, Bytes size);
  int map(Addr at, Bytes size, std::uint64_t offset, int file = -1);  // -1: our own; else one that adopt() gave
  int set_access(Addr at, Bytes size);
  int unmap(Addr at, Bytes size);
  // A descriptor of its own for the memory file, positioned at `offset`: who receives it learns with lseek() where
  // the granule begins, and maps it from there.
  int export_at(std::uint64_t offset, int* fd) const;
  // What lies behind such a descriptor: a duplicate of it for us to close, and where its `size` bytes begin.
  static int adopt(int fd, Bytes size, int* file, std::uint64_t* offset);
  // Addresses with accessible pages of their own, and where in the file these are. release() and destroy() undo it.
  int slab(Bytes size, Addr* out, std::uint64_t* offset);
  int file() const { return file_; }

 private:
  Bytes granularity_;
  int file_ = -1;          // opened with the first granule
  std::uint64_t end_ = 0;  // where the next granule begins
};

}  // namespace dymem
