// Conversions between Python and the core; see the header.
#include "bind/convert.hpp"

#include <cmath>
#include <cstring>

namespace py = pybind11;

namespace dymem {

std::uint64_t to_u64(const py::handle& value, const char* what) {
  if (!PyLong_Check(value.ptr())) throw py::type_error(std::string(what) + " must be an int");
  const std::uint64_t n = PyLong_AsUnsignedLongLong(value.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw InvalidArgument(std::string(what) + " must be from 0 to 2**64 - 1, not " +
                          py::cast<std::string>(py::str(value)));
  }
  return n;
}

static bool to_bool(const py::handle& value, const char* what) {
  if (!PyBool_Check(value.ptr())) throw py::type_error(std::string(what) + " must be True or False");
  return value.ptr() == Py_True;
}

std::string to_text(const py::handle& value, const char* what) {
  if (!PyUnicode_Check(value.ptr())) throw py::type_error(std::string(what) + " must be a str");
  return py::cast<std::string>(value);
}

static double to_double(const py::handle& value, const char* what) {
  const double n = PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()) ? PyFloat_AsDouble(value.ptr()) : NAN;
  if (!PyErr_Occurred() && !std::isnan(n)) return n;
  PyErr_Clear();
  throw py::type_error(std::string(what) + " must be a number");
}

static Backing backing_from(const std::string& name) {
  if (name == "auto" || name == "automatic") return Backing::automatic;
  if (name == "vmm") return Backing::vmm;
  if (name == "contiguous") return Backing::contiguous;
  throw InvalidArgument("'" + name + "' is no backing; the backings are auto, vmm and contiguous");
}

static Placement placement_from(const std::string& name) {
  if (name == "best_fit") return Placement::best_fit;
  if (name == "two_ends") return Placement::two_ends;
  if (name == "by_size") return Placement::by_size;
  if (name == "grouped") return Placement::grouped;
  throw InvalidArgument("'" + name + "' is no placement; there are best_fit, two_ends, by_size and grouped");
}

const char* pool_option_names() { return "limit, backing, alias, wait, debug, grow_ratio, grow_slack, placement"; }

bool set_pool_option(PoolConfig* config, const std::string& key, const py::handle& value) {
  if (key == "limit") config->limit = to_u64(value, "limit");
  else if (key == "backing") config->backing = backing_from(to_text(value, "backing"));
  else if (key == "alias") config->alias = to_bool(value, "alias");
  else if (key == "wait") config->wait = to_bool(value, "wait");
  else if (key == "debug") config->debug = to_bool(value, "debug");
  else if (key == "grow_ratio") config->grow_ratio = to_double(value, "grow_ratio");
  else if (key == "grow_slack") config->grow_slack = to_u64(value, "grow_slack");
  else if (key == "placement") config->placement = placement_from(to_text(value, "placement"));
  else return false;
  return true;
}

PoolConfig pool_config(const py::dict& options) {
  PoolConfig config;
  for (const auto& [key, value] : options) {
    const auto name = py::cast<std::string>(key);
    if (!set_pool_option(&config, name, value))
      throw InvalidArgument("'" + name + "' is no option of a pool; the options are " + pool_option_names());
  }
  return config;
}

Mobility mobility_from(const std::string& name) {
  for (Mobility m : {Mobility::untagged, Mobility::movable, Mobility::temporary, Mobility::reclaimed})
    if (name == mobility_name(m)) return m;
  throw InvalidArgument("'" + name + "' is no mobility; the classes are untagged, movable, temporary and reclaimed");
}

const char* mobility_name(Mobility mobility) {
  switch (mobility) {
    case Mobility::untagged:
      return "untagged";
    case Mobility::movable:
      return "movable";
    case Mobility::temporary:
      return "temporary";
    case Mobility::reclaimed:
      return "reclaimed";
  }
  return "unknown";
}

