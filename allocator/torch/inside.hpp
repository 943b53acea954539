// Whether this thread is in a call of PyTorch's own allocator, made by forwarded.cpp. That allocator may call back under
// its own lock (memory callbacks, a MemPool's source): what runs then must not call it again.
#pragma once

namespace dymem {

class InsideOther {
 public:
  InsideOther() { ++depth_; }
  ~InsideOther() { --depth_; }
  InsideOther(const InsideOther&) = delete;
  InsideOther& operator=(const InsideOther&) = delete;
  static bool now() { return depth_ != 0; }

 private:
  static thread_local int depth_;
};

}  // namespace dymem
