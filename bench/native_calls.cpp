// A recorded sequence of calls through two allocators in one process, every call timed by itself:
//   native  PyTorch's own, through c10::cuda::CUDACachingAllocator (only if built with DYMEM_BENCH_TORCH)
//   dymem   Pool, on the CUDA driver, or on the emulated one (accounting) where there is no GPU; and the same pool with
//           its calls followed along a profiled iteration (pool/tagger.hpp), as the adapter then does
//
// A pass replays the whole sequence and then frees, untimed, what the sequence left. Both keep their memory between
// passes, so that a timed pass finds what a running training finds. Nothing is launched on the GPU: what is timed is
// the allocators' own work. Times are the cycle counter's, calibrated against the steady clock, an empty measurement's
// cost taken off. One thread.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"
#include "driver/emulated.hpp"
#include "pool/pool.hpp"
#include "pool/tagger.hpp"
#include "replay/call_timer.hpp"

#ifdef DYMEM_BENCH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace py = pybind11;

namespace {

using dymem::Addr;
using dymem::Bytes;
using dymem::CallTimer;

constexpr std::int64_t kAlloc = 0;

struct Call {
  std::int64_t op = 0, block = 0;
  Bytes size = 0;
  dymem::StreamId stream = 0;
};

struct Clock {
  Clock() {
    using namespace std::chrono;
    const auto wall = steady_clock::now();
    const std::uint64_t start = CallTimer::ticks();
    while (steady_clock::now() - wall < milliseconds(50)) {
    }
    const double ns = duration<double, std::nano>(steady_clock::now() - wall).count();
    ns_per_tick = ns / double(CallTimer::ticks() - start);
    std::vector<std::uint32_t> empty(4097);
    for (auto& sample : empty) sample = CallTimer::since(CallTimer::ticks());
    std::nth_element(empty.begin(), empty.begin() + 2048, empty.end());
    empty_ticks = empty[2048];
  }
  float ns(std::uint32_t ticks) const {
    return ticks <= empty_ticks ? 0.f : float(double(ticks - empty_ticks) * ns_per_tick);
  }
  double ns_per_tick = 1;
  std::uint32_t empty_ticks = 0;
};

// Times by call, in the order of the sequence; `driver_calls` counts what the call asked of the driver, and is kept for
// blocks of `large` bytes and more only (-1 elsewhere), since asking for it takes time too.
struct Pass {
  std::vector<float> ns;
  std::vector<std::int32_t> driver_calls;
};

class DymemTarget {
 public:
  DymemTarget(const std::string& driver, int device, Bytes emulated_capacity) {
    if (driver == "cuda") {
      driver_ = dymem::make_cuda_driver(device);
    } else {
      dymem::EmulatedOptions options;
      options.capacity = emulated_capacity;
      options.bytes = false;
      options.realtime = true;  // as on a card, epochs close while the calls are timed
      driver_ = dymem::make_emulated_driver(options);
    }
    pool_ = std::make_unique<dymem::Pool>(*driver_, dymem::PoolConfig{});
  }
  void* allocate(Bytes size, dymem::StreamId stream) { return reinterpret_cast<void*>(pool_->malloc(size, stream)); }
  void release(void* block) { pool_->free(reinterpret_cast<Addr>(block)); }
  std::int64_t driver_calls() const {
    const dymem::DriverCounters c = driver_->counters();
    return std::int64_t(c.reserve + c.memory_calls() + c.event_record + c.event_query + c.event_wait);
  }
  void trim() { pool_->trim(); }
  std::int64_t reserved_bytes() const { return pool_->stats().reserved_bytes[dymem::kAll].current; }
  std::vector<std::string> audit() const { return pool_->audit(); }
  dymem::Pool& pool() { return *pool_; }

