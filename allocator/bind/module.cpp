// dymem._core: the C++ core for Python. Built without torch; links to libdymem, as the adapter does, so that a process
// has one pool however it is reached.
//
// Here: the module itself and the translation of exceptions. The classes live in dymem/errors.py (Python code catches
// them without loading this module), so each C++ exception is raised as its namesake there, with its figures as
// attributes. Anything else that is thrown falls through to pybind11's own rules.
#include <pybind11/pybind11.h>

#include <algorithm>

#include "base/errors.hpp"
#include "bind/bind.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

py::dict figures_dict(const OutOfMemoryFigures& f) {
  py::dict d;
  d["requested"] = f.requested;
  d["live"] = f.live;
  d["pending"] = f.pending;
  d["reserved"] = f.reserved;
  d["private_pools"] = f.private_pools;
  d["limit"] = f.limit;
  d["largest_free"] = f.largest_free;
  d["device_free"] = f.device_free;
  d["device_total"] = f.device_total;
  d["device"] = f.device;
  d["overhead"] = f.overhead;
  return d;
}

std::string sentence_of(const py::kwargs& given) {
  OutOfMemoryFigures f;
  const std::pair<const char*, Bytes*> fields[] = {
      {"requested", &f.requested},       {"live", &f.live},   {"pending", &f.pending},
      {"reserved", &f.reserved},         {"limit", &f.limit}, {"private_pools", &f.private_pools},
      {"largest_free", &f.largest_free}, {"device_free", &f.device_free}, {"device_total", &f.device_total},
      {"shared", &f.shared}};
  const std::pair<const char*, bool*> flags[] = {{"joins", &f.joins}, {"kept", &f.kept}, {"apart", &f.apart}};
  for (const auto& [name, value] : given) {
    if (auto flag = std::find_if(std::begin(flags), std::end(flags),
                                 [&](auto& known) { return py::cast<std::string>(name) == known.first; });
        flag != std::end(flags)) {
      *flag->second = py::cast<bool>(value);
      continue;
    }
    const auto* field = std::find_if(std::begin(fields), std::end(fields),
                                     [&](auto& known) { return py::cast<std::string>(name) == known.first; });
    if (field == std::end(fields)) throw py::key_error(py::cast<std::string>(name));
    *field->second = py::cast<Bytes>(value);
  }
  return out_of_memory_sentence(f);
}

void raise(const char* name, const py::tuple& arguments) {
  const py::object type = py::module_::import("dymem.errors").attr(name);
  const py::object value = type(*arguments);
  PyErr_SetObject(type.ptr(), value.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const OutOfMemory& e) {
    raise("OutOfMemory", py::make_tuple(e.what(), figures_dict(e.figures)));
  } catch (const DriverError& e) {
    raise("DriverError", py::make_tuple(e.what(), e.call, e.code));
  } catch (const InvalidArgument& e) {
    raise("InvalidArgument", py::make_tuple(e.what()));
  } catch (const SleepError& e) {
    raise("SleepError", py::make_tuple(e.what()));
  } catch (const InternalError& e) {
    raise("InternalError", py::make_tuple(e.what()));
  } catch (const Error& e) {
    raise("DymemError", py::make_tuple(e.what()));
  }
}

}  // namespace
}  // namespace dymem

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of dymem: pool, drivers, traces and replay.";
  py::register_exception_translator(&dymem::translate);
  m.def("out_of_memory_sentence", &dymem::sentence_of, "What users see of figures (bytes) given by name.");
  dymem::bind_driver(m.def_submodule("driver", "Devices: the CUDA driver, the emulation, and their decorators."));
  pybind11::module_ pool = m.def_submodule("pool", "The pool itself, on any driver.");
  dymem::bind_pool(pool);
  dymem::bind_tagger(pool);
  dymem::bind_period(pool);
  dymem::bind_trace(m.def_submodule("trace", "dymem's own trace format."), m);
  dymem::bind_abi(m.def_submodule("abi", "The pools of this process and their configuration."));
}