static py::dict stat_dict(const Stat& stat) {
  py::dict d;
  d["current"] = stat.current;
  d["peak"] = stat.peak;
  d["allocated"] = stat.allocated;
  d["freed"] = stat.freed;
  return d;
}

static py::dict stat_array_dict(const StatArray& stats) {
  py::dict d;
  d["all"] = stat_dict(stats[kAll]);
  d["small"] = stat_dict(stats[kSmall]);
  d["large"] = stat_dict(stats[kLarge]);
  return d;
}

py::dict stats_dict(const PoolStats& s) {
  py::dict d;
  d["allocation"] = stat_array_dict(s.allocation);
  d["segment"] = stat_array_dict(s.segment);
  d["active"] = stat_array_dict(s.active);
  d["inactive_split"] = stat_array_dict(s.inactive_split);
  d["allocated_bytes"] = stat_array_dict(s.allocated_bytes);
  d["reserved_bytes"] = stat_array_dict(s.reserved_bytes);
  d["active_bytes"] = stat_array_dict(s.active_bytes);
  d["inactive_split_bytes"] = stat_array_dict(s.inactive_split_bytes);
  d["requested_bytes"] = stat_array_dict(s.requested_bytes);
  d["num_alloc_retries"] = s.num_alloc_retries;
  d["num_ooms"] = s.num_ooms;
  d["num_ooms_before_reset"] = s.num_ooms_before_reset;
  d["num_sync_all_streams"] = s.num_sync_all_streams;
  d["num_device_alloc"] = s.num_device_alloc;
  d["num_device_free"] = s.num_device_free;
  d["max_split_size"] = s.max_split_size;
  d["forwarded_bytes"] = stat_dict(s.forwarded_bytes);
  d["forwarded_live_bytes"] = stat_dict(s.forwarded_live_bytes);
  d["pending_bytes"] = stat_dict(s.pending_bytes);
  d["num_stitches"] = s.num_stitches;
  d["num_stitch_reuses"] = s.num_stitch_reuses;
  d["num_sticky_hits"] = s.num_sticky_hits;
  d["num_stream_waits"] = s.num_stream_waits;
  d["slab_bytes"] = stat_dict(s.slab_bytes);
  d["asleep_bytes"] = s.asleep_bytes;
  d["exported_bytes"] = s.exported_bytes;
  d["host_bytes"] = s.host_bytes;
  d["views"] = s.views;
  d["views_max"] = s.views_max;
  d["va_bytes"] = s.va_bytes;
  d["va_bytes_max"] = s.va_bytes_max;
  return d;
}

py::dict unusable_dict(const UnusableFree& unusable) {
  py::dict d;
  for (int j = UnusableFree::kLeast; j <= UnusableFree::kMost; j++)
    d[py::str("2^" + std::to_string(j))] = unusable.share(j);
  return d;
}

std::vector<TraceEvent> events_from_buffer(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  py::ssize_t expected = info.itemsize;
  for (py::ssize_t d = info.ndim - 1; d >= 0; --d) {
    if (info.shape[d] > 1 && info.strides[d] != expected)
      throw InvalidArgument("the events of a trace must lie in one piece; pass bytes(events) or a contiguous array");
    expected *= info.shape[d];
  }
  const auto n = static_cast<std::size_t>(info.size * info.itemsize);
  if (n % sizeof(TraceEvent) != 0)
    throw InvalidArgument("the events of a trace take " + std::to_string(sizeof(TraceEvent)) +
                          " bytes each, but there are " + std::to_string(n) + " bytes; read them with dymem.trace");
  std::vector<TraceEvent> events(n / sizeof(TraceEvent));
  if (n != 0) std::memcpy(events.data(), info.ptr, n);
  return events;
}

py::bytes events_to_bytes(const std::vector<TraceEvent>& events) {
  return py::bytes(reinterpret_cast<const char*>(events.data()), events.size() * sizeof(TraceEvent));
}

}  // namespace dymem
