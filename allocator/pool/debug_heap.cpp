#include "pool/debug_heap.hpp"

namespace dymem {

DebugHeap::DebugHeap(Driver& driver) : driver_(driver), ranges_(driver, kTiB), leftovers_(driver) {}

DebugHeap::~DebugHeap() {
  while (!mappings_.empty()) give(mappings_.begin()->first);
  (void)leftovers_.sweep();
}

Status DebugHeap::take(Bytes size, Addr* out) {
  Bytes mapped = round_up(size, kGranuleUnit), span = mapped + kGranuleUnit;  // the guard follows the block
  Addr base = 0;
  Status s = leftovers_.sweep();
  if (s.ok()) s = ranges_.take(span, &base);
  if (!s.ok()) return s;
  Handle handle = 0;
  s = driver_.create(mapped, &handle);
  if (s.ok()) {
    s = driver_.map(base, mapped, handle);
    if (s.ok()) {
      s = driver_.set_access(base, mapped);
      if (!s.ok()) leftovers_.unmap(base, mapped);
    }
    if (!s.ok()) leftovers_.destroy(handle);
  }
  if (!s.ok()) {
    ranges_.give(base, span);
    return s;
  }
  Addr at = base + mapped - size;
  mappings_[at] = {base, mapped, span, handle};
  reserved_ += mapped;
  created_++;
  *out = at;
  return {};
}

Addr DebugHeap::mapping(Addr at, Handle* handle, Bytes* size) const {
  const Mapping& m = mappings_.at(at);
  *handle = m.handle;
  *size = m.mapped;
  return m.base;
}

void DebugHeap::give(Addr at) {
  auto it = mappings_.find(at);
  DYMEM_CHECK(it != mappings_.end(), "debug heap does not know the address");
  Mapping m = it->second;
  mappings_.erase(it);
  reserved_ -= m.mapped;
  leftovers_.unmap(m.base, m.mapped);
  leftovers_.destroy(m.handle);
  ranges_.give(m.base, m.span);
}

}  // namespace dymem
