// dymem._torch, continued: the operator log, for python/dymem/mobility. Entries cross as bytes (op_log.ENTRY_FORMAT).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "torch/op_log.hpp"

namespace py = pybind11;

namespace dymem {

void bind_op_log(py::module_& m) {
  py::module_ log =
      m.def_submodule("op_log", "What operators were given, and what was allocated between; see op_log.hpp.");
  log.attr("ENTRY_FORMAT") = "<BBHIQQQ";  // kind, flags, thread, name, a, b, c
  log.def(
      "start", [](bool host) { op_log().start(host); }, py::arg("host") = false,
      py::call_guard<py::gil_scoped_release>());
  log.def("running", [] { return op_log().running(); });
  log.def("stop", [] {
    OpLog::Result result;
    {
      py::gil_scoped_release gil;
      result = op_log().stop();
    }
    py::dict d;
    d["entries"] =
        py::bytes(reinterpret_cast<const char*>(result.entries.data()), result.entries.size() * sizeof(OpEntry));
    d["names"] = result.names;
    d["streams"] = result.streams;
    d["lost"] = result.lost;
    d["thread"] = result.thread;
    d["displaced"] = result.displaced;
    return d;
  });
}

}  // namespace dymem
