// Where a replay put things: asked for by who draws it (ReplayOptions::layout), and not paid for by anyone else.
//
// LayoutWatch stands between the pool and the replay's driver and notes each change of physical memory and of mappings,
// with the event of the trace during which it happened. Together with the address of each allocation that says which
// granules a block lay on at any time. Failed calls changed nothing and are not noted. A replay has one thread.
#pragma once
#include <cstdint>
#include <vector>

#include "driver/forwarding.hpp"

namespace dymem {

enum class LayoutKind : std::uint64_t { create, destroy, map, unmap, slab_alloc, slab_free };

struct LayoutChange {
  std::uint64_t event = 0;  // index into the trace
  LayoutKind kind = LayoutKind::create;
  Handle handle = 0;  // create, destroy, map
  Addr address = 0;   // map, unmap, slab_alloc, slab_free
  Bytes size = 0;     // all but destroy and slab_free
};
static_assert(sizeof(LayoutChange) == 40);

struct ReplayLayout {
  std::vector<Addr> address;    // by event: of an allocation, else 0
  std::vector<Bytes> reserved;  // by event: what the pool held after it
  std::vector<Bytes> spanned;   // by event: Pool::spanned(), contiguous backing
  std::vector<LayoutChange> changes;
};

class LayoutWatch final : public Forwarding<> {
 public:
  LayoutWatch(Driver& to, ReplayLayout& layout) : Forwarding(to), layout_(layout) {}

  void at_event(std::uint64_t event) { event_ = event; }

  Status create(Bytes size, Handle* out) override {
    const Status status = to_.create(size, out);
    return status.ok() ? note(status, LayoutKind::create, *out, 0, size) : status;
  }
  Status destroy(Handle handle) override { return note(to_.destroy(handle), LayoutKind::destroy, handle, 0, 0); }
  Status map(Addr at, Bytes size, Handle handle) override {
    return note(to_.map(at, size, handle), LayoutKind::map, handle, at, size);
  }
  Status unmap(Addr at, Bytes size) override { return note(to_.unmap(at, size), LayoutKind::unmap, 0, at, size); }
  Status slab_alloc(Bytes size, Addr* out) override {
    const Status status = to_.slab_alloc(size, out);
    return status.ok() ? note(status, LayoutKind::slab_alloc, 0, *out, size) : status;
  }
  Status slab_free(Addr base) override { return note(to_.slab_free(base), LayoutKind::slab_free, 0, base, 0); }

 private:
  Status note(Status status, LayoutKind kind, Handle handle, Addr at, Bytes size) {
    if (status.ok()) layout_.changes.push_back({event_, kind, handle, at, size});
    return status;
  }

  ReplayLayout& layout_;
  std::uint64_t event_ = 0;
};

}  // namespace dymem
