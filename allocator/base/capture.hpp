// Mapping memory while a stream is captured into a CUDA graph. CUDA refuses it to threads in the strict capture modes; a
// thread that went into the relaxed one says so here, and the pool then maps for streams that are not captured
// themselves. Of one thread, so no lock.
#pragma once

namespace dymem {

bool may_map_in_capture();

class MayMapInCapture {
 public:
  explicit MayMapInCapture(bool may = true);
  ~MayMapInCapture();
  MayMapInCapture(const MayMapInCapture&) = delete;
  MayMapInCapture& operator=(const MayMapInCapture&) = delete;

 private:
  const bool before_;
};

}  // namespace dymem
