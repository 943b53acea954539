// dymem._core.pool: the pool as it is, for tests, tools and callers that are not PyTorch.
//
//   B1  Addresses and sizes are plain ints. What no pool could serve (negative, beyond 64 bits) is an InvalidArgument.
//   B2  A pool keeps its driver, and a recorder once attached, alive.
//   B3  Calls run without the GIL; the reclaim callback takes it, and what it raises comes out of malloc.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/bind.hpp"
#include "bind/convert.hpp"
#include "pool/pool.hpp"
#include "trace/recorder.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

const char* state_name(BlockState state) {
  switch (state) {
    case BlockState::free:
      return "free";
    case BlockState::live:
      return "live";
    case BlockState::pending:
      return "pending";
  }
  return "unknown";
}

py::dict block_dict(const BlockInfo& b) {
  py::dict d;
  d["address"] = b.address;
  d["size"] = b.size;
  d["requested"] = b.requested;
  d["stream"] = b.stream;
  d["mobility"] = mobility_name(b.mobility);
  d["state"] = state_name(b.state);
  d["stitched"] = b.stitched;
  return d;
}

// Dropped by whoever drops the pool, so it takes the GIL for that too.
ReclaimCallback reclaim_callback(const py::object& callback) {
  if (callback.is_none()) return {};
  if (!PyCallable_Check(callback.ptr())) throw py::type_error("a reclaim callback must be callable, or None");
  std::shared_ptr<py::object> held(new py::object(callback), [](py::object* o) {
    py::gil_scoped_acquire gil;
    delete o;
  });
  return [held](Bytes wanted) -> Bytes {
    py::gil_scoped_acquire gil;
    return to_u64((*held)(wanted), "what a reclaim callback returns");
  };
}

TagSet tag_set(const py::object& names) {
  TagSet tags;
  if (names.is_none()) return tags;
  if (PyUnicode_Check(names.ptr())) throw py::type_error("tags must be a list of str; for one tag, [\"name\"]");
  for (const py::handle& name : names) tags.set(tag_number(to_text(name, "a tag")));
  return tags;
}

py::dict report_dict(const SleepReport& r) {
  py::dict d;
  d["memory_bytes"] = r.memory;
  d["copied_bytes"] = r.copied;
  d["dropped_bytes"] = r.dropped;
  d["stayed_bytes"] = r.stayed;
  d["seconds"] = r.seconds;
  d["copy_seconds"] = r.copy_seconds;
  d["host_seconds"] = r.host_seconds;
  return d;
}

using WithoutGil = py::call_guard<py::gil_scoped_release>;

}  // namespace

