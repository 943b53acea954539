// See host_pages.hpp.
#include "driver/host_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace dymem {
namespace {

void* pointer(Addr at) { return reinterpret_cast<void*>(at); }

// Anonymous addresses of `size` bytes aligned to `unit`, with at least one unit of nothing behind them.
int mmap_aligned(Bytes size, Bytes unit, Addr* out) {
  const Bytes whole = size + 2 * unit;
  void* got = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return errno;
  const Addr begin = reinterpret_cast<Addr>(got);
  const Addr base = round_up(begin, unit);
  if (base > begin) munmap(got, base - begin);
  // [base, base + size + unit) is kept; what is behind it goes back.
  const Addr kept_end = base + size + unit;
  if (begin + whole > kept_end) munmap(pointer(kept_end), begin + whole - kept_end);
  *out = base;
  return 0;
}

}  // namespace

HostPages::~HostPages() {
  if (file_ >= 0) close(file_);
}

int HostPages::reserve(Bytes size, Addr* out) { return mmap_aligned(size, granularity_, out); }

void HostPages::release(Addr base, Bytes size) { munmap(pointer(base), size + granularity_); }

int HostPages::create(Bytes size, std::uint64_t* offset) {
  if (file_ < 0) {
    file_ = memfd_create("dymem-emulated-device", MFD_CLOEXEC);
    if (file_ < 0) return errno;
  }
  if (ftruncate(file_, static_cast<off_t>(end_ + size)) != 0) return errno;
  *offset = end_;
  end_ += size;
  return 0;
}

void HostPages::destroy(std::uint64_t offset, Bytes size) {
  // A failure costs host memory only; the device's figures are right either way.
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(size));
}

int HostPages::map(Addr at, Bytes size, std::uint64_t offset, int file) {
  void* got = mmap(pointer(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file < 0 ? file_ : file,
                   static_cast<off_t>(offset));
  return got == MAP_FAILED ? errno : 0;
}

int HostPages::set_access(Addr at, Bytes size) {
  return mprotect(pointer(at), size, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
}

int HostPages::unmap(Addr at, Bytes size) {
  // Mapped over rather than unmapped: the addresses stay reserved.
  void* got = mmap(pointer(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return got == MAP_FAILED ? errno : 0;
}

int HostPages::export_at(std::uint64_t offset, int* fd) const {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file_);
  const int own = open(path, O_RDWR | O_CLOEXEC);  // not dup(): a duplicate would share our position
  if (own < 0) return errno;
  if (lseek(own, static_cast<off_t>(offset), SEEK_SET) < 0) {
    const int error = errno;
    close(own);
    return error;
  }
  *fd = own;
  return 0;
}

int HostPages::adopt(int fd, Bytes size, int* file, std::uint64_t* offset) {
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return errno;
  const off_t begin = lseek(fd, 0, SEEK_CUR);
  if (begin < 0) return errno;
  if (facts.st_size < begin || static_cast<Bytes>(facts.st_size - begin) < size) return EINVAL;
  *file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (*file < 0) return errno;
  *offset = static_cast<std::uint64_t>(begin);
  return 0;
}

int HostPages::slab(Bytes size, Addr* out, std::uint64_t* offset) {
  int error = mmap_aligned(size, granularity_, out);
  if (error) return error;
  error = create(size, offset);
  if (!error) {
    error = map(*out, size, *offset);
    if (!error) error = set_access(*out, size);
    if (error) destroy(*offset, size);
  }
  if (error) release(*out, size);
  return error;
}

}  // namespace dymem