 private:
  std::unique_ptr<dymem::Driver> driver_;
  std::unique_ptr<dymem::Pool> pool_;
};

class FollowedTarget {
 public:
  FollowedTarget(DymemTarget& dymem, dymem::Tagger& tagger) : dymem_(dymem), tagger_(tagger) {}
  void* allocate(Bytes size, dymem::StreamId stream) {
    const dymem::Mobility mobility = tagger_.next(stream, size);
    const Addr at = dymem_.pool().malloc(size, stream, mobility);
    tagger_.allocated(stream, size, at, mobility);
    return reinterpret_cast<void*>(at);
  }
  void release(void* block) {
    dymem::BlockInfo info;
    const auto at = reinterpret_cast<Addr>(block);
    if (dymem_.pool().find(at, &info)) tagger_.freed(info.stream, at);
    dymem_.release(block);
  }
  std::int64_t driver_calls() const { return dymem_.driver_calls(); }

 private:
  DymemTarget& dymem_;
  dymem::Tagger& tagger_;
};

#ifdef DYMEM_BENCH_TORCH
class NativeTarget {
 public:
  NativeTarget() : allocator_(c10::cuda::CUDACachingAllocator::get()) {
    if (allocator_->name() != "native")
      throw std::runtime_error(
          "PyTorch's allocator is not the native one in this process: unset PYTORCH_ALLOC_CONF and "
          "do not install dymem");
  }
  void* allocate(Bytes size, dymem::StreamId stream) {
    return allocator_->raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream));
  }
  void release(void* block) { allocator_->raw_delete(block); }
  std::int64_t driver_calls() const { return 0; }
  void trim() { allocator_->emptyCache(); }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator_;
};
#endif

class Calls {
 public:
  Calls(const py::array_t<std::int64_t>& op, const py::array_t<std::int64_t>& block,
        const py::array_t<std::int64_t>& size, const py::array_t<std::int64_t>& stream, const std::string& driver,
        int device, Bytes emulated_capacity)
      : dymem_(driver, device, emulated_capacity) {
    const py::ssize_t n = op.size();
    if (block.size() != n || size.size() != n || stream.size() != n)
      throw std::invalid_argument("the columns op, block, size and stream must be equally long");
    const auto ops = op.unchecked<1>(), blocks = block.unchecked<1>(), sizes = size.unchecked<1>(),
               streams = stream.unchecked<1>();
    auto& real = real_;
    for (py::ssize_t i = 0; i < n; ++i) {
      if (blocks(i) < 0) throw std::invalid_argument("block numbers must not be negative");
      if (ops(i) == kAlloc && !real.count(streams(i))) real[streams(i)] = make_stream(streams(i), driver);
      calls_.push_back({ops(i), blocks(i), Bytes(sizes(i)), ops(i) == kAlloc ? real[streams(i)] : 0});
      blocks_ = std::max(blocks_, std::size_t(blocks(i)) + 1);
    }
    streams_ = real.size();
  }

  py::dict dymem_pass(Bytes large) { return as_dict(replay(dymem_, large)); }
  // Of each stream's profiled iteration (as numbered in the recording), its steps, classes and widths as bytes.
  void follow(const std::vector<std::tuple<std::int64_t, std::string, std::string, std::string>>& patterns) {
    std::vector<dymem::StreamPattern> all;
    for (const auto& [stream, steps, classes, widths] : patterns)
      all.emplace_back(real_.at(stream), steps, classes, widths);
    dymem::Tagger::check(all);
    tagger_.follow(all);
  }
  py::dict followed_pass(Bytes large) {
    FollowedTarget target(dymem_, tagger_);
    return as_dict(replay(target, large));
  }
  double tagged_share() const {
    const dymem::FollowingStats s = tagger_.stats();
    return s.allocations ? double(s.tagged) / double(s.allocations) : 0;
  }
  py::dict native_pass() {
#ifdef DYMEM_BENCH_TORCH
    if (!native_) native_ = std::make_unique<NativeTarget>();
    return as_dict(replay(*native_, ~Bytes{0}));
#else
    throw std::runtime_error("built without torch: only dymem can be timed");
#endif
  }
  void trim() {
    dymem_.trim();
#ifdef DYMEM_BENCH_TORCH
    if (native_) native_->trim();
#endif
  }
  std::vector<std::string> audit() const { return dymem_.audit(); }
  std::int64_t reserved_bytes() const { return dymem_.reserved_bytes(); }
  std::size_t streams() const { return streams_; }
  double empty_ns() const { return clock_.empty_ticks * clock_.ns_per_tick; }

