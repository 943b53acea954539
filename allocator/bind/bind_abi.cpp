// dymem._core.abi: the process's configuration, pools and statistics, for Python without torch.
// The GIL is given up around what may call a driver, so that a thread waiting for the pool's lock never holds it.
#include <pybind11/stl.h>

#include "abi/entry.hpp"
#include "abi/holders.hpp"
#include "abi/registry.hpp"
#include "abi/sharing.hpp"
#include "bind/bind.hpp"
#include "bind/convert.hpp"
#include "driver/emulated.hpp"
#include "trace/recorder.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

// {"active": {"all": {"current": 1}}} -> {"active.all.current": 1}: the form of torch.cuda.memory_stats().
void flatten(const py::dict& from, const std::string& prefix, py::dict& to) {
  for (const auto& [key, value] : from) {
    std::string name = key.cast<std::string>();
    if (name == "small" || name == "large") name += "_pool";  // as PyTorch calls them
    name = prefix.empty() ? name : prefix + "." + name;
    if (py::isinstance<py::dict>(value)) flatten(py::reinterpret_borrow<py::dict>(value), name, to);
    else to[py::str(name)] = value;
  }
}

py::dict flat_stats(int device) {
  if (device < 0 || device >= kDevicesMax)
    throw InvalidArgument("there is no device " + std::to_string(device) + "; devices are numbered from 0 to " +
                          std::to_string(kDevicesMax - 1) + ".");
  PoolStats stats;
  UnusableFree free;
  if (Pool* made = pool_if_made(device)) {
    py::gil_scoped_release others;
    stats = made->stats();
    free = made->unusable_free();
  }
  py::dict flat;
  flatten(stats_dict(stats), "", flat);
  py::dict unusable;
  unusable["unusable_free"] = unusable_dict(free);
  flatten(unusable, "", flat);
  const Imports mapped = imports(device);
  flat["imported_bytes"] = mapped.bytes;
  flat["imported_mappings"] = mapped.mappings;
  flat["imported_waiting"] = mapped.waiting;
  return flat;
}

// The driver under a device's pool, with the emulation's own controls if it is one.
py::object driver_of(int device) {
  Pool* made = pool_if_made(device);
  if (!made) return py::none();
  Driver* driver = &made->driver();
  if (auto* emulated = dynamic_cast<EmulatedDriver*>(driver))
    return py::cast(emulated, py::return_value_policy::reference);
  return py::cast(driver, py::return_value_policy::reference);
}

}  // namespace

void bind_abi(py::module_ m) {
  m.doc() = "The process's configuration, pools (one per device) and statistics.";
  m.def(
      "configure", [](const std::string& text) { configure(parse_config(text)); }, py::arg("text"),
      "Set the configuration, as key:value,...; raises if another one is set already.");
  m.def(
      "parse_config", [](const std::string& text) { return config_to_string(parse_config(text)); }, py::arg("text"),
      "The configuration that `text` means, with every key.");
  m.def(
      "process_config", [] { return config_to_string(process_config()); },
      "The configuration in force, with every key; reads DYMEM_CONF if nothing was set.");
  m.def("valid_keys", [] { return config_keys(); });
  m.def("device_count", &device_count, py::call_guard<py::gil_scoped_release>());
  m.def("forked", &forked);
  m.attr("DEVICES_MAX") = kDevicesMax;
  m.def(
      "made", [](int device) { return pool_if_made(device) != nullptr; }, py::arg("device") = 0,
      "Whether the pool of a device exists; asking makes none.");
  m.def("stats", &flat_stats, py::arg("device") = 0,
        "The names of torch.cuda.memory_stats() and dymem's own; zeros if the pool was not made.");
  m.def("pool", &pool, py::arg("device") = 0, py::return_value_policy::reference,
        py::call_guard<py::gil_scoped_release>(), "The pool of a device, made at first use.");
  m.def("driver", &driver_of, py::arg("device") = 0, "The driver under a device's pool; None if it was not made.");
  m.def(
      "share",
      [](Addr address) {
        SharedHandle shared;
        {
          py::gil_scoped_release gil;
          shared = share(address);
        }
        return py::make_tuple(py::bytes(shared.handle), shared.offset);
      },
      py::arg("address"), "(handle, offset) for another process.");
  m.def(
      "map_shared", [](Driver& driver, const std::string& handle) { return map_shared(driver, handle); },
      py::arg("driver"), py::arg("handle"), py::call_guard<py::gil_scoped_release>(),
      "(address, bytes): maps what a handle names through a driver, which the caller unmaps.");
  m.def("trim", &trim_all, py::call_guard<py::gil_scoped_release>(), "Give idle granules back; returns bytes.");
  m.def(
      "set_memory_fraction", [](int device, double fraction) { set_memory_fraction(device, pool(device), fraction); },
      py::arg("device"), py::arg("fraction"), py::call_guard<py::gil_scoped_release>());
  m.def("memory_fraction", &memory_fraction, py::arg("device"));
  m.def("hold", &hold, py::arg("bytes"), py::arg("device") = 0, py::arg("stream") = 0, py::arg("holder"),
        py::call_guard<py::gil_scoped_release>(), "An address for `holder`, which memory_stats() names; see holders.hpp.");
  m.def("release", &release, py::arg("address"), py::call_guard<py::gil_scoped_release>());
  m.def("release_quietly", &release_quietly, py::arg("address"), py::call_guard<py::gil_scoped_release>());
  m.def("use_on_stream", &use_on_stream, py::arg("address"), py::arg("stream"),
        py::call_guard<py::gil_scoped_release>());
  m.def(
      "held_by_others",
      [](int device) {
        py::dict found;
        for (const auto& [name, held] : held_by_others(device)) found[py::str(name)] = held.bytes;
        return found;
      },
      py::arg("device") = 0, "Live bytes of each holder that is not PyTorch.");
  m.def("recorder", &recorder, py::arg("device") = 0, py::return_value_policy::reference,
        "The trace recorder of a device, or None unless trace:on.");
}

}  // namespace dymem
