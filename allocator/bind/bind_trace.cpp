// dymem._core.trace (trace files, the recorder) and dymem._core.replay. Events cross as bytes in the layout of
// trace/event.hpp, whose struct format is trace.EVENT_FORMAT; numpy reads them with the same field order.
//
// A replay runs without the GIL; now and then it takes it to call `progress` and to let signals in, so that Ctrl-C ends
// it. Keys of its result are those of `dymem replay --json`.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/bind.hpp"
#include "bind/convert.hpp"
#include "replay/replay.hpp"
#include "replay/trace_facts.hpp"
#include "trace/recorder.hpp"
#include "trace/trace_io.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

py::dict trace_dict(const Trace& trace) {
  py::dict d;
  d["device"] = trace.device;
  d["granularity"] = trace.granularity;
  d["dropped"] = trace.dropped;
  d["count"] = trace.events.size();
  d["events"] = events_to_bytes(trace.events);
  return d;
}

ReplayOptions replay_options(const py::dict& options) {
  ReplayOptions out;
  for (const auto& [key, value] : options) {
    const auto name = py::cast<std::string>(key);
    if (set_pool_option(&out.pool, name, value)) continue;
    if (name == "lag_ns") out.lag_ns = py::cast<Nanos>(value);
    else if (name == "warm_from_iteration") out.warm_from_iteration = py::cast<int>(value);
    else if (name == "audit_every") out.audit_every = to_u64(value, "audit_every");
    else if (name == "layout") out.layout = py::cast<bool>(value);
    else
      throw InvalidArgument("'" + name + "' is no option of a replay; the options are " + pool_option_names() +
                            ", lag_ns, warm_from_iteration, audit_every and layout");
  }
  return out;
}

py::dict oom_dict(const ReplayOom& oom) {
  py::dict d;
  d["event"] = oom.event;
  d["requested_bytes"] = oom.figures.requested;
  d["live_bytes"] = oom.figures.live;
  d["pending_bytes"] = oom.figures.pending;
  d["reserved_bytes"] = oom.figures.reserved;
  d["limit_bytes"] = oom.figures.limit;
  d["largest_free_bytes"] = oom.figures.largest_free;
  d["device_free_bytes"] = oom.figures.device_free;
  d["device_total_bytes"] = oom.figures.device_total;
  d["overhead"] = oom.figures.overhead;
  return d;
}

template <class T>
py::bytes raw_bytes(const std::vector<T>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// As bytes that numpy reads: u64 an event three times over, and five u64 a change (replay/layout_watch.hpp).
py::dict layout_dict(const ReplayLayout& layout) {
  py::dict d;
  d["addresses"] = raw_bytes(layout.address);
  d["reserved"] = raw_bytes(layout.reserved);
  d["spanned"] = raw_bytes(layout.spanned);
  d["changes"] = raw_bytes(layout.changes);
  return d;
}

py::dict result_dict(const ReplayResult& r) {
  py::dict d;
  d["events"] = r.events;
  d["live_peak_bytes"] = r.live_peak_bytes;
  d["occupied_peak_bytes"] = r.occupied_peak_bytes;
  d["reserved_peak_bytes"] = r.reserved_peak_bytes;
  d["overhead"] =
      r.occupied_peak_bytes == 0 ? 0.0 : double(r.reserved_peak_bytes) / double(r.occupied_peak_bytes) - 1.0;
  d["native_reserved_peak_bytes"] =
      r.native_reserved_peak_bytes ? py::object(py::int_(*r.native_reserved_peak_bytes)) : py::object(py::none());
  d["driver_calls"] = r.driver_calls;
  d["driver_calls_warm"] = r.driver_calls_warm;
  d["driver_time_us"] = r.driver_time_us;
  d["driver_time_warm_us"] = r.driver_time_warm_us;
  d["trace_time_warm_us"] = r.trace_time_warm_us;
  d["event_calls"] = r.event_calls;
  d["views_max"] = r.views_max;
  d["va_peak_bytes"] = r.va_peak_bytes;
  d["oom"] = r.oom ? py::object(oom_dict(*r.oom)) : py::object(py::none());
  d["malloc_ns_median"] = r.malloc_ns_median;
  d["malloc_ns_p99"] = r.malloc_ns_p99;
  d["free_ns_median"] = r.free_ns_median;
  d["free_ns_p99"] = r.free_ns_p99;
  py::dict needed;
  for (const auto& [iteration, bytes] : r.needed) needed[py::str(std::to_string(iteration))] = bytes;
  d["needed_by_iteration"] = needed;
  d["unusable_free"] = unusable_dict(r.unusable_free);
  d["audit"] = r.audit;
  d["stats"] = stats_dict(r.stats);
  return d;
}

py::dict run_replay(const py::buffer& buffer, const py::dict& options, const py::object& progress) {
  const std::vector<TraceEvent> events = events_from_buffer(buffer);
  const ReplayOptions parsed = replay_options(options);
  ReplayResult result;
  {
    py::gil_scoped_release no_gil;
    result = replay(events, parsed, [&](std::uint64_t done) {
      py::gil_scoped_acquire gil;
      if (!progress.is_none()) progress(done);
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    });
  }
  py::dict out = result_dict(result);
  if (parsed.layout) out["layout"] = layout_dict(result.layout);
  return out;
}

}  // namespace

