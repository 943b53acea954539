#include "driver/touched_host.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

namespace dymem {
namespace {

constexpr Bytes kHugePage = 2 * kMiB, kPage = 4 * kKiB;
constexpr Bytes kPerThread = 32 * kMiB;  // less is not worth a thread
constexpr Bytes kThreadsMax = 16;

void touch(volatile char* at, Bytes size) {
  for (Bytes i = 0; i < size; i += kPage) at[i] = 0;
}

}  // namespace

int map_host(Bytes size, void** out) {
  const Bytes mapped = round_up(size, kHugePage), whole = mapped + kHugePage;
  void* got = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return errno;
  const Addr begin = reinterpret_cast<Addr>(got), base = round_up(begin, kHugePage), end = base + mapped;
  if (base > begin) munmap(got, base - begin);
  if (begin + whole > end) munmap(reinterpret_cast<void*>(end), begin + whole - end);
  *out = reinterpret_cast<void*>(base);
  (void)madvise(*out, mapped, MADV_HUGEPAGE);  // where the system has none, small ones do
  (void)madvise(*out, mapped, MADV_DONTFORK);  // pinned for this process; a child must not copy it
  return 0;
}

void unmap_host(void* base, Bytes size) { munmap(base, round_up(size, kHugePage)); }

void touch_host(void* base, Bytes size) {
  auto* const at = static_cast<volatile char*>(base);
  const Bytes cores = std::max(1u, std::thread::hardware_concurrency());
  const Bytes n = std::clamp<Bytes>(size / kPerThread, 1, std::min(cores, kThreadsMax));
  const Bytes share = round_up(size / n + 1, kHugePage);
  std::vector<std::thread> threads;
  Bytes done = 0;
  try {
    threads.reserve(n);
    for (; threads.size() + 1 < n && done + share < size; done += share)
      threads.emplace_back([at, done, share] { touch(at + done, share); });
  } catch (const std::system_error&) {  // no more threads to be had: what is left is ours
  }
  touch(at + done, size - done);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dymem
