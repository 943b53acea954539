// See exports.hpp (E1, E2); and the pool's side of it: what lies behind a block, pinning, descriptors on request.
#include "pool/exports.hpp"

#include <sys/random.h>
#include <unistd.h>

#include "pool/impl.hpp"

namespace dymem {
namespace {

ExportToken new_token() {
  ExportToken token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    throw Error("dymem: a tensor cannot be shared, because the system gives no random bytes (getrandom failed).");
  return token;
}

}  // namespace

const ExportToken& Exports::add(BlockId block, Bytes size, const std::vector<Handle>& granules) {
  if (const auto it = blocks_.find(block); it != blocks_.end()) return it->second.memory->second.token;
  auto memory = memory_.find(granules);
  if (memory == memory_.end()) {
    memory = memory_.emplace(granules, Shared{new_token(), 0}).first;
    tokens_.emplace(memory->second.token, &memory->first);
  }
  ++memory->second.blocks;
  blocks_.emplace(block, Exported{size, memory});
  bytes_ += size;
  return memory->second.token;
}

void Exports::remove(BlockId block) {
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return;
  bytes_ -= it->second.size;
  const auto memory = it->second.memory;
  blocks_.erase(it);
  if (--memory->second.blocks) return;
  tokens_.erase(memory->second.token);
  memory_.erase(memory);
}

const std::vector<Handle>* Exports::granules(const ExportToken& token) const {
  const auto it = tokens_.find(token);
  return it == tokens_.end() ? nullptr : it->second;
}

// The granules behind a held block in the order of its addresses, and how far into the first one it begins.
Bytes Pool::Impl::memory_behind(const Block& b, std::vector<Handle>* handles, std::vector<Bytes>* sizes) const {
  const auto add = [&](Handle handle, Bytes size) {
    handles->push_back(handle);
    sizes->push_back(size);
  };
  if (debug) {
    Handle handle = 0;
    Bytes size = 0;
    const Addr base = debug->mapping(b.at, &handle, &size);
    add(handle, size);
    return b.at - base;
  }
  Addr first = 0;
  if (b.kind == BlockKind::stitched) {
    const Region& region = space.region(b.region);
    for (std::size_t i = 0; i < region.granules.size(); i++) {
      if (region.granules[i] == kNone) continue;  // given back: not of this block, which holds its own
      const Granule& g = space.granule(region.granules[i]);
      if (region.at[i] + g.size <= b.at || region.at[i] >= b.at + b.size) continue;
      if (handles->empty()) first = region.at[i];
      add(g.handle, g.size);
    }
  } else {
    for (Addr x = b.at; x < b.at + b.size;) {
      const Granule& g = space.granule(space.granule_at(x));
      if (handles->empty()) first = g.home;
      add(g.handle, g.size);
      x = g.home + g.size;
    }
  }
  return b.at - first;
}

ExportedMemory Pool::Impl::export_memory(Addr address) {
  const BlockId id = held.find(address);
  if (id == kNoBlock)
    throw InvalidArgument("dymem: " + human_address(address) +
                          " is not the address of a block that is held, so it cannot be shared: share the tensor that owns "
                          "its memory, or a clone().");
  Block& b = home.block(id);
  if (slow_free && !debug && touches_sleep(b))
    throw SleepError("dymem: a tensor that is asleep cannot be shared: call dymem.wake() first.");
  if (!exports.has(id) && b.pins == 255) throw InvalidArgument("dymem: a block is pinned at most 255 times");
  ExportedMemory out;
  if (space.contiguous() && !debug) {
    const std::size_t slab = space.slabs().below_mark(b.at);
    const Addr base = space.slabs()[slab].base;
    refused_export(driver.export_slab(base, &out.slab));
    out.offset = b.at - base;
    if (!exports.has(id)) {
      exports.add(id, b.size, {});
      pin_granules(b, 1);
    }
    return out;
  }
  std::vector<Handle> handles;
  out.offset = memory_behind(b, &handles, &out.granules);
  if (!exports.has(id)) {  // asked once, so that who shares is told, and not who receives
    int fd = -1;
    refused_export(driver.export_handle(handles.front(), &fd));
    close(fd);
    exports.add(id, b.size, handles);
    pin_granules(b, 1);
  }
  out.token = exports.add(id, b.size, handles);
  return out;
}

void Pool::Impl::refused_export(const Status& status) {
  if (status.ok()) return;
  if (status.code == Code::unsupported)
    throw Error("dymem: this machine cannot share such GPU memory between processes (" + std::string(status.call) +
                "): install with backing:contiguous, which CUDA shares in another way, or send the tensor from the CPU.");
  throw DriverError(status.call, status.native, "the memory of a tensor could not be exported to another process");
}

ExportedMemory Pool::export_memory(Addr address) {
  std::lock_guard lock(impl_->mutex);
  return impl_->export_memory(address);
}

bool Pool::export_descriptors(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out) {
  std::lock_guard lock(impl_->mutex);
  const std::vector<Handle>* granules = impl_->exports.granules(token);
  if (!granules) return false;
  for (std::size_t i = first; i < granules->size() && count > 0; i++, count--) {
    int fd = -1;
    if (!impl_->driver.export_handle((*granules)[i], &fd).ok()) {
      for (int made : *out) close(made);
      out->clear();
      return true;
    }
    out->push_back(fd);
  }
  return true;
}

bool Pool::capturing() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->streams.any_capturing();
}

void Pool::watch(StreamId stream, int count) {
  std::lock_guard lock(impl_->mutex);
  impl_->streams.watch(stream, count);
}

}  // namespace dymem
