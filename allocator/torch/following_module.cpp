// dymem._torch, continued: following a profiled iteration, for python/dymem/mobility. Patterns cross as bytes.
#include <pybind11/pybind11.h>

#include <string>
#include <tuple>
#include <vector>

#include "torch/following.hpp"

namespace py = pybind11;

namespace dymem {

void bind_following(py::module_& m) {
  py::module_ f = m.def_submodule("following", "Classes of allocations by a profiled iteration; see following.hpp.");
  f.def(
      "follow",
      [](const py::list& patterns, bool trusted) {
        std::vector<Following::DevicePattern> all;
        for (const py::handle& row : patterns) {
          const auto [device, stream, steps, classes, widths] =
              row.cast<std::tuple<int, StreamId, std::string, std::string, std::string>>();
          all.emplace_back(device, StreamPattern(stream, steps, classes, widths));
        }
        py::gil_scoped_release gil;
        following().follow(all, trusted);
      },
      py::arg("patterns"), py::arg("trusted") = false,
      "Of each (device, stream): steps as signed, classes and widths as unsigned bytes. Whether the first step is about "
      "to come.");
  f.def("stop", [] { following().stop(); }, py::call_guard<py::gil_scoped_release>());
  f.def("on", [] { return following().on(); });
  f.def("stats", [] {
    FollowingStats s;
    {
      py::gil_scoped_release gil;
      s = following().stats();
    }
    py::dict d;
    FollowingStats::each([&](const char* name, auto member) { d[name] = s.*member; });
    return d;
  });
}

}  // namespace dymem
