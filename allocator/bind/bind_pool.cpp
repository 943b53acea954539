// dymem._core.pool: the pool as it is, for tests, tools and callers that are not PyTorch.
//
//   B1  Addresses and sizes are plain ints. What no pool could serve (negative, beyond 64 bits) is an InvalidArgument.
//   B2  A pool keeps its driver, and a recorder once attached, alive.
//   B3  Calls run without the GIL; the reclaim callback takes it, and what it raises comes out of malloc.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

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

SleepRequest sleep_request(const py::object& tags, const py::object& keep, bool drop_untagged) {
  SleepRequest request;
  request.everything = tags.is_none();
  request.tags = tag_set(tags);
  request.keep_everything = keep.is_none();
  request.kept = tag_set(keep);
  request.drop_untagged = drop_untagged;
  return request;
}

py::dict report_dict(const SleepReport& r) {
  py::dict d;
  d["changed"] = r.changed;
  d["memory_bytes"] = r.memory;
  d["copied_bytes"] = r.copied;
  d["dropped_bytes"] = r.dropped;
  d["stayed_bytes"] = r.stayed;
  d["seconds"] = r.seconds;
  d["copy_seconds"] = r.copy_seconds;
  d["host_seconds"] = r.host_seconds;
  return d;
}

py::list segment_dicts(const Pool& pool) {
  std::vector<PoolSegment> segments;
  {
    py::gil_scoped_release gil;
    segments = pool.segments();
  }
  py::list out;
  for (const PoolSegment& s : segments) {
    py::dict d;
    py::list blocks;
    for (const BlockInfo& b : s.blocks) blocks.append(block_dict(b));
    d["address"] = s.address;
    d["size"] = s.size;
    d["small"] = s.small;
    d["stitched"] = s.stitched;
    d["blocks"] = std::move(blocks);
    out.append(std::move(d));
  }
  return out;
}

// Writes down all that a pool tells, for tests.
class EventLog : public EventSink {
 public:
  void record(const TraceEvent& event, Addr at) override {
    if (event.kind == TraceKind::alloc) add("alloc", at, event.size);
    else if (event.kind == TraceKind::free_requested) add("free_requested", at, event.size);
  }
  void completed(Addr at, Bytes requested, StreamId) override { add("free_completed", at, requested); }
  void segment(TraceKind kind, Addr at, Bytes size, bool lent) override {
    const bool comes = kind == TraceKind::segment_alloc;
    add(comes ? (lent ? "lent_map" : "map") : (lent ? "lent_unmap" : "unmap"), at, size);
  }
  std::vector<std::tuple<const char*, Addr, Bytes>> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  void add(const char* what, Addr at, Bytes size) {
    std::lock_guard lock(mutex_);
    events_.emplace_back(what, at, size);
  }
  std::mutex mutex_;
  std::vector<std::tuple<const char*, Addr, Bytes>> events_;
};

// The pool's lock may be held for as long as a pool takes to sleep, and its holder may be waiting for the GIL.
using WithoutGil = py::call_guard<py::gil_scoped_release>;
template <class Call>
auto without_gil(const Call& call) {
  py::gil_scoped_release others;
  return call();
}

}  // namespace

