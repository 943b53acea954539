// See op_log.hpp (O1..O3).
#include "torch/op_log.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pthread.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <new>
#include <utility>

namespace dymem {
namespace {

namespace profiling = torch::profiler::impl;

constexpr std::uint64_t kNone = ~std::uint64_t{0};
constexpr std::size_t kFirstEntries = 1 << 18;

std::uint16_t thread_number() { return std::uint16_t(at::RecordFunction::currentThreadId()); }

// A handful of entries on the stack; more goes to the heap.
using Entries = c10::SmallVector<OpEntry, 24>;

// What is open on a thread, outermost first.
enum class Open : std::uint8_t {
  recorded,  // what it calls is recorded too
  op,        // recorded, an operator of PyTorch
  passed,    // within one
};
struct Thread {
  std::uint64_t run = 0;
  std::vector<Open> open;
};
Thread& thread_of(std::uint64_t run) {
  static thread_local Thread thread;
  if (thread.run != run) {
    thread.run = run;
    thread.open.clear();
  }
  return thread;
}

bool ignored(const at::RecordFunction& fn) {
  return fn.scope() == at::RecordScope::USER_SCOPE && !std::string_view(fn.name()).starts_with("Optimizer.");
}

// "aten::conv2d", and not a custom function ("Scale"), nor what the engine runs ("autograd::engine::…").
bool is_operator(const at::RecordFunction& fn, std::string_view name) {
  return fn.scope() == at::RecordScope::FUNCTION && name.find("::") != name.npos && !name.starts_with("autograd::");
}

// `wraps` becomes true for a tensor whose operators are written in Python (DTensor): it has no memory, those within
// have.
void note_tensor(const at::Tensor& tensor, bool host, Entries* out, bool* wraps) {
  if (!tensor.defined()) return;
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  *wraps |= impl->is_python_dispatch();
  if (!impl->has_storage()) return;
  try {
    const c10::Storage& storage = impl->unsafe_storage();
    if (!storage || storage.device_type() != (host ? c10::DeviceType::CPU : c10::DeviceType::CUDA)) return;
    const void* const data = storage.data();
    if (!data) return;
    const std::size_t bytes = storage.sym_nbytes().is_heap_allocated() ? 0 : storage.nbytes();
    const bool leaf = tensor.requires_grad() && tensor.is_leaf();
    out->push_back({OpEntryKind::input, leaf ? OpFlags::leaf : std::uint8_t{0}, 0, 0,
                    reinterpret_cast<std::uint64_t>(data), bytes, 0});
  } catch (const c10::Error&) {  // a tensor that stands for another while a program is traced: it has no memory
  }
}

void note_value(const c10::IValue& value, bool host, Entries* out, bool* wraps) {
  if (value.isTensor()) note_tensor(value.toTensor(), host, out, wraps);
  else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) note_tensor(tensor, host, out, wraps);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) note_value(element, host, out, wraps);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) note_value(element, host, out, wraps);
  }
}

}  // namespace

// Passes on what the pool tells to whom it told before.
class OpLog::PoolTap final : public EventSink {
 public:
  PoolTap(OpLog& log, int device) : log_(log), device_(std::uint8_t(device)) {}

  void record(const TraceEvent& event, Addr at) override {
    if (next_) next_->record(event, at);
    if (event.kind != TraceKind::alloc && event.kind != TraceKind::free_requested) return;
    const bool comes = event.kind == TraceKind::alloc;
    log_.add_memory(comes ? OpEntryKind::alloc : OpEntryKind::freed, device_, at, event.size, event.block,
                    event.stream);
  }
  void completed(Addr at, Bytes requested, StreamId stream) override {
    if (next_) next_->completed(at, requested, stream);
  }
  void segment(TraceKind kind, Addr at, Bytes size, bool lent) override {
    if (next_) next_->segment(kind, at, size, lent);
  }

  void attach(Pool& pool) { pool.take_over_recording(this, &next_); }
  // false: somebody else has taken the pool over.
  bool detach(Pool& pool) {
    return pool.replace_recorder(this, next_);
  }

