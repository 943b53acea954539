// dymem._core.pool.Tagger: the following of profiled iterations by itself, for tests against its statement in Python.
#include <pybind11/pybind11.h>

#include <string>
#include <tuple>
#include <vector>

#include "bind/bind.hpp"
#include "bind/convert.hpp"
#include "pool/tagger.hpp"

namespace py = pybind11;

namespace dymem {

void bind_tagger(py::module_ m) {
  py::class_<Tagger> tagger(m, "Tagger", "Classes of allocations by what a profiled iteration did; see tagger.hpp.");
  tagger.def(py::init<>());
  tagger.attr("FAR") = Tagger::kFar;
  tagger.attr("ALIGNED") = Tagger::kAligned;
  tagger.attr("TRUSTED") = Tagger::kTrusted;
  tagger.attr("DEPARTED") = Tagger::kDeparted;
  tagger.attr("TRUST_MOST") = Tagger::kTrustMost;
  tagger.attr("SURE") = Tagger::kSure;
  tagger.attr("UNLIKE") = Tagger::kUnlike;
  tagger.attr("STREAMS_MAX") = Tagger::kStreamsMax;
  tagger.def(
      "follow",
      [](Tagger& self, const py::list& patterns, bool trusted) {
        std::vector<StreamPattern> all;
        for (const py::handle& row : patterns) {
          const auto [stream, steps, classes, widths] =
              row.cast<std::tuple<StreamId, std::string, std::string, std::string>>();
          all.emplace_back(stream, steps, classes, widths);
        }
        Tagger::check(all);
        self.follow(all, trusted);
      },
      py::arg("patterns"), py::arg("trusted") = false,
      "Of each (stream, steps as signed bytes, classes and widths as bytes); whether the first step is about to come.");
  tagger.def("stop", &Tagger::stop);
  tagger.def(
      "next", [](Tagger& self, StreamId stream, Bytes bytes) { return int(self.next(stream, bytes)); },
      py::arg("stream"), py::arg("bytes"), "The class of an allocation to come.");
  tagger.def(
      "alloc",
      [](Tagger& self, StreamId stream, Bytes bytes, Addr at) {
        const Mobility given = self.next(stream, bytes);
        self.allocated(stream, bytes, at, given);
        return int(given);
      },
      py::arg("stream"), py::arg("bytes"), py::arg("address"), "An allocation that succeeds; its class.");
  tagger.def("free", &Tagger::freed, py::arg("stream"), py::arg("address"));
  tagger.def("stats", [](const Tagger& self) {
    const FollowingStats s = self.stats();
    py::dict d;
    FollowingStats::each([&](const char* name, auto member) { d[name] = s.*member; });
    return d;
  });
}

}  // namespace dymem