void bind_pool(py::module_ m) {
  m.def("tag_number", &tag_number, py::arg("name"), "The number of a tag, for good; made at first use.");
  m.def(
      "set_current_tag", [](const py::object& tag) { return set_current_tag(Tag(to_u64(tag, "tag"))); }, py::arg("tag"),
      "Blocks handed to this thread carry it from now on (0: untagged); returns what it was.");
  py::class_<EventLog>(m, "EventLog", "All that a pool tells, in order: (what, address, bytes).")
      .def(py::init<>())
      .def("take", &EventLog::take, "What was told since the last take().");
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
          "export_memory",
          [](Pool& pool, const py::object& address) {
            const Addr a = to_u64(address, "address");
            ExportedMemory m;
            {
              py::gil_scoped_release gil;
              m = pool.export_memory(a);
            }
            const auto text = [](const auto& bytes, std::size_t n) {
              return py::bytes(reinterpret_cast<const char*>(bytes), n);
            };
            const bool slab = m.granules.empty();
            const py::bytes name = slab ? text(m.slab.bytes, sizeof m.slab.bytes) : text(m.token.data(), m.token.size());
            return py::make_tuple(name, m.granules, m.offset);
          },
          py::arg("address"),
          "(token, sizes of the granules, offset in them), or (ticket, [], offset in the slab); pins until the free.")
      .def(
          "export_descriptors",
          [](Pool& pool, const std::string& text, std::size_t first, std::size_t count) -> py::object {
            ExportToken token;
            if (text.size() != token.size()) throw InvalidArgument("a token has 16 bytes");
            std::copy(text.begin(), text.end(), token.begin());
            std::vector<int> fds;
            if (!pool.export_descriptors(token, first, count, &fds)) return py::none();
            return py::cast(fds);
          },
          py::arg("token"), py::arg("first"), py::arg("count"),
          "Descriptors for the caller to close; None: no such token.")
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
          "claim_forwarded",
          [](Pool& pool, const py::object& more) {
            const Bytes n = to_u64(more, "more");
            py::gil_scoped_release gil;
            return pool.claim_forwarded(n);
          },
          py::arg("more"), "Another allocator is called that may grow: bytes of the limit that are set aside for it.")
      .def(
          "give_forwarded_cap",
          [](Pool& pool) {
            const ForwardedCap cap = without_gil([&] { return pool.give_forwarded_cap(); });
            return std::make_pair(cap.most, cap.fell);
          },
          "(what it is to be capped at, whether that fell).")
      .def(
          "forwarded_lowered",
          [](Pool& pool, const py::object& given) {
            const Bytes n = to_u64(given, "given");
            py::gil_scoped_release gil;
            pool.forwarded_lowered(n);
          },
          py::arg("given"))
      .def(
          "end_forwarded",
          [](Pool& pool, const py::object& claimed, bool settled) {
            const Bytes n = to_u64(claimed, "claimed");
            py::gil_scoped_release gil;
            return pool.end_forwarded(n, settled);
          },
          py::arg("claimed"), py::arg("settled") = true,
          "The call ended: whether the other is capped higher than the calls under way need.")
      .def(
          "settle_forwarded",
          [](Pool& pool, const py::object& allocated, const py::object& freed, std::uint64_t era) {
            PoolStats held;
            Stat& reserved = held.reserved_bytes[kAll];
            reserved.allocated = std::int64_t(to_u64(allocated, "allocated"));
            reserved.freed = std::int64_t(to_u64(freed, "freed"));
            reserved.current = reserved.peak = reserved.allocated - reserved.freed;
            return without_gil([&] { return pool.settle_forwarded(held, era); });
          },
          py::arg("allocated"), py::arg("freed"), py::arg("era"),
          "It reserved and gave back so many bytes in all, asked in that era; false: these figures do not count.")
      .def("forwarded_era", &Pool::forwarded_era, WithoutGil())
      .def("forwarded_claims", &Pool::forwarded_claims, WithoutGil(), "Bytes set aside for calls of it that are under way.")
      .def(
          "set_reclaim_callback",
          [](Pool& pool, const py::object& callback) {
            ReclaimCallback wrapped = reclaim_callback(callback);
            py::gil_scoped_release gil;
            pool.set_reclaim_callback(std::move(wrapped));
          },
          py::arg("callback"), "callback(wanted) -> bytes set free; called before malloc gives up. None: no callback.")
      .def(
          "find",
          [](const Pool& pool, const py::object& address) -> py::object {
            const Addr a = to_u64(address, "address");
            BlockInfo info;
            const bool found = without_gil([&] { return pool.find(a, &info); });
            return found ? py::object(block_dict(info)) : py::none();
          },
          py::arg("address"), "The block that a caller holds and `address` lies in, or None.")
      .def(
          "owns",
          [](const Pool& pool, const py::object& address) {
            const Addr a = to_u64(address, "address");
            return without_gil([&] { return pool.owns(a); });
          },
          py::arg("address"))
      .def(
          "largest_free",
          [](const Pool& pool, const py::object& stream) {
            const StreamId s = to_u64(stream, "stream");
            return without_gil([&] { return pool.largest_free(s); });
          },
          py::arg("stream") = 0)
      .def(
          "gave_tag",
          [](const Pool& pool, const py::object& tag) {
            const Tag number = Tag(to_u64(tag, "tag"));
            py::gil_scoped_release others;
            return pool.gave_tag(number);
          },
          py::arg("tag"), "Whether some block carries it, or did.")
      .def("stats",
           [](const Pool& pool) {
             return stats_dict(without_gil([&] { return pool.stats(); }));
           })
      .def(
          "unusable_free",
          [](const Pool& pool) { return unusable_dict(without_gil([&] { return pool.unusable_free(); })); },
          "U_f: of what is free now, the share that a request of each power of two cannot use, as {'2^21': 0.03, ...}.")
      .def(
          "sleep",
          [](Pool& pool, const py::object& tags, const py::object& keep, bool drop_untagged) {
            const SleepRequest request = sleep_request(tags, keep, drop_untagged);
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
          "refuse_sleep",
          [](const Pool& pool, const py::object& tags, const py::object& keep, bool drop_untagged) {
            const SleepRequest request = sleep_request(tags, keep, drop_untagged);
            py::gil_scoped_release gil;
            pool.refuse_sleep(request);
          },
          py::arg("tags") = py::none(), py::arg("keep") = py::none(), py::arg("drop_untagged") = false,
          "Raises what sleep() would raise before it changes anything.")
      .def(
          "wake",
          [](Pool& pool, const py::object& tags, bool undo) {
            WakeRequest request;
            request.undo = undo;
            request.everything = tags.is_none();
            request.tags = tag_set(tags);
            SleepReport report;
            {
              py::gil_scoped_release gil;
              report = pool.wake(request);
            }
            return report_dict(report);
          },
          py::arg("tags") = py::none(), py::arg("undo") = false,
          "Restores what sleeps at its addresses. tags: what wakes, with the untagged; undo: what the last sleep() put to "
          "sleep, and no more.")
      .def("free_host_slabs", &Pool::free_host_slabs, WithoutGil(), "Pinned host memory that holds nothing; bytes.")
      .def("reset_peak_stats", &Pool::reset_peak_stats, WithoutGil())
      .def("reset_accumulated_stats", &Pool::reset_accumulated_stats, WithoutGil())
      .def("blocks",
           [](const Pool& pool) {
             py::list blocks;
             for (const BlockInfo& b : without_gil([&] { return pool.blocks(); })) blocks.append(block_dict(b));
             return blocks;
           })
      .def("segments", &segment_dicts, "Every byte once: memory that reads as one piece, with its blocks.")
      .def("keep_granules", &Pool::keep_granules, WithoutGil(), "Pins every granule, those to come too, for good.")
      .def("audit", &Pool::audit, WithoutGil(), "One sentence per broken invariant; empty = sound.")
      .def(
          "set_log", [](Pool& pool, EventLog* log) { pool.set_recorder(log); }, py::arg("log").none(true),
          py::keep_alive<1, 2>(), WithoutGil(), "Tells an EventLog, in place of a recorder; None: no more.")
      .def(
          "replace_log", [](Pool& pool, EventLog* from, EventLog* to) { return pool.replace_recorder(from, to); },
          py::arg("from_"), py::arg("to"), py::keep_alive<1, 3>(), WithoutGil())
      .def(
          "set_recorder", [](Pool& pool, TraceRecorder* recorder) { pool.set_recorder(recorder); },
          py::arg("recorder").none(true), py::keep_alive<1, 2>(), WithoutGil(),
          "Records what the pool is asked into a trace.Recorder; None: no more.");
}

}  // namespace dymem