void bind_trace(py::module_ m, py::module_ parent) {
  m.attr("EVENT_FORMAT") = "<qQQQBBHi";  // time_ns, block, size, stream, kind, mobility, aux, iteration
  m.attr("EVENT_BYTES") = sizeof(TraceEvent);
  m.attr("VERSION") = kTraceVersion;
  py::dict kinds;
  kinds["alloc"] = int(TraceKind::alloc);
  kinds["free_requested"] = int(TraceKind::free_requested);
  kinds["free_completed"] = int(TraceKind::free_completed);
  kinds["record_stream"] = int(TraceKind::record_stream);
  kinds["mark"] = int(TraceKind::mark);
  kinds["segment_alloc"] = int(TraceKind::segment_alloc);
  kinds["segment_free"] = int(TraceKind::segment_free);
  m.attr("KINDS") = kinds;

  m.def(
      "read",
      [](const std::string& path) {
        Trace trace;
        {
          py::gil_scoped_release gil;
          trace = read_trace(path);
        }
        return trace_dict(trace);
      },
      py::arg("path"),
      "A trace file of dymem's own as {'events': bytes, 'count', 'device', 'granularity', 'dropped'}.");
  m.def(
      "write",
      [](const std::string& path, const py::buffer& events, int device, const py::object& granularity,
         const py::object& dropped) {
        Trace trace;
        trace.device = device;
        trace.granularity = to_u64(granularity, "granularity");
        trace.dropped = to_u64(dropped, "dropped");
        trace.events = events_from_buffer(events);
        py::gil_scoped_release gil;
        write_trace(path, trace);
      },
      py::arg("path"), py::arg("events"), py::arg("device") = 0, py::arg("granularity") = kGranuleUnit,
      py::arg("dropped") = 0);
  m.def(
      "is_trace",
      [](const py::bytes& head) {
        const std::string bytes = head;
        return is_trace_magic(bytes.data(), bytes.size());
      },
      py::arg("head"), "Does a file that begins with these bytes claim to be a dymem trace?");

  m.def(
      "facts",
      [](const py::buffer& events) {
        const TraceFacts facts = trace_facts(events_from_buffer(events), ReplayOptions{}.warm_from_iteration);
        py::dict d;
        d["live_peak_bytes"] = facts.live_peak;
        d["occupied_peak_bytes"] = facts.occupied_peak;
        d["native_reserved_peak_bytes"] =
            facts.native_reserved_peak ? py::object(py::int_(*facts.native_reserved_peak)) : py::object(py::none());
        return d;
      },
      py::arg("events"), "What a trace says by itself, without a pool: its peaks.");

  py::class_<TraceRecorder>(m, "Recorder", "Keeps the youngest `max_events` events of a pool (Pool.set_recorder).")
      .def(py::init([](const py::object& max_events) {
             return std::make_unique<TraceRecorder>(to_u64(max_events, "max_events"));
           }),
           py::arg("max_events") = 4'000'000)
      .def("events",
           [](const TraceRecorder& recorder) {
             std::vector<TraceEvent> events;
             {
               py::gil_scoped_release gil;
               events = recorder.events();
             }
             return events_to_bytes(events);
           })
      .def(
          "record",
          [](TraceRecorder& recorder, const py::buffer& events) {
            for (const TraceEvent& e : events_from_buffer(events)) recorder.record(e);
          },
          py::arg("events"), "Adds events of the program's own, such as marks.")
      .def("dropped", &TraceRecorder::dropped)
      .def("clear", &TraceRecorder::clear);

  parent.def("replay", &run_replay, py::arg("events"), py::arg("options") = py::dict(),
             py::arg("progress") = py::none(),
             "Replays a trace through a pool on the emulated driver; see dymem.replay.");
}

}  // namespace dymem