void bind_pool(py::module_ m) {
  m.def("tag_number", &tag_number, py::arg("name"), "The number of a tag, for good; made at first use.");
  m.def(
      "set_current_tag", [](const py::object& tag) { return set_current_tag(Tag(to_u64(tag, "tag"))); }, py::arg("tag"),
      "Blocks handed to this thread carry it from now on (0: untagged); returns what it was.");
  py::class_<Pool>(m, "Pool", "The pool of one device: blocks, limit, statistics, audit.")
      .def(py::init([](Driver& driver, const py::kwargs& options) {
             return std::make_unique<Pool>(driver, pool_config(options));
           }),
           py::arg("driver"), py::keep_alive<1, 2>(),
           "Options: limit, backing (auto, vmm, contiguous), alias, wait, debug, grow_ratio, grow_slack.")
      .def(
          "malloc",
          [](Pool& pool, const py::object& bytes, const py::object& stream, const std::string& mobility) {
            const Bytes n = to_u64(bytes, "bytes");
            const StreamId s = to_u64(stream, "stream");
            const Mobility m = mobility_from(mobility);
            py::gil_scoped_release gil;
            return pool.malloc(n, s, m);
          },
          py::arg("bytes"), py::arg("stream") = 0, py::arg("mobility") = "untagged",
          "The address of a block, ready for work enqueued on `stream` from now on.")
      .def(
          "free",
          [](Pool& pool, const py::object& address) {
            const Addr a = to_u64(address, "address");
            py::gil_scoped_release gil;
            pool.free(a);
          },
          py::arg("address"))
      .def(
          "record_stream",
          [](Pool& pool, const py::object& address, const py::object& stream) {
            const Addr a = to_u64(address, "address");
            const StreamId s = to_u64(stream, "stream");
            py::gil_scoped_release gil;
            pool.record_stream(a, s);
          },
          py::arg("address"), py::arg("stream"), "Work already enqueued on `stream` uses the block too.")
      .def("trim", &Pool::trim, WithoutGil(), "Gives idle granules back to the device; returns their bytes.")
      .def(
          "pin",
          [](Pool& pool, const py::object& address) {
            const Addr a = to_u64(address, "address");
            py::gil_scoped_release gil;
            pool.pin(a);
          },
          py::arg("address"), "Never moved, stitched or given back from now on.")
      .def(
          "unpin",
          [](Pool& pool, const py::object& address) {
            const Addr a = to_u64(address, "address");
            py::gil_scoped_release gil;
            pool.unpin(a);
          },
          py::arg("address"))
      .def(
          "set_limit",
          [](Pool& pool, const py::object& limit) {
            const Bytes n = to_u64(limit, "limit");
            py::gil_scoped_release gil;
            pool.set_limit(n);
          },
          py::arg("limit"), "Bytes that the pool may hold; 0 = no limit.")
      .def("limit", &Pool::limit, WithoutGil())
      .def(
          "set_reclaim_callback",
          [](Pool& pool, const py::object& callback) { pool.set_reclaim_callback(reclaim_callback(callback)); },
          py::arg("callback"), "callback(wanted) -> bytes set free; called before malloc gives up. None: no callback.")
      .def(
          "find",
          [](const Pool& pool, const py::object& address) -> py::object {
            BlockInfo info;
            if (!pool.find(to_u64(address, "address"), &info)) return py::none();
            return block_dict(info);
          },
          py::arg("address"), "The block that a caller holds and `address` lies in, or None.")
      .def(
          "owns", [](const Pool& pool, const py::object& address) { return pool.owns(to_u64(address, "address")); },
          py::arg("address"))
      .def(
          "largest_free",
          [](const Pool& pool, const py::object& stream) { return pool.largest_free(to_u64(stream, "stream")); },
          py::arg("stream") = 0)
      .def("stats", [](const Pool& pool) { return stats_dict(pool.stats()); })
      .def(
          "sleep",
          [](Pool& pool, const py::object& tags, const py::object& keep, bool drop_untagged) {
            SleepRequest request;
            request.everything = tags.is_none();
            request.tags = tag_set(tags);
            request.keep_everything = keep.is_none();
            request.kept = tag_set(keep);
            request.drop_untagged = drop_untagged;
            SleepReport report;
            {
              py::gil_scoped_release gil;
              report = pool.sleep(request);
            }
            return report_dict(report);
          },
          py::arg("tags") = py::none(), py::arg("keep") = py::none(), py::arg("drop_untagged") = false,
          "Gives memory back and keeps the addresses. tags: what sleeps (None: everything); keep: tags whose contents "
          "are kept beside what is untagged (None: all contents).")
      .def(
          "wake",
          [](Pool& pool, const py::object& tags) {
            WakeRequest request;
            request.everything = tags.is_none();
            request.tags = tag_set(tags);
            SleepReport report;
            {
              py::gil_scoped_release gil;
              report = pool.wake(request);
            }
            return report_dict(report);
          },
          py::arg("tags") = py::none(), "Restores what sleeps at its addresses. tags: what wakes, with the untagged.")
      .def("free_host_slabs", &Pool::free_host_slabs, WithoutGil(), "Pinned host memory that holds nothing; bytes.")
      .def("reset_peak_stats", &Pool::reset_peak_stats, WithoutGil())
      .def("reset_accumulated_stats", &Pool::reset_accumulated_stats, WithoutGil())
      .def("blocks",
           [](const Pool& pool) {
             py::list blocks;
             for (const BlockInfo& b : pool.blocks()) blocks.append(block_dict(b));
             return blocks;
           })
      .def("audit", &Pool::audit, WithoutGil(), "One sentence per broken invariant; empty = sound.")
      .def(
          "set_recorder", [](Pool& pool, TraceRecorder* recorder) { pool.set_recorder(recorder); },
          py::arg("recorder").none(true), py::keep_alive<1, 2>(), WithoutGil(),
          "Records what the pool is asked into a trace.Recorder; None: no more.");
}

}  // namespace dymem