 private:
  // The default stream stays itself; every other becomes a stream of its own (of PyTorch's 32 a device).
  static dymem::StreamId make_stream(std::int64_t recorded, [[maybe_unused]] const std::string& driver) {
    if (recorded == 0) return 0;
#ifdef DYMEM_BENCH_TORCH
    if (driver == "cuda") return dymem::StreamId(c10::cuda::getStreamFromPool(false).stream());
#endif
    return dymem::StreamId(recorded);
  }

  template <typename Target>
  Pass replay(Target& target, Bytes large) {
    Pass pass;
    std::vector<std::uint32_t> ticks(calls_.size());
    pass.driver_calls.assign(calls_.size(), -1);
    std::vector<void*> held(blocks_, nullptr);
    std::vector<Bytes> sizes(blocks_, 0);
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      void*& block = held[call.block];
      if (call.op == kAlloc) sizes[call.block] = call.size;
      const bool is_large = sizes[call.block] >= large;
      const std::int64_t before = is_large ? target.driver_calls() : 0;
      if (call.op == kAlloc) {
        const std::uint64_t start = CallTimer::ticks();
        void* got = target.allocate(call.size, call.stream);
        ticks[i] = CallTimer::since(start);
        block = got;
      } else if (block) {
        const std::uint64_t start = CallTimer::ticks();
        target.release(block);
        ticks[i] = CallTimer::since(start);
        block = nullptr;
      }
      if (is_large) pass.driver_calls[i] = std::int32_t(target.driver_calls() - before);
    }
    for (void* block : held)
      if (block) target.release(block);
    pass.ns.reserve(ticks.size());
    for (std::uint32_t t : ticks) pass.ns.push_back(clock_.ns(t));
    return pass;
  }

  static py::dict as_dict(const Pass& pass) {
    py::dict out;
    out["ns"] = py::array_t<float>(py::ssize_t(pass.ns.size()), pass.ns.data());
    out["driver_calls"] = py::array_t<std::int32_t>(py::ssize_t(pass.driver_calls.size()), pass.driver_calls.data());
    return out;
  }

  Clock clock_;
  DymemTarget dymem_;
#ifdef DYMEM_BENCH_TORCH
  std::unique_ptr<NativeTarget> native_;
#endif
  dymem::Tagger tagger_;
  std::unordered_map<std::int64_t, dymem::StreamId> real_;  // streams, by their number in the recording
  std::vector<Call> calls_;
  std::size_t blocks_ = 0, streams_ = 0;
};

}  // namespace

PYBIND11_MODULE(native_calls, m) {
  py::class_<Calls>(m, "Calls")
      .def(
          py::init<const py::array_t<std::int64_t>&, const py::array_t<std::int64_t>&, const py::array_t<std::int64_t>&,
                   const py::array_t<std::int64_t>&, const std::string&, int, Bytes>(),
          py::arg("op"), py::arg("block"), py::arg("size"), py::arg("stream"), py::arg("driver"), py::arg("device") = 0,
          py::arg("emulated_capacity") = 64 * dymem::kGiB)
      .def("dymem_pass", &Calls::dymem_pass, py::arg("large"))
      .def("follow", &Calls::follow)
      .def("followed_pass", &Calls::followed_pass, py::arg("large"))
      .def_property_readonly("tagged_share", &Calls::tagged_share)
      .def("native_pass", &Calls::native_pass)
      .def("trim", &Calls::trim)
      .def("audit", &Calls::audit)
      .def_property_readonly("reserved_bytes", &Calls::reserved_bytes)
      .def_property_readonly("streams", &Calls::streams)
      .def_property_readonly("empty_ns", &Calls::empty_ns);
}