 private:
  OpLog& log_;
  const std::uint8_t device_;
  EventSink* next_ = nullptr;  // changes only while the tap is in no pool
};

// What PyTorch reports of CPU memory to a profiler that this thread has; a profiler that is switched off in all else.
class OpLog::HostTap final : public profiling::ProfilerStateBase {
 public:
  explicit HostTap(OpLog& log)
      : ProfilerStateBase(profiling::ProfilerConfig(profiling::ProfilerState::Disabled, false, true)),
        log_(log),
        run_(log.run_) {}

  void reportMemoryUsage(void* ptr, std::int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu() || !log_.running() || log_.run_ != run_) return;  // left behind on some thread
    const auto at = reinterpret_cast<Addr>(ptr);
    if (size > 0) log_.add_memory(OpEntryKind::alloc, 0, at, Bytes(size), count_++, 0);
    else log_.add_memory(OpEntryKind::freed, 0, at, 0, kNone, 0);
  }
  profiling::ActiveProfilerType profilerType() override { return profiling::ActiveProfilerType::NONE; }

 private:
  OpLog& log_;
  const std::uint64_t run_;
  std::atomic<std::uint64_t> count_{0};
};

OpLog::OpLog() {
  // A child that is forked meanwhile (to load data) logs nothing, and its copy of a lock may be held by nobody it has.
  pthread_atfork(nullptr, nullptr, [] {
    OpLog& log = op_log();
    log.running_ = false;
    new (&log.mutex_) std::mutex;
    new (&log.control_) std::mutex;
    // Another thread may have been within them: left as they are, and not freed.
    new (&log.entries_) decltype(log.entries_);
    new (&log.name_numbers_) decltype(log.name_numbers_);
    new (&log.names_) decltype(log.names_);
    new (&log.streams_) decltype(log.streams_);
  });
}

OpLog& op_log() {
  static auto* const log = new OpLog;
  return *log;
}

void OpLog::start(bool host) {
  std::lock_guard control(control_);
  if (running()) throw InvalidArgument("an iteration is being profiled already: end that profile first.");
  // Its callbacks take whatever this thread has for a state of its own. What a profile left here is not in the way.
  if (c10::DebugInfoBase* const other = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
      host && other && !dynamic_cast<HostTap*>(other))
    throw InvalidArgument(
        "a profiler of PyTorch's runs on this thread, and memory of the CPU is told to one profiler only: end it first.");
  {
    std::lock_guard lock(mutex_);
    entries_.clear();
    entries_.reserve(kFirstEntries);
    name_numbers_.clear();
    names_.clear();
    streams_.clear();
    lost_ = 0;
  }
  host_ = host;
  thread_ = thread_number();
  ++run_;
  running_.store(true, std::memory_order_release);
  if (host) {
    host_tap_ = std::make_shared<HostTap>(*this);
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, host_tap_);
  } else {
    note_pools();
  }
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&OpLog::began, &OpLog::ended).needsInputs(true));
}

void OpLog::note_pools() {
  for (int device = 0; device < kDevicesMax; ++device) {
    Pool* const made = pool_if_made(device);
    if (!made) continue;
    if (!taps_[device]) taps_[device].reset(new PoolTap(*this, device));
    taps_[device]->attach(*made);
    for (const BlockInfo& b : made->blocks())  // what the tap heard of meanwhile is told twice; the reader knows
      if (b.state == BlockState::live)
        add_memory(OpEntryKind::held, std::uint8_t(device), b.address, b.requested, b.number, b.stream);
  }
}

