// dymem._core.pool.PeriodFinder and find_period: iterations found in what a stream does, for tests and recordings.
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/errors.hpp"
#include "bind/bind.hpp"
#include "pool/period.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

py::object told(const Period& p) {
  if (!p.steps) return py::none();
  using py::literals::operator""_a;
  return py::dict("steps"_a = p.steps, "repeats"_a = p.repeats, "since"_a = p.since);
}

}  // namespace

void bind_period(py::module_ m) {
  py::class_<PeriodFinder> finder(m, "PeriodFinder", "Finds how many steps an iteration has; see period.hpp.");
  finder.def(py::init<>());
  finder.attr("CONTEXT") = PeriodFinder::kContext;
  finder.attr("KEPT") = PeriodFinder::kKept;
  finder.attr("STREAMS") = PeriodFinder::kStreams;
  finder.def("alloc", &PeriodFinder::allocated, py::arg("stream"), py::arg("bytes"), py::arg("address"))
      .def("free", &PeriodFinder::freed, py::arg("stream"), py::arg("address"))
      .def("steps", &PeriodFinder::steps)
      .def("find", [](const PeriodFinder& self) { return told(self.find()); })
      .def("wake_at", &PeriodFinder::wake_at, py::arg("step"))
      .def("clear", &PeriodFinder::clear);
  m.def(
      "find_period",
      [](const std::string& steps) {
        for (const char step : steps)
          if (step < StreamSteps::kOther || step > int(StreamSteps::kFar))
            throw InvalidArgument("dymem: there is a step " + std::to_string(int(step)) + "; steps are from -1 to 16.");
        const std::vector<std::int8_t> all(steps.begin(), steps.end());
        py::gil_scoped_release gil;
        const Period found = find_period(all);
        py::gil_scoped_acquire again;
        return told(found);
      },
      py::arg("steps"), "Steps as signed bytes: {steps, repeats, since}, or None.");
}

}  // namespace dymem
