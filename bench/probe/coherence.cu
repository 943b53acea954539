// Does the same granule, mapped at two addresses, behave as one piece of memory for work in stream order?
//
// Every case writes random patterns through one address and verifies them through another, thousands of times without
// waiting in between, the caches holding the old bytes from just before. Where it says something, the same case runs
// with one address ("same address"): what fails there too is not the aliasing's doing.
//
// Cases marked informational show what CUDA does not promise (readers that do not wait); they never fail the run.
//   coherence OUTPUT_FOLDER [trials]      exit 0: all required cases passed; 1: one failed; 2: it could not run
#include <cstring>
#include <functional>
#include <random>

#include "kernels.cuh"
#include "probe.hpp"

namespace probe {
namespace {

struct Case {
  std::string group, name;
  bool required = true;
  int trials = 0, failed = 0;
  unsigned long long wrong = 0;
  double seconds = 0;
  std::string note;
};

class Coherence {
 public:
  explicit Coherence(int trials) : trials_(trials), granule_(4) {
    CHECKED(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECKED(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    CHECKED(cudaMalloc(&bad_, kMaxTrials * sizeof(uint32_t)));
    CHECKED(cudaMalloc(&extra_, 2 * kMaxTrials * sizeof(uint32_t)));
    CHECKED(cudaMalloc(&sink_, sizeof(uint32_t)));
    CHECKED(cudaMalloc(&plain_, kGranule));
    CHECKED(cudaHostAlloc(&host_, kHostSlots * kSlotBytes, cudaHostAllocDefault));
    cudaDeviceProp prop{};
    CHECKED(cudaGetDeviceProperties(&prop, 0));
    blocks_ = prop.multiProcessorCount;
  }

  int run_all(const std::string& folder) {
    plain_kernels();
    copy_engines();
    tma();
    dependent_launch();
    graph();
    cross_stream();
    texture();
    atomics();
    shared_granules();
    already_running();
    peers();
    return report(folder);
  }

 private:
  static constexpr int kMaxTrials = 20000;
  static constexpr int kHostSlots = 64;
  static constexpr size_t kSlotBytes = 64 * 1024;
  using Body = std::function<void(int trial, uint32_t* bad)>;

  // A piece of the granule for one trial: a random multiple of 512 B, at most 64 KiB, at a random multiple of 512 B.
  struct Piece {
    size_t offset;
    uint32_t words;
    uint32_t bytes() const { return words * 4; }
  };
  Piece piece(size_t max_bytes = kSlotBytes) {
    const size_t units = 1 + random_() % (max_bytes / 512);
    const size_t places = kGranule / 512 - units + 1;
    return {random_() % places * 512, uint32_t(units * 128)};
  }
  uint32_t seed() { return uint32_t(random_()); }

  Case& run(const std::string& group, const std::string& name, const Body& body, bool required = true,
            int trials = 0) {
    Case result{group, name, required};
    result.trials = std::min(trials ? trials : trials_, kMaxTrials);
    CHECKED(cudaMemsetAsync(bad_, 0, result.trials * sizeof(uint32_t), stream_));
    CHECKED(cudaMemsetAsync(extra_, 0, 2 * result.trials * sizeof(uint32_t), stream_));
    CHECKED(cudaStreamSynchronize(stream_));
    host_wrong_.assign(result.trials, 0);
    const double start = now_us();
    for (int t = 0; t < result.trials; ++t) body(t, bad_ + t);
    CHECKED(cudaDeviceSynchronize());
    result.seconds = (now_us() - start) / 1e6;
    std::vector<uint32_t> bad(result.trials);
    CHECKED(cudaMemcpy(bad.data(), bad_, bad.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (int t = 0; t < result.trials; ++t) {
      const uint64_t wrong = uint64_t(bad[t]) + host_wrong_[t];
      result.wrong += wrong;
      result.failed += wrong != 0;
    }
    std::printf("  %-17s %-62s %6d trials, %6d failed%s\n", group.c_str(), name.c_str(), result.trials, result.failed,
                required ? "" : "   (informational)");
    std::fflush(stdout);
    cases_.push_back(result);
    return cases_.back();
  }

  uint64_t extra_sum(int from, int count) {
    std::vector<uint32_t> values(count);
    CHECKED(cudaMemcpy(values.data(), extra_ + from, count * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    uint64_t trials_with = 0;
    for (uint32_t v : values) trials_with += v != 0;
    return trials_with;
  }

  void write(uint32_t* at, const Piece& p, uint32_t s, cudaStream_t stream) {
    fill<<<blocks_, 128, 0, stream>>>(at, p.words, s);
    LAUNCHED();
  }
  template <Load kind>
  void hold(const uint32_t* at, const Piece& p, cudaStream_t stream) {
    touch<kind><<<blocks_, 256, 0, stream>>>(at, p.words, sink_);
    LAUNCHED();
  }
  template <Load kind>
  void expect(const uint32_t* at, const Piece& p, uint32_t s, uint32_t* bad, cudaStream_t stream) {
    verify<kind><<<blocks_, 256, 0, stream>>>(at, p.words, s, bad);
    LAUNCHED();
  }

  // (a), (c): write through one view, read through another that every L1 held just before.
  template <Load kind>
  void plain_kernel(const std::string& load, int from, int to) {
    run("kernels", (from == to ? "same address, " : "write A, read B, ") + load, [=, this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed();
      hold<kind>(granule_.words(to, p.offset), p, stream_);
      write(granule_.words(from, p.offset), p, s, stream_);
      expect<kind>(granule_.words(to, p.offset), p, s, bad, stream_);
    });
  }
  void plain_kernels() {
    plain_kernel<Load::ca>("ld.ca (L1)", 0, 1);
    plain_kernel<Load::cg>("ld.cg (L2)", 0, 1);
    plain_kernel<Load::nc>("ld.nc (__ldg)", 0, 1);
    plain_kernel<Load::ca>("ld.ca (L1)", 0, 0);
    plain_kernel<Load::nc>("ld.nc (__ldg)", 0, 0);
    run("kernels", "ping-pong: A -> B -> C -> D, each overwriting", [this](int, uint32_t* bad) {
      const Piece p = piece();
      for (int view = 0; view < 4; ++view) {
        const uint32_t s = seed();
        write(granule_.words(view, p.offset), p, s, stream_);
        expect<Load::ca>(granule_.words((view + 1) % 4, p.offset), p, s, bad, stream_);
        expect<Load::nc>(granule_.words((view + 2) % 4, p.offset), p, s, bad, stream_);
      }
    });
    run("kernels", "whole 2 MiB granule", [this](int, uint32_t* bad) {
      const Piece p{0, uint32_t(kGranule / 4)};
      const uint32_t s = seed();
      write(granule_.words(0), p, s, stream_);
      verify_whole(granule_.words(1), p.words, s, bad);
    }, true, std::min(trials_, 2000));
  }

  uint32_t* slot(int t) { return host_ + size_t(t % kHostSlots) * kSlotBytes / 4; }

  // (b)
  void copy_engines() {
    run("copies", "host to device through A, kernel reads B", [this](int t, uint32_t* bad) {
      if (t % kHostSlots == 0) CHECKED(cudaStreamSynchronize(stream_));
      const Piece p = piece();
      const uint32_t s = seed();
      for (uint32_t i = 0; i < p.words; ++i) slot(t)[i] = pattern(s, i);
      hold<Load::ca>(granule_.words(1, p.offset), p, stream_);
      CHECKED(cudaMemcpyAsync(granule_.words(0, p.offset), slot(t), p.bytes(), cudaMemcpyHostToDevice, stream_));
      expect<Load::ca>(granule_.words(1, p.offset), p, s, bad, stream_);
    });
    std::vector<std::pair<uint32_t, Piece>> sent(kHostSlots);
    run("copies", "kernel writes A, device to host through B", [&, this](int t, uint32_t*) {
      const Piece p = piece();
      const uint32_t s = seed();
      write(granule_.words(0, p.offset), p, s, stream_);
      CHECKED(cudaMemcpyAsync(slot(t), granule_.words(1, p.offset), p.bytes(), cudaMemcpyDeviceToHost, stream_));
      sent[t % kHostSlots] = {s, p};
      if (t % kHostSlots != kHostSlots - 1 && t + 1 != trials_) return;
      CHECKED(cudaStreamSynchronize(stream_));
      for (int back = t - t % kHostSlots; back <= t; ++back)
        for (uint32_t i = 0; i < sent[back % kHostSlots].second.words; ++i)
          host_wrong_[back] += slot(back)[i] != pattern(sent[back % kHostSlots].first, i);
    });
    // Large enough that the copy engines, not inline writes, move it.
    uint32_t* whole = nullptr;
    const Piece all{0, uint32_t(kGranule / 4)};
    CHECKED(cudaHostAlloc(&whole, kGranule, cudaHostAllocDefault));
    run("copies", "2 MiB host to device through A, kernel reads B", [&, this](int, uint32_t* bad) {
      CHECKED(cudaStreamSynchronize(stream_));
      const uint32_t s = seed();
      for (uint32_t i = 0; i < all.words; ++i) whole[i] = pattern(s, i);
      CHECKED(cudaMemcpyAsync(granule_.words(0), whole, kGranule, cudaMemcpyHostToDevice, stream_));
      verify_whole(granule_.words(1), all.words, s, bad);
    }, true, std::min(trials_, 200));
    run("copies", "kernel writes A, 2 MiB device to host through B", [&, this](int t, uint32_t*) {
      const uint32_t s = seed();
      write(granule_.words(0), all, s, stream_);
      CHECKED(cudaMemcpyAsync(whole, granule_.words(1), kGranule, cudaMemcpyDeviceToHost, stream_));
      CHECKED(cudaStreamSynchronize(stream_));
      for (uint32_t i = 0; i < all.words; ++i) host_wrong_[t] += whole[i] != pattern(s, i);
    }, true, std::min(trials_, 200));
    CHECKED(cudaFreeHost(whole));
    run("copies", "kernel writes A, device to device from B, kernel reads", [this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed();
      write(granule_.words(0, p.offset), p, s, stream_);
      CHECKED(cudaMemcpyAsync(plain_, granule_.words(1, p.offset), p.bytes(), cudaMemcpyDeviceToDevice, stream_));
      expect<Load::ca>(plain_, p, s, bad, stream_);
    });
    run("copies", "device to device into A, kernel reads B", [this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed();
      write(plain_, p, s, stream_);
      hold<Load::ca>(granule_.words(1, p.offset), p, stream_);
      CHECKED(cudaMemcpyAsync(granule_.words(0, p.offset), plain_, p.bytes(), cudaMemcpyDeviceToDevice, stream_));
      expect<Load::ca>(granule_.words(1, p.offset), p, s, bad, stream_);
    });
    run("copies", "memset through A, kernel reads B", [this](int t, uint32_t* bad) {
      const Piece p = piece();
      hold<Load::ca>(granule_.words(1, p.offset), p, stream_);
      CHECKED(cudaMemsetAsync(granule_.words(0, p.offset), t & 0xff, p.bytes(), stream_));
      verify_bytes<<<blocks_, 256, 0, stream_>>>(reinterpret_cast<uint8_t*>(granule_.words(1, p.offset)), p.bytes(),
                                                 uint8_t(t), bad);
      LAUNCHED();
    });
  }

  // (d)
  void tma() {
    for (int to : {1, 0}) {
      run("tma", to ? "kernel writes A, bulk copy reads B" : "same address, kernel writes, bulk copy reads",
          [=, this](int, uint32_t* bad) {
            const Piece p = piece(kTmaBytes);
            const uint32_t s = seed();
            tma_verify<<<blocks_, 128, 0, stream_>>>(granule_.words(to, p.offset), p.bytes(), s, sink_);  // holds the old bytes
            LAUNCHED();
            write(granule_.words(0, p.offset), p, s, stream_);
            tma_verify<<<blocks_, 128, 0, stream_>>>(granule_.words(to, p.offset), p.bytes(), s, bad);
            LAUNCHED();
          });
    }
    run("tma", "bulk copy writes A, kernel reads B (ld.ca)", [this](int, uint32_t* bad) {
      const Piece p = piece(kTmaBytes);
      const uint32_t s = seed();
      hold<Load::ca>(granule_.words(1, p.offset), p, stream_);
      tma_fill<<<1, 256, 0, stream_>>>(granule_.words(0, p.offset), p.bytes(), s);
      LAUNCHED();
      expect<Load::ca>(granule_.words(1, p.offset), p, s, bad, stream_);
    });
    run("tma", "bulk copy writes A, bulk copy reads B", [this](int, uint32_t* bad) {
      const Piece p = piece(kTmaBytes);
      const uint32_t s = seed();
      tma_fill<<<1, 256, 0, stream_>>>(granule_.words(0, p.offset), p.bytes(), s);
      LAUNCHED();
      tma_verify<<<blocks_, 128, 0, stream_>>>(granule_.words(1, p.offset), p.bytes(), s, bad);
      LAUNCHED();
    });
    // 2-D tensor maps over 128 rows of 128 words, one for each view and for eight places in the granule.
    constexpr uint32_t kRow = 128, kRows = 128;
    constexpr size_t kPlaces = 8, kStep = kGranule / kPlaces;
    std::vector<CUtensorMap> maps(2 * kPlaces);
    for (int view = 0; view < 2; ++view)
      for (size_t place = 0; place < kPlaces; ++place) {
        const cuuint64_t dims[2] = {kRow, kRows}, strides[1] = {kRow * 4};
        const cuuint32_t box[2] = {kTile, kTile}, steps[2] = {1, 1};
        CHECKED(driver::cuTensorMapEncodeTiled(
            &maps[view * kPlaces + place], CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, granule_.words(view, place * kStep), dims,
            strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
      }
    const dim3 tiles(kRow / kTile, kRows / kTile);
    const Piece whole{0, kRow * kRows};
    run("tma", "2-D tensor map: kernel writes A, tiles read B", [&, this](int t, uint32_t* bad) {
      const size_t place = t % kPlaces;
      const uint32_t s = seed();
      write(granule_.words(0, place * kStep), whole, s, stream_);
      tma_verify_2d<<<tiles, 128, 0, stream_>>>(maps[kPlaces + place], kRow, s, bad);
      LAUNCHED();
    });
    run("tma", "2-D tensor map: tiles write A, kernel reads B (ld.ca)", [&, this](int t, uint32_t* bad) {
      const size_t place = t % kPlaces;
      const uint32_t s = seed();
      hold<Load::ca>(granule_.words(1, place * kStep), whole, stream_);
      tma_fill_2d<<<tiles, 128, 0, stream_>>>(maps[place], kRow, s);
      LAUNCHED();
      expect<Load::ca>(granule_.words(1, place * kStep), whole, s, bad, stream_);
    });
    run("tma", "one kernel: writes A, fence.proxy.alias, bulk copy reads B", [this](int, uint32_t* bad) {
      const Piece p = piece(kTmaBytes);
      tma_in_one_kernel<<<1, 256, 0, stream_>>>(granule_.words(0, p.offset), granule_.words(1, p.offset), p.bytes(),
                                                seed(), bad);
      LAUNCHED();
    }, false);
  }

  template <typename... Parameters, typename... Arguments>
  void launch_dependent(void (*kernel)(Parameters...), int blocks, int threads, Arguments... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECKED(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  }

  // (e). The primary is small and lets the secondary start at once, so both are resident together.
  template <Load kind, bool touch_before>
  void dependent_pair(const std::string& name, int from, int to, bool required) {
    Case& result = run("dependent launch", name, [=, this](int t, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed();
      hold<kind>(granule_.words(to, p.offset), p, stream_);
      primary_fill<<<16, 128, 0, stream_>>>(granule_.words(from, p.offset), p.words, s, 4000);
      LAUNCHED();
      launch_dependent(secondary_verify<kind, touch_before>, blocks_ / 2, 256,
                       (const uint32_t*)granule_.words(to, p.offset), p.words, s, bad, extra_ + t);
    }, required);
    if (touch_before)
      result.note = "secondary saw old bytes before its wait in " + std::to_string(extra_sum(0, result.trials)) +
                    " trials (expected: it ran early)";
  }
  void dependent_launch() {
    dependent_pair<Load::ca, false>("write A, wait, read B, ld.ca", 0, 1, true);
    dependent_pair<Load::cg, false>("write A, wait, read B, ld.cg", 0, 1, true);
    dependent_pair<Load::nc, false>("write A, wait, read B, ld.nc", 0, 1, true);
    dependent_pair<Load::ca, true>("write A; read B early, wait, read B again, ld.ca", 0, 1, false);
    dependent_pair<Load::cg, true>("write A; read B early, wait, read B again, ld.cg", 0, 1, false);
    dependent_pair<Load::nc, true>("write A; read B early, wait, read B again, ld.nc", 0, 1, false);
    dependent_pair<Load::ca, true>("same address; read early, wait, read again, ld.ca", 0, 0, false);
    dependent_pair<Load::nc, true>("same address; read early, wait, read again, ld.nc", 0, 0, false);
    run("dependent launch", "primary reads A late, secondary waits, overwrites B", [this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t before = seed(), after = seed();
      write(granule_.words(0, p.offset), p, before, stream_);
      primary_verify<<<16, 128, 0, stream_>>>(granule_.words(0, p.offset), p.words, before, 4000, bad);
      LAUNCHED();
      launch_dependent(secondary_fill, blocks_ / 2, 128, granule_.words(1, p.offset), p.words, after);
      expect<Load::ca>(granule_.words(0, p.offset), p, after, bad, stream_);
    });
  }

  // (f)
  void graph() {
    uint32_t* seed_cell = extra_ + kMaxTrials;  // not used by run() counters below
    const Piece p{512 * 37, kSlotBytes / 4};
    uint32_t *a = granule_.words(0, p.offset), *b = granule_.words(1, p.offset), *c = granule_.words(2, p.offset);
    uint32_t* total = nullptr;
    CHECKED(cudaMalloc(&total, sizeof(uint32_t)));
    CHECKED(cudaMemset(total, 0, sizeof(uint32_t)));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECKED(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    CHECKED(cudaMemsetAsync(total, 0, sizeof(uint32_t), stream_));
    next_seed<<<1, 1, 0, stream_>>>(seed_cell);
    hold<Load::ca>(b, p, stream_);
    fill_from<<<blocks_, 128, 0, stream_>>>(a, p.words, seed_cell, 0);
    verify_from<<<blocks_, 256, 0, stream_>>>(b, p.words, seed_cell, 0, total);
    CHECKED(cudaMemcpyAsync(plain_, b, p.bytes(), cudaMemcpyDeviceToDevice, stream_));
    fill_from<<<blocks_, 128, 0, stream_>>>(c, p.words, seed_cell, 0x5a5a);
    verify_from<<<blocks_, 256, 0, stream_>>>(plain_, p.words, seed_cell, 0, total);
    CHECKED(cudaMemcpyAsync(a, plain_, p.bytes(), cudaMemcpyDeviceToDevice, stream_));
    verify_from<<<blocks_, 256, 0, stream_>>>(b, p.words, seed_cell, 0, total);
    CHECKED(cudaMemsetAsync(c, 0x11, p.bytes(), stream_));
    verify_bytes<<<blocks_, 256, 0, stream_>>>(reinterpret_cast<uint8_t*>(a), p.bytes(), 0x11, total);
    CHECKED(cudaStreamEndCapture(stream_, &graph));
    CHECKED(cudaGraphInstantiate(&executable, graph, 0));
    run("graph", "nodes write and read A, B, C; aliases used between replays", [&, this](int, uint32_t* bad) {
      CHECKED(cudaGraphLaunch(executable, stream_));
      CHECKED(cudaMemcpyAsync(bad, total, sizeof(uint32_t), cudaMemcpyDeviceToDevice, stream_));
      const uint32_t s = seed();
      write(b, p, s, stream_);
      expect<Load::ca>(a, p, s, bad, stream_);
      expect<Load::nc>(c, p, s, bad, stream_);
    });
    CHECKED(cudaGraphExecDestroy(executable));
    CHECKED(cudaGraphDestroy(graph));
    CHECKED(cudaFree(total));
  }

  // (g)
  void cross_stream() {
    cudaEvent_t forth, back;
    CHECKED(cudaEventCreateWithFlags(&forth, cudaEventDisableTiming));
    CHECKED(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
    run("streams", "write A on one, event, read B on the other, and back", [&, this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed(), s2 = seed();
      hold<Load::ca>(granule_.words(1, p.offset), p, other_);
      CHECKED(cudaEventRecord(back, other_));
      CHECKED(cudaStreamWaitEvent(stream_, back, 0));
      write(granule_.words(0, p.offset), p, s, stream_);
      CHECKED(cudaEventRecord(forth, stream_));
      CHECKED(cudaStreamWaitEvent(other_, forth, 0));
      expect<Load::ca>(granule_.words(1, p.offset), p, s, bad, other_);
      write(granule_.words(2, p.offset), p, s2, other_);
      CHECKED(cudaEventRecord(back, other_));
      CHECKED(cudaStreamWaitEvent(stream_, back, 0));
      expect<Load::ca>(granule_.words(0, p.offset), p, s2, bad, stream_);
    });
    CHECKED(cudaEventDestroy(forth));
    CHECKED(cudaEventDestroy(back));
  }

  // (h)
  void texture() {
    const Piece p{4096, kSlotBytes / 4};
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = granule_.words(1, p.offset);
    resource.res.linear.desc = cudaCreateChannelDesc<uint32_t>();
    resource.res.linear.sizeInBytes = p.bytes();
    cudaTextureDesc description{};
    description.readMode = cudaReadModeElementType;
    cudaTextureObject_t object = 0;
    CHECKED(cudaCreateTextureObject(&object, &resource, &description, nullptr));
    run("texture", "write A, texture object over B", [&, this](int, uint32_t* bad) {
      const uint32_t s = seed();
      verify_texture<<<blocks_, 256, 0, stream_>>>(object, p.words, s, sink_);  // holds the old bytes
      LAUNCHED();
      write(granule_.words(0, p.offset), p, s, stream_);
      verify_texture<<<blocks_, 256, 0, stream_>>>(object, p.words, s, bad);
      LAUNCHED();
    });
    CHECKED(cudaDestroyTextureObject(object));
  }

  // (i)
  void atomics() {
    run("atomics", "successive kernels add through A, then B, read through C", [this](int, uint32_t* bad) {
      const Piece p = piece(8192);
      CHECKED(cudaMemsetAsync(granule_.words(0, p.offset), 0, p.bytes(), stream_));
      add<<<blocks_, 128, 0, stream_>>>(granule_.words(0, p.offset), p.words, 2);
      add<<<blocks_, 128, 0, stream_>>>(granule_.words(1, p.offset), p.words, 3);
      verify_value<<<blocks_, 256, 0, stream_>>>(granule_.words(2, p.offset), p.words, uint32_t(blocks_) * 5, bad);
      LAUNCHED();
    });
    run("atomics", "one kernel adds through A and B at once", [this](int, uint32_t* bad) {
      const Piece p = piece(8192);
      CHECKED(cudaMemsetAsync(granule_.words(0, p.offset), 0, p.bytes(), stream_));
      add_through_both<<<blocks_, 128, 0, stream_>>>(granule_.words(0, p.offset), granule_.words(1, p.offset), p.words,
                                                     4);
      verify_value<<<blocks_, 256, 0, stream_>>>(granule_.words(2, p.offset), p.words, uint32_t(blocks_) * 4, bad);
      LAUNCHED();
    }, false);
  }

  // (j): bytes of one granule used by two streams through two views at the same time.
  void shared_granule(const std::string& name, size_t unit, bool required) {
    cudaEvent_t start, done;
    CHECKED(cudaEventCreateWithFlags(&start, cudaEventDisableTiming));
    CHECKED(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    run("shared granule", name, [=, this](int, uint32_t* bad) {
      const uint32_t size = 32768;
      const uint32_t base = uint32_t(random_() % (kGranule / 512 - size / 512)) * 512;
      const uint32_t cut = uint32_t((1 + random_() % (size / unit - 1)) * unit);
      const uint32_t low = seed(), high = seed();
      auto bytes = [&](int view) { return reinterpret_cast<uint8_t*>(granule_.words(view, base)); };
      CHECKED(cudaEventRecord(start, stream_));
      CHECKED(cudaStreamWaitEvent(other_, start, 0));
      fill_bytes_slowly<<<8, 256, 0, stream_>>>(bytes(0), 0, cut, low, 3);
      fill_bytes_slowly<<<8, 256, 0, other_>>>(bytes(1), cut, size, high, 3);
      LAUNCHED();
      CHECKED(cudaEventRecord(done, other_));
      CHECKED(cudaStreamWaitEvent(stream_, done, 0));
      for (int view : {0, 1, 2}) {
        verify_split<<<blocks_, 256, 0, stream_>>>(bytes(view), 0, cut, size, low, high, bad);
        LAUNCHED();
      }
    }, required);
    CHECKED(cudaEventDestroy(start));
    CHECKED(cudaEventDestroy(done));
  }

  void shared_granules() {
    shared_granule("two streams write below A / above B, cut at 512 B", 512, true);
    shared_granule("two streams write below A / above B, cut at 32 B", 32, false);
    shared_granule("two streams write below A / above B, cut at any byte", 1, false);

    // A view is made, used on another stream and removed while a kernel runs on the granule's other bytes.
    cudaEvent_t used;
    CHECKED(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    const CUdeviceptr spare = reserve(kGranule);
    int overlapped = 0;
    Case& mapped = run("shared granule", "new view mapped, written, unmapped beside a running kernel",
        [&, this](int, uint32_t* bad) {
          const uint32_t cut = uint32_t((1 + random_() % (kGranule / 512 - 1)) * 512), low = seed(), high = seed();
          CHECKED(cudaStreamSynchronize(stream_));
          spin<<<1, 1, 0, stream_>>>(200'000);
          fill_bytes_slowly<<<64, 256, 0, stream_>>>(reinterpret_cast<uint8_t*>(granule_.words(0)), 0, cut, low, 2);
          LAUNCHED();
          map(spare, kGranule, granule_.handle());
          set_access(spare, kGranule);
          fill_bytes_slowly<<<64, 256, 0, other_>>>(reinterpret_cast<uint8_t*>(spare), cut, kGranule, high, 1);
          LAUNCHED();
          CHECKED(cudaEventRecord(used, other_));
          CHECKED(cudaStreamSynchronize(other_));
          overlapped += still_running(stream_);
          CHECKED(driver::cuMemUnmap(spare, kGranule));
          CHECKED(cudaStreamWaitEvent(stream_, used, 0));
          verify_split<<<blocks_, 256, 0, stream_>>>(reinterpret_cast<uint8_t*>(granule_.words(1)), 0, cut, kGranule,
                                                     low, high, bad);
          LAUNCHED();
        }, true, std::min(trials_, 1000));
    mapped.note = "the kernel still ran when the view was removed in " + std::to_string(overlapped) + " trials";
    CHECKED(driver::cuMemAddressFree(spare, kGranule));
    CHECKED(cudaEventDestroy(used));

    // One region stitched from four granules in another order; copies cross the seams.
    constexpr int kParts = 4;
    std::vector<CUmemGenericAllocationHandle> handles;
    const CUdeviceptr straight = reserve(kParts * kGranule), stitched = reserve(kParts * kGranule);
    const int order[kParts] = {2, 0, 3, 1};
    for (int i = 0; i < kParts; ++i) {
      handles.push_back(create(kGranule));
      map(straight + i * kGranule, kGranule, handles[i]);
    }
    for (int i = 0; i < kParts; ++i) map(stitched + i * kGranule, kGranule, handles[order[i]]);
    set_access(straight, kParts * kGranule);
    set_access(stitched, kParts * kGranule);
    uint8_t *region = nullptr;
    CHECKED(cudaMalloc(&region, kParts * kGranule));
    run("shared granule", "one copy across a stitched region's seams, read through home", [&, this](int, uint32_t* bad) {
      const uint32_t s = seed();
      fill<<<blocks_, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(region), kParts * kGranule / 4, s);
      LAUNCHED();
      CHECKED(cudaMemcpyAsync(reinterpret_cast<void*>(stitched), region, kParts * kGranule, cudaMemcpyDeviceToDevice,
                              stream_));
      CHECKED(cudaMemsetAsync(region, 0, kParts * kGranule, stream_));
      for (int i = 0; i < kParts; ++i)
        CHECKED(cudaMemcpyAsync(region + i * kGranule, reinterpret_cast<void*>(straight + order[i] * kGranule), kGranule,
                                cudaMemcpyDeviceToDevice, stream_));
      verify_whole(reinterpret_cast<uint32_t*>(region), kParts * kGranule / 4, s, bad);
    }, true, std::min(trials_, 1000));
    CHECKED(driver::cuMemUnmap(straight, kParts * kGranule));
    CHECKED(driver::cuMemUnmap(stitched, kParts * kGranule));
    for (auto handle : handles) CHECKED(driver::cuMemRelease(handle));
    CHECKED(driver::cuMemAddressFree(straight, kParts * kGranule));
    CHECKED(driver::cuMemAddressFree(stitched, kParts * kGranule));
    CHECKED(cudaFree(region));
  }

  void verify_whole(const uint32_t* at, uint32_t words, uint32_t s, uint32_t* bad) {
    verify_grid<<<blocks_ * 4, 256, 0, stream_>>>(at, words, s, bad);
    LAUNCHED();
  }

  // What CUDA does not promise: grids already running, and one thread through two addresses.
  template <Load kind>
  void handshake(const std::string& name, int from, int to) {
    uint32_t* gave_up = nullptr;
    CHECKED(cudaMalloc(&gave_up, sizeof(uint32_t)));
    CHECKED(cudaMemset(gave_up, 0, sizeof(uint32_t)));
    Case& result = run("already running", name, [=, this](int t, uint32_t* bad) {
      const Piece p = piece(8192);
      const uint32_t s = seed();
      CHECKED(cudaStreamSynchronize(stream_));
      CHECKED(cudaStreamSynchronize(other_));
      handshake_reader<kind><<<1, 128, 0, stream_>>>(granule_.words(to, p.offset), p.words, s, extra_ + 2 * t, bad,
                                                     gave_up, sink_);
      handshake_writer<<<1, 128, 0, other_>>>(granule_.words(from, p.offset), p.words, s, extra_ + 2 * t);
      LAUNCHED();
    }, false, std::min(trials_, 1000));
    uint32_t count = 0;
    CHECKED(cudaMemcpy(&count, gave_up, sizeof count, cudaMemcpyDeviceToHost));
    if (count) result.note = "the two grids did not run together in " + std::to_string(count) + " trials";
    CHECKED(cudaFree(gave_up));
  }
  void already_running() {
    handshake<Load::ca>("reader holds B, writer writes A, release/acquire flag, ld.ca", 0, 1);
    handshake<Load::cg>("reader holds B, writer writes A, release/acquire flag, ld.cg", 0, 1);
    handshake<Load::ca>("same address, release/acquire flag, ld.ca", 0, 0);
    run("already running", "one thread: reads B, writes A, reads B", [this](int, uint32_t* bad) {
      const Piece p = piece();
      same_thread<false><<<blocks_, 128, 0, stream_>>>(granule_.words(0, p.offset), granule_.words(1, p.offset), p.words,
                                                       seed(), bad);
      LAUNCHED();
    }, false);
    run("already running", "one thread: reads B, writes A, fence.proxy.alias, reads B", [this](int, uint32_t* bad) {
      const Piece p = piece();
      same_thread<true><<<blocks_, 128, 0, stream_>>>(granule_.words(0, p.offset), granule_.words(1, p.offset), p.words,
                                                      seed(), bad);
      LAUNCHED();
    }, false);
  }

  // Two GPUs: the peer writes and reads through the aliases.
  void peers() {
    int devices = 0, can = 0;
    CHECKED(cudaGetDeviceCount(&devices));
    if (devices > 1) CHECKED(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (!can) {
      std::printf("  %-17s not run: %s\n", "peers", devices > 1 ? "no peer access" : "one GPU");
      return;
    }
    for (int view : {0, 1}) set_access(granule_.address(view), kGranule, 1);
    CHECKED(cudaSetDevice(1));
    cudaStream_t far;
    cudaEvent_t far_done, near_done;
    uint32_t *far_bad = nullptr, *far_sink = nullptr;
    CHECKED(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
    CHECKED(cudaEventCreateWithFlags(&far_done, cudaEventDisableTiming));
    CHECKED(cudaMalloc(&far_bad, sizeof(uint32_t)));
    CHECKED(cudaMalloc(&far_sink, sizeof(uint32_t)));
    CHECKED(cudaMemset(far_bad, 0, sizeof(uint32_t)));
    CHECKED(cudaSetDevice(0));
    CHECKED(cudaEventCreateWithFlags(&near_done, cudaEventDisableTiming));
    Case& result = run("peers", "GPU 0 writes A, GPU 1 reads B and writes A, GPU 0 reads B", [&, this](int, uint32_t* bad) {
      const Piece p = piece();
      const uint32_t s = seed(), s2 = seed();
      write(granule_.words(0, p.offset), p, s, stream_);
      CHECKED(cudaEventRecord(near_done, stream_));
      CHECKED(cudaSetDevice(1));
      CHECKED(cudaStreamWaitEvent(far, near_done, 0));
      expect<Load::ca>(granule_.words(1, p.offset), p, s, far_bad, far);
      write(granule_.words(0, p.offset), p, s2, far);
      CHECKED(cudaEventRecord(far_done, far));
      CHECKED(cudaSetDevice(0));
      CHECKED(cudaStreamWaitEvent(stream_, far_done, 0));
      expect<Load::ca>(granule_.words(1, p.offset), p, s2, bad, stream_);
      hold<Load::ca>(granule_.words(1, p.offset), p, stream_);
    }, true, std::min(trials_, 2000));
    uint32_t count = 0;
    CHECKED(cudaMemcpy(&count, far_bad, sizeof count, cudaMemcpyDeviceToHost));
    result.wrong += count;
    result.failed += count != 0;
    result.note = "words the peer read wrong: " + std::to_string(count);
  }

  int report(const std::string& folder) {
    int required_failed = 0;
    std::vector<std::string> rows;
    for (const Case& c : cases_) {
      required_failed += c.required && c.failed;
      JsonObject row;
      row.put("group", c.group).put("case", c.name).put_bool("required", c.required);
      row.put_int("trials", c.trials).put_int("failed_trials", c.failed).put_int("wrong_words", c.wrong);
      row.put("seconds", c.seconds).put("note", c.note);
      rows.push_back(row.text());
    }
    write_file(folder + "/coherence.json", "{\n  \"machine\": " + machine().text() +
                                               ",\n  \"required_failed\": " + std::to_string(required_failed) +
                                               ",\n  \"cases\": " + json_array(rows) + "\n}\n");
    for (const Case& c : cases_)
      if (!c.note.empty()) std::printf("  note: %s, %s: %s\n", c.group.c_str(), c.name.c_str(), c.note.c_str());
    if (required_failed)
      std::printf("coherence: FAILED: %d required cases\n", required_failed);
    else
      std::printf("coherence: every required case passed\n");
    return required_failed ? 1 : 0;
  }

  int trials_;
  int blocks_ = 0;
  AliasedGranule granule_;
  cudaStream_t stream_{}, other_{};
  uint32_t *bad_ = nullptr, *extra_ = nullptr, *sink_ = nullptr, *plain_ = nullptr, *host_ = nullptr;
  std::vector<uint64_t> host_wrong_;
  std::mt19937_64 random_{20200616};
  std::vector<Case> cases_;
};

}  // namespace
}  // namespace probe

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: coherence OUTPUT_FOLDER [trials]\n");
    return 2;
  }
  const int trials = argc > 2 ? std::atoi(argv[2]) : 10000;
  if (trials < 1 || trials > 20000) {
    std::fprintf(stderr, "coherence: trials must be from 1 to 20000, not '%s'\n", argv[2]);
    return 2;
  }
  CHECKED(cudaSetDevice(0));
  CHECKED(cudaFree(nullptr));
  std::printf("coherence of aliased granules, %d trials a case\n", trials);
  probe::Coherence* coherence = new probe::Coherence(trials);  // not torn down: the process ends here
  return coherence->run_all(argv[1]);
}