OpLog::Result OpLog::stop() {
  std::lock_guard control(control_);
  if (!running()) throw InvalidArgument("no iteration is being profiled.");
  at::removeCallback(callback_);
  running_.store(false, std::memory_order_release);
  Result result;
  if (host_) {
    const auto kind = c10::DebugInfoKind::PROFILER_STATE;
    const bool ours = c10::ThreadLocalDebugInfo::get(kind) == host_tap_.get();
    host_tap_.reset();
    try {
      if (ours) c10::ThreadLocalDebugInfo::_pop(kind);
    } catch (const c10::Error&) {  // something else was pushed over it: it stays, and tells nothing
    }
    if (!ours)
      throw InvalidArgument("a profile of CPU memory must end on the thread that began it; begin it anew there.");
  } else {
    for (int device = 0; device < kDevicesMax; ++device)
      if (taps_[device] && pool_if_made(device)) result.displaced |= !taps_[device]->detach(*pool_if_made(device));
  }
  std::lock_guard lock(mutex_);
  result.entries = std::exchange(entries_, {});
  result.names = std::exchange(names_, {});
  result.streams = std::exchange(streams_, {});
  result.lost = lost_;
  result.thread = thread_;
  return result;
}

// Under mutex_. An entry that the heap has no room for is lost, not an error of the operator that it tells of.
void OpLog::add(const OpEntry* entries, std::size_t count) noexcept {
  try {
    if (entries_.size() + count > kEntriesMax) lost_ += count;
    else entries_.insert(entries_.end(), entries, entries + count);
  } catch (...) {
    lost_ += count;
  }
}

void OpLog::add_memory(OpEntryKind kind, std::uint8_t device, Addr at, Bytes size, std::uint64_t number,
                       StreamId stream) noexcept {
  std::lock_guard lock(mutex_);
  try {
    const OpEntry entry{kind, device, thread_number(), stream_number(stream), at, size, number};
    add(&entry, 1);
  } catch (...) {
    ++lost_;
  }
}

std::uint32_t OpLog::name_number(std::string_view name) {
  if (const auto found = name_numbers_.find(name); found != name_numbers_.end()) return found->second;
  names_.emplace_back(name);
  name_numbers_.emplace(names_.back(), std::uint32_t(names_.size() - 1));
  return std::uint32_t(names_.size() - 1);
}

std::uint32_t OpLog::stream_number(StreamId stream) {
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (streams_[i] == stream) return std::uint32_t(i);
  streams_.push_back(stream);
  return std::uint32_t(streams_.size() - 1);
}

std::unique_ptr<at::ObserverContext> OpLog::began(const at::RecordFunction& fn) {
  OpLog& log = op_log();
  if (!log.running() || ignored(fn)) return nullptr;
  try {
    std::vector<Open>& open = thread_of(log.run_.load(std::memory_order_relaxed)).open;
    if (!open.empty() && open.back() != Open::recorded) {
      open.push_back(Open::passed);
      return nullptr;
    }
    const std::string_view name = fn.name();
    open.push_back(is_operator(fn, name) ? Open::op : Open::recorded);
    Entries entries(1);
    bool wraps = false;
    const bool host = log.host_.load(std::memory_order_relaxed);
    for (const c10::IValue& value : fn.inputs()) note_value(value, host, &entries, &wraps);
    if (wraps) open.back() = Open::recorded;
    std::uint8_t flags = at::GradMode::is_enabled() ? OpFlags::grad : 0;
    if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) flags |= OpFlags::node;
    if (fn.scope() == at::RecordScope::USER_SCOPE) flags |= OpFlags::user;
    const std::uint16_t thread = thread_number();
    for (OpEntry& entry : entries) entry.thread = thread;
    std::lock_guard lock(log.mutex_);
    entries[0] = {OpEntryKind::begin,   flags, thread, log.name_number(name), std::uint64_t(fn.seqNr()),
                  fn.forwardThreadId(), 0};
    log.add(entries.data(), entries.size());
  } catch (...) {
    ++log.lost_;
  }
  return nullptr;
}

void OpLog::ended(const at::RecordFunction& fn, at::ObserverContext*) {
  OpLog& log = op_log();
  if (!log.running() || ignored(fn)) return;
  std::vector<Open>& open = thread_of(log.run_.load(std::memory_order_relaxed)).open;
  if (open.empty()) return;  // it began before the log did
  const Open which = open.back();
  open.pop_back();
  if (which == Open::passed) return;
  const OpEntry entry{OpEntryKind::end, 0, thread_number(), 0, 0, 0, 0};
  std::lock_guard lock(log.mutex_);
  log.add(&entry, 1);
}

}  // namespace dymem
