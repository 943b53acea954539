// dymem._torch, continued: the search for iterations, for python/dymem/mobility/automatic.py.
#include <pybind11/pybind11.h>

#include "torch/searching.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

// Called in the interpreter's main thread. Never freed: a call may be pending when all else ends.
py::function* woken = nullptr;

int call_woken(void*) {
  try {
    if (woken && searching().on()) (*woken)();
  } catch (py::error_already_set& error) {  // the program it interrupts has done nothing wrong
    error.discard_as_unraisable("dymem's search for iterations");
  }
  return 0;
}

// Where too many calls are pending it is dropped; the next step to wake at comes with the next mark.
void make_pending() { (void)Py_AddPendingCall(&call_woken, nullptr); }

}  // namespace

void bind_searching(py::module_& m) {
  py::module_ s = m.def_submodule("searching", "Iterations found in what the pools are asked; see searching.hpp.");
  s.def(
      "start",
      [](py::function function) {
        auto* const kept = new py::function(std::move(function));
        woken = kept;
        py::gil_scoped_release gil;
        searching().start(&make_pending);
      },
      py::arg("woken"), "`woken` is called in the main thread, between two instructions, when wake_at() is reached.");
  s.def("stop", [] { searching().stop(); }, py::call_guard<py::gil_scoped_release>());
  s.def("on", [] { return searching().on(); });
  s.def("steps", [] { return searching().steps(); });
  s.def("wake_at", [](std::uint64_t step) { searching().wake_at(step); }, py::arg("step"));
  s.def(
      "find",
      []() -> py::object {
        Period found;
        {
          py::gil_scoped_release gil;
          found = searching().find();
        }
        if (!found.steps) return py::none();
        using py::literals::operator""_a;
        return py::dict("steps"_a = found.steps, "repeats"_a = found.repeats, "since"_a = found.since);
      },
      "{steps, repeats, since}, or None; see pool/period.hpp.");
}

}  // namespace dymem
