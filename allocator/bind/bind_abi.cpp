// dymem._core.abi: the process's configuration, pools and statistics, for Python without torch.
// The GIL is given up around what may call a driver, so that a thread waiting for the pool's lock never holds it.
#include "abi/entry.hpp"
#include "abi/registry.hpp"
#include "bind/bind.hpp"
#include "trace/recorder.hpp"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace dymem {
namespace {

void put(py::dict& out, const std::string& name, const Stat& stat) {
  out[py::str(name + ".current")] = stat.current;
  out[py::str(name + ".peak")] = stat.peak;
  out[py::str(name + ".allocated")] = stat.allocated;
  out[py::str(name + ".freed")] = stat.freed;
}

void put(py::dict& out, const std::string& name, const StatArray& stats) {
  put(out, name + ".all", stats[kAll]);
  put(out, name + ".small_pool", stats[kSmall]);
  put(out, name + ".large_pool", stats[kLarge]);
}

// The names are those of torch.cuda.memory_stats(); dymem's own come after.
py::dict stats_dict(const PoolStats& s) {
  py::dict out;
  put(out, "allocation", s.allocation);
  put(out, "segment", s.segment);
  put(out, "active", s.active);
  put(out, "inactive_split", s.inactive_split);
  put(out, "allocated_bytes", s.allocated_bytes);
  put(out, "reserved_bytes", s.reserved_bytes);
  put(out, "active_bytes", s.active_bytes);
  put(out, "inactive_split_bytes", s.inactive_split_bytes);
  put(out, "requested_bytes", s.requested_bytes);
  out["num_alloc_retries"] = s.num_alloc_retries;
  out["num_ooms"] = s.num_ooms;
  out["num_sync_all_streams"] = s.num_sync_all_streams;
  out["num_device_alloc"] = s.num_device_alloc;
  out["num_device_free"] = s.num_device_free;
  out["max_split_size"] = s.max_split_size;
  put(out, "pending_bytes", s.pending_bytes);
  out["num_stitches"] = s.num_stitches;
  out["num_stitch_reuses"] = s.num_stitch_reuses;
  out["num_sticky_hits"] = s.num_sticky_hits;
  out["num_stream_waits"] = s.num_stream_waits;
  out["views"] = s.views;
  out["views_max"] = s.views_max;
  out["va_bytes"] = s.va_bytes;
  out["va_bytes_max"] = s.va_bytes_max;
  return out;
}

}  // namespace

void bind_abi(py::module_ m) {
  m.doc() = "The process's configuration, pools (one per device) and statistics.";
  m.def("configure", [](const std::string& text) { configure(parse_config(text)); }, py::arg("text"),
        "Set the configuration, as key:value,...; raises if another one is set already.");
  m.def("parse_config", [](const std::string& text) { return config_to_string(parse_config(text)); }, py::arg("text"),
        "The configuration that `text` means, with every key.");
  m.def("process_config", [] { return config_to_string(process_config()); },
        "The configuration in force, with every key; reads DYMEM_CONF if nothing was set.");
  m.def("valid_keys", [] { return config_keys(); });
  m.def("device_count", &device_count, py::call_guard<py::gil_scoped_release>());
  m.def("forked", &forked);
  m.def("made", [](int device) { return pool_if_made(device) != nullptr; }, py::arg("device") = 0,
        "Whether the pool of a device exists; asking makes none.");
  m.def("stats",
        [](int device) {
          Pool* made = pool_if_made(device);
          return stats_dict(made ? made->stats() : PoolStats{});
        },
        py::arg("device") = 0, "PyTorch's names and dymem's own; zeros if the pool was not made.");
  m.def("pool", &pool, py::arg("device") = 0, py::return_value_policy::reference,
        py::call_guard<py::gil_scoped_release>(), "The pool of a device, made at first use.");
  m.def("trim", &trim_all, py::call_guard<py::gil_scoped_release>(), "Give idle granules back; returns bytes.");
  m.def("set_memory_fraction",
        [](int device, double fraction) { set_memory_fraction(device, pool(device), fraction); }, py::arg("device"), py::arg("fraction"),
        py::call_guard<py::gil_scoped_release>());
  m.def("memory_fraction", &memory_fraction, py::arg("device"));
  m.def("recorder", &recorder, py::arg("device") = 0, py::return_value_policy::reference,
        "The trace recorder of a device, or None unless trace:on.");
}

}  // namespace dymem
