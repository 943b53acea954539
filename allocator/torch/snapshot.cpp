// PyTorch's tools for memory: snapshot(), recordHistory(), metadata, annotations, trackers; on top of history.hpp.
//
// A snapshot's segments are those of Pool::segments(): every byte the pool holds is in exactly one, so that
//   sum of total_size     = reserved bytes (and those of sleeping granules, whose blocks keep their addresses)
//   sum of allocated_size = allocated bytes, sum of active_size = active bytes, sum of requested_size = requested bytes.
// A stitched block is a segment of its own at the address that its tensor has; the pieces of home addresses that it
// borrows are cut out of theirs. All are marked is_expandable: they grow and shrink. Segments belong to no stream (0).
// Private pools are forwarded (forwarded.hpp): the other allocator records and reports them, and its segments and entries
// are put beside ours, in the order of time.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <limits>
#include <string>

#include "torch/adapter.hpp"
#include "torch/history.hpp"

namespace dymem {
namespace {

native::BlockInfo block_info(const BlockInfo& from, const std::unordered_map<Addr, Context>& contexts) {
  native::BlockInfo to;
  to.size = from.size;
  to.allocated = from.state == BlockState::live;
  to.active = from.state != BlockState::free;
  if (!to.active) return to;
  to.requested_size = from.requested;
  if (auto known = contexts.find(from.address); known != contexts.end()) to.context_when_allocated = known->second;
  return to;
}

native::SegmentInfo segment_info(int device, const PoolSegment& from,
                                 const std::unordered_map<Addr, Context>& contexts) {
  native::SegmentInfo to;
  to.device = static_cast<c10::DeviceIndex>(device);
  to.address = from.address;
  to.total_size = from.size;
  to.is_large = !from.small;
  to.is_expandable = true;
  to.blocks.reserve(from.blocks.size());
  for (const BlockInfo& block : from.blocks) {
    to.blocks.push_back(block_info(block, contexts));
    if (block.state == BlockState::free) continue;
    to.active_size += block.size;
    if (block.state != BlockState::live) continue;
    to.allocated_size += block.size;
    to.requested_size += block.requested;
  }
  return to;
}

// What PyTorch was told, in its own words; if it could not read that, in those of the environment.
std::string settings_of_pytorch() {
  try {
    return c10::CachingAllocator::AcceleratorAllocatorConfig::last_allocator_settings();
  } catch (const std::exception&) {  // c10::Error, or what std::stod throws
    for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
      if (const char* text = std::getenv(variable)) return text;
    return {};
  }
}

// What PyTorch was told, and what dymem was: the only place in a snapshot where its reader can learn who made it. A setting
// that PyTorch cannot read costs no snapshot: the first allocation says so (prepare_pool), and its fields stay 0 here.
native::AllocatorConfigInfo config_info() {
  using Config = native::CUDAAllocatorConfig;
  native::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = 0;  // nothing is collected, every block may be split, requests are not rounded up
  info.max_split_size = std::numeric_limits<size_t>::max();
  info.expandable_segments = false;
  info.release_lock_on_malloc = false;
  try {
    info.pinned_num_register_threads = Config::pinned_num_register_threads();
    info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
    info.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
    torch_compat::fill_later_config(info);
  } catch (const std::exception&) {  // c10::Error, or what std::stod throws
  }
  info.last_allocator_settings = settings_of_pytorch();
  info.last_allocator_settings += (info.last_allocator_settings.empty() ? "backend:dymem," : ",backend:dymem,") +
                                  config_to_string(process_config());
  return info;
}

void add_forwarded(native::SnapshotInfo from, native::SnapshotInfo* to) {
  std::move(from.segments.begin(), from.segments.end(), std::back_inserter(to->segments));
  if (to->device_traces.size() < from.device_traces.size()) to->device_traces.resize(from.device_traces.size());
  for (size_t device = 0; device < from.device_traces.size(); ++device) {
    auto& entries = to->device_traces[device];
    const auto ours = static_cast<std::ptrdiff_t>(entries.size());
    std::move(from.device_traces[device].begin(), from.device_traces[device].end(), std::back_inserter(entries));
    std::inplace_merge(entries.begin(), entries.begin() + ours, entries.end(),
                       [](const auto& a, const auto& b) { return a.time_.t_ < b.time_.t_; });
  }
}

int current_device(bool emulated) {
  if (emulated) return 0;
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

}  // namespace

native::SnapshotInfo TorchAllocator::snapshot(c10::MempoolId_t pool_id, bool include_traces) {
  native::SnapshotInfo info;
  info.config_metadata = config_info();
  if (pool_id.first != 0 || pool_id.second != 0)
    return forwarded_.started() ? forwarded_.snapshot(pool_id, include_traces) : info;
  for (int device = 0; device < kDevicesMax; ++device) {
    Pool* const made = pool_if_made(device);
    if (device < device_count_ || made) info.device_traces.resize(static_cast<size_t>(device) + 1);
    if (!made) continue;
    History::Moment moment = history().moment(device, *made, include_traces);
    for (const PoolSegment& segment : moment.segments)
      info.segments.push_back(segment_info(device, segment, moment.contexts));
    info.device_traces.back() = std::move(moment.entries);
  }
  if (include_traces) info.external_annotations = history().annotations();
  if (forwarded_.started()) add_forwarded(forwarded_.snapshot(pool_id, include_traces), &info);
  return info;
}

bool TorchAllocator::isHistoryEnabled() { return history().enabled(); }

void TorchAllocator::recordHistory(bool enabled, native::CreateContextFn context, size_t entries_max,
                                   native::RecordContext when, bool clear,
                                   const std::vector<std::string>& skip_actions) {
  HistorySettings settings;
  settings.enabled = enabled;
  settings.gather = context;
  settings.entries_max = entries_max;
  settings.when = when;
  settings.skip_actions = skip_actions;
  history().record(settings, clear);
  forwarded_.when_started([=](native::CUDAAllocator& other) {
    other.recordHistory(enabled, context, entries_max, when, clear, skip_actions);
  });
}

std::shared_ptr<c10::GatheredContext> TorchAllocator::getContextForPointer(const void* pointer) {
  return history().context_of(pointer);
}

void TorchAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) {
  if (history().enabled()) history().annotate(current_device(emulated_), pairs);
}

void TorchAllocator::pushCompileContext(std::string& text) { history().push_compile_context(text); }
void TorchAllocator::popCompileContext() { history().pop_compile_context(); }

void TorchAllocator::setUserMetadata(const std::string& metadata) {
  history().set_metadata(torch_compat::kMetadataOfThread ? 0 : current_device(emulated_), metadata);
}

std::string TorchAllocator::getUserMetadata() {
  return history().metadata(torch_compat::kMetadataOfThread ? 0 : current_device(emulated_));
}

void TorchAllocator::annotateMemory(const void* pointer, const std::string& metadata) {
  history().annotate_block(pointer, metadata);
}

void TorchAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  history().add_tracker(tracker);
  forwarded_.when_started([tracker](native::CUDAAllocator& other) { other.attachAllocatorTraceTracker(tracker); });
}

void TorchAllocator::attachOomRejectionObserver(torch_compat::OomRejectionObserver observer) {
  std::lock_guard lock(observers_mutex_);
  rejection_observers_.push_back(std::move(observer));
}

}  // namespace dymem
