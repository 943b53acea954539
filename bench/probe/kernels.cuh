// Kernels of the coherence probe: write a pattern, touch it (so that caches hold the old bytes), and verify it, each
// with the load or store it is named after. Loads are written as PTX, so that the compiler can neither merge nor move
// them.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace probe {

__host__ __device__ inline uint32_t pattern(uint32_t seed, uint32_t index) {
  uint32_t x = seed * 0x9E3779B9u + index * 0x85EBCA6Bu + 0x165667B1u;
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  return x ^ (x >> 13);
}

enum class Load { ca, cg, nc, acquire };

template <Load kind>
__device__ inline uint32_t load(const uint32_t* p) {
  uint32_t v;
  if constexpr (kind == Load::ca) asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  if constexpr (kind == Load::cg) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  if constexpr (kind == Load::nc) asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  if constexpr (kind == Load::acquire)
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ inline void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ inline void spin_ns(uint64_t ns) {
  uint64_t start, t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  while (t - start < ns);
}

__global__ void fill(uint32_t* p, uint32_t words, uint32_t seed) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    p[i] = pattern(seed, i);
}

// Every thread block reads everything, so that the L1 of every multiprocessor holds it.
template <Load kind>
__global__ void touch(const uint32_t* p, uint32_t words, uint32_t* sink) {
  uint32_t sum = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) sum += load<kind>(p + i);
  if (sum == 0x12345678u) *sink = sum;  // practically never: keeps the loads
}

template <Load kind>
__global__ void verify(const uint32_t* p, uint32_t words, uint32_t seed, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) wrong += load<kind>(p + i) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}

// Each word once, over the whole grid: for what is larger than an L1.
__global__ void verify_grid(const uint32_t* p, uint32_t words, uint32_t seed, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    wrong += load<Load::ca>(p + i) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}

// As fill and verify, with the seed in device memory: for graphs, whose arguments are fixed.
__global__ void next_seed(uint32_t* seed) { *seed = *seed * 1664525u + 1013904223u; }
__global__ void fill_from(uint32_t* p, uint32_t words, const uint32_t* seed, uint32_t salt) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    p[i] = pattern(*seed ^ salt, i);
}
__global__ void verify_from(const uint32_t* p, uint32_t words, const uint32_t* seed, uint32_t salt, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
    wrong += load<Load::ca>(p + i) != pattern(*seed ^ salt, i);
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void verify_bytes(const uint8_t* p, uint32_t bytes, uint8_t expected, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) wrong += p[i] != expected;
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void verify_texture(cudaTextureObject_t texture, uint32_t words, uint32_t seed, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
    wrong += tex1Dfetch<uint32_t>(texture, int(i)) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void fill_bytes_slowly(uint8_t* p, uint32_t from, uint32_t to, uint32_t seed, int rounds) {
  for (int r = 0; r < rounds; ++r)
    for (uint32_t i = from + blockIdx.x * blockDim.x + threadIdx.x; i < to; i += gridDim.x * blockDim.x)
      p[i] = uint8_t(pattern(seed + (r + 1 == rounds ? 0 : r + 7), i));
}
__global__ void verify_split(const uint8_t* p, uint32_t from, uint32_t cut, uint32_t to, uint32_t seed_low,
                             uint32_t seed_high, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = from + blockIdx.x * blockDim.x + threadIdx.x; i < to; i += gridDim.x * blockDim.x)
    wrong += p[i] != uint8_t(pattern(i < cut ? seed_low : seed_high, i));
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void add(uint32_t* p, uint32_t words, uint32_t times) {
  for (uint32_t t = 0; t < times; ++t)
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) atomicAdd(p + i, 1u);
}
__global__ void add_through_both(uint32_t* a, uint32_t* b, uint32_t words, uint32_t times) {
  uint32_t* p = (blockIdx.x & 1) ? a : b;
  for (uint32_t t = 0; t < times; ++t)
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) atomicAdd(p + i, 1u);
}
__global__ void verify_value(const uint32_t* p, uint32_t words, uint32_t expected, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) wrong += load<Load::ca>(p + i) != expected;
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void spin(uint64_t ns) { spin_ns(ns); }

// --- programmatic dependent launch. The primary lets its successor start before it has written anything.
__global__ void primary_fill(uint32_t* p, uint32_t words, uint32_t seed, uint64_t delay_ns) {
  cudaTriggerProgrammaticLaunchCompletion();
  spin_ns(delay_ns);
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    p[i] = pattern(seed, i);
}
// early_bad counts what was not yet the new pattern before the wait (informational: proves that it ran early).
template <Load kind, bool touch_before>
__global__ void secondary_verify(const uint32_t* p, uint32_t words, uint32_t seed, uint32_t* bad, uint32_t* early_bad) {
  if constexpr (touch_before) {
    uint32_t early = 0;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) early += load<kind>(p + i) != pattern(seed, i);
    if (early) atomicAdd(early_bad, early);
  }
  cudaGridDependencySynchronize();
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) wrong += load<kind>(p + i) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}
// The other hazard: the predecessor still reads through A when the successor is to write through B.
__global__ void primary_verify(const uint32_t* p, uint32_t words, uint32_t seed, uint64_t delay_ns, uint32_t* bad) {
  cudaTriggerProgrammaticLaunchCompletion();
  spin_ns(delay_ns);
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) wrong += load<Load::cg>(p + i) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}
__global__ void secondary_fill(uint32_t* p, uint32_t words, uint32_t seed) {
  cudaGridDependencySynchronize();
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    p[i] = pattern(seed, i);
}

