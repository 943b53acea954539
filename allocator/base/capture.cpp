#include "base/capture.hpp"

namespace dymem {

static thread_local bool may_map = false;

bool may_map_in_capture() { return may_map; }

MayMapInCapture::MayMapInCapture(bool may) : before_(may_map) { may_map = may; }
MayMapInCapture::~MayMapInCapture() { may_map = before_; }

}  // namespace dymem