// --- a grid already running: the reader holds the old bytes in L1, then a flag says that another grid has written.
template <Load kind>
__global__ void handshake_reader(const uint32_t* p, uint32_t words, uint32_t seed, uint32_t* flags, uint32_t* bad,
                                 uint32_t* gave_up, uint32_t* sink) {
  uint32_t sum = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) sum += load<kind>(p + i);
  if (sum == 0x12345678u) *sink = sum;
  __syncthreads();
  __shared__ uint32_t ok;
  if (threadIdx.x == 0) {
    store_release(flags, 1);
    ok = 0;
    for (int tries = 0; tries < 20'000 && !ok; ++tries) ok = load<Load::acquire>(flags + 1);
    if (!ok) atomicAdd(gave_up, 1u);
  }
  __syncthreads();
  if (!ok) return;
  __threadfence();
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) wrong += load<kind>(p + i) != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}
__global__ void handshake_writer(uint32_t* p, uint32_t words, uint32_t seed, uint32_t* flags) {
  if (threadIdx.x == 0)
    for (int tries = 0; tries < 20'000 && !load<Load::acquire>(flags); ++tries) {
    }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) p[i] = pattern(seed, i);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) store_release(flags + 1, 1);
}

// --- one thread writes through A and reads through B at once.
template <bool fence>
__global__ void same_thread(uint32_t* a, const uint32_t* b, uint32_t words, uint32_t seed, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    uint32_t old = load<Load::ca>(b + i);
    uint32_t value = pattern(seed, i) ^ (old & 0u);
    asm volatile("st.global.u32 [%0], %1;" ::"l"(a + i), "r"(value) : "memory");
    if constexpr (fence) asm volatile("fence.proxy.alias;" ::: "memory");
    wrong += load<Load::ca>(b + i) != value;
  }
  if (wrong) atomicAdd(bad, wrong);
}

// --- TMA. One thread block moves `bytes` (a multiple of 16, at most kTmaBytes) through shared memory.
constexpr uint32_t kTmaBytes = 16384;
constexpr uint32_t kTile = 32;  // 2-D tiles of 32 x 32 words

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t phase) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
}
__device__ inline void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void tma_verify(const uint32_t* p, uint32_t bytes, uint32_t seed, uint32_t* bad) {
  __shared__ alignas(128) uint32_t buffer[kTmaBytes / 4];
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) {
    barrier_init(&barrier);
    barrier_expect(&barrier, bytes);
    bulk_load(buffer, p, bytes, &barrier);
  }
  __syncthreads();
  barrier_wait(&barrier, 0);
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) wrong += buffer[i] != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void tma_fill(uint32_t* p, uint32_t bytes, uint32_t seed) {
  __shared__ alignas(128) uint32_t buffer[kTmaBytes / 4];
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) buffer[i] = pattern(seed, i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) bulk_store(p, buffer, bytes);
}

// Writes through A and, after the proxy fences, reads through B by TMA, all in one kernel (one thread block).
__global__ void tma_in_one_kernel(uint32_t* a, const uint32_t* b, uint32_t bytes, uint32_t seed, uint32_t* bad) {
  __shared__ alignas(128) uint32_t buffer[kTmaBytes / 4];
  __shared__ alignas(8) uint64_t barrier;
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) a[i] = pattern(seed, i);
  asm volatile("fence.proxy.alias;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_init(&barrier);
    barrier_expect(&barrier, bytes);
    bulk_load(buffer, b, bytes, &barrier);
  }
  __syncthreads();
  barrier_wait(&barrier, 0);
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) wrong += buffer[i] != pattern(seed, i);
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void tma_verify_2d(const __grid_constant__ CUtensorMap tensor, uint32_t row_words, uint32_t seed,
                              uint32_t* bad) {
  __shared__ alignas(128) uint32_t buffer[kTile * kTile];
  __shared__ alignas(8) uint64_t barrier;
  const int x = int(blockIdx.x * kTile), y = int(blockIdx.y * kTile);
  if (threadIdx.x == 0) {
    barrier_init(&barrier);
    barrier_expect(&barrier, sizeof buffer);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
            "r"(shared_address(buffer)),
        "l"(&tensor), "r"(x), "r"(y), "r"(shared_address(&barrier))
        : "memory");
  }
  __syncthreads();
  barrier_wait(&barrier, 0);
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < kTile * kTile; i += blockDim.x)
    wrong += buffer[i] != pattern(seed, (y + i / kTile) * row_words + x + i % kTile);
  if (wrong) atomicAdd(bad, wrong);
}

__global__ void tma_fill_2d(const __grid_constant__ CUtensorMap tensor, uint32_t row_words, uint32_t seed) {
  __shared__ alignas(128) uint32_t buffer[kTile * kTile];
  const int x = int(blockIdx.x * kTile), y = int(blockIdx.y * kTile);
  for (uint32_t i = threadIdx.x; i < kTile * kTile; i += blockDim.x)
    buffer[i] = pattern(seed, (y + i / kTile) * row_words + x + i % kTile);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&tensor),
                 "r"(x), "r"(y), "r"(shared_address(buffer))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

}  // namespace probe
