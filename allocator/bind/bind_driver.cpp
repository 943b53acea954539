// dymem._core.driver: devices as they are, for tests and tools.
//
//   B1  A call that may fail does not raise: it answers a Code, or (Code, value) where it gives one; value is 0 (empty
//       for read) unless the code is Code.ok. Exceptions are left to make_…() and to the emulation's own controls.
//   B2  A decorator keeps what it wraps alive, and both stay usable from Python: `inner` is the same device. (In C++ a
//       decorator owns what it wraps alone; here it owns a forwarder that shares it.)
//   B3  Calls run without the GIL.
//   B4  last_failure() says in words what a thread's last call that failed was told by the device: "cuMemMap: 999".
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "base/capture.hpp"
#include "bind/bind.hpp"
#include "driver/decorators.hpp"
#include "driver/driver.hpp"
#include "driver/emulated.hpp"
#include "driver/forwarding.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

struct ThreadThatMayMap {
  std::optional<MayMapInCapture> may;
};

using WithoutGil = py::call_guard<py::gil_scoped_release>;

thread_local Status last_failure;  // B4

Code told(const Status& status) {
  if (!status.ok()) last_failure = status;
  return status.code;
}

// Passes everything on to a driver that it shares (B2).
class Shared final : public Forwarding<> {
 public:
  explicit Shared(std::shared_ptr<Driver> to) : Forwarding(*to), target_(std::move(to)) {}
  const std::shared_ptr<Driver>& target() const { return target_; }

 private:
  std::shared_ptr<Driver> target_;
};

// As the most specific class that Python knows.
py::object inner_of(Driver& wrapped) {
  const std::shared_ptr<Driver> driver = static_cast<Shared&>(wrapped).target();
  if (auto d = std::dynamic_pointer_cast<EmulatedDriver>(driver)) return py::cast(d);
  if (auto d = std::dynamic_pointer_cast<CheckedDriver>(driver)) return py::cast(d);
  if (auto d = std::dynamic_pointer_cast<FaultyDriver>(driver)) return py::cast(d);
  return py::cast(driver);
}

py::dict counters_dict(const DriverCounters& c) {
  py::dict d;
  d["reserve"] = c.reserve;
  d["create"] = c.create;
  d["map"] = c.map;
  d["set_access"] = c.set_access;
  d["unmap"] = c.unmap;
  d["destroy"] = c.destroy;
  d["event_record"] = c.event_record;
  d["event_query"] = c.event_query;
  d["event_wait"] = c.event_wait;
  d["asked_again"] = c.asked_again;
  d["memory_time_ns"] = c.memory_time_ns;
  d["memory_calls"] = c.memory_calls();
  return d;
}

template <class Value, class Call>
py::tuple answer(const Call& call) {
  Value value{};
  Status status;
  {
    py::gil_scoped_release gil;
    status = call(&value);
  }
  return py::make_tuple(told(status), status.ok() ? value : Value{});
}

void bind_base(py::module_& m) {
  py::class_<Driver, std::shared_ptr<Driver>>(m, "Driver", "One device: addresses, granules, views, events, a clock.")
      .def_property_readonly("name", &Driver::name)
      .def_property_readonly("device", &Driver::device)
      .def_property_readonly("granularity", &Driver::granularity)
      .def_property_readonly("has_vmm", &Driver::has_vmm)
      .def(
          "memory",
          [](Driver& d) {
            DeviceMemory memory;
            {
              py::gil_scoped_release gil;
              memory = d.memory();
            }
            return py::make_tuple(memory.free, memory.total);
          },
          "(free, total) bytes of the device.")
      .def(
          "reserve", [](Driver& d, Bytes n) { return answer<Addr>([&](Addr* out) { return d.reserve(n, out); }); },
          py::arg("size"), "(code, address)")
      .def(
          "release_addresses", [](Driver& d, Addr base, Bytes n) { return told(d.release_addresses(base, n)); },
          py::arg("base"), py::arg("size"), WithoutGil())
      .def(
          "create", [](Driver& d, Bytes n) { return answer<Handle>([&](Handle* out) { return d.create(n, out); }); },
          py::arg("size"), "(code, handle)")
      .def(
          "destroy", [](Driver& d, Handle handle) { return told(d.destroy(handle)); }, py::arg("handle"), WithoutGil())
      .def(
          "map", [](Driver& d, Addr at, Bytes n, Handle handle) { return told(d.map(at, n, handle)); }, py::arg("at"),
          py::arg("size"), py::arg("handle"), WithoutGil())
      .def(
          "set_access", [](Driver& d, Addr at, Bytes n) { return told(d.set_access(at, n)); }, py::arg("at"),
          py::arg("size"), WithoutGil())
      .def(
          "unmap", [](Driver& d, Addr at, Bytes n) { return told(d.unmap(at, n)); }, py::arg("at"), py::arg("size"),
          WithoutGil())
      .def(
          "export_handle",
          [](Driver& d, Handle handle) { return answer<int>([&](int* fd) { return d.export_handle(handle, fd); }); },
          py::arg("handle"), "(code, file descriptor); the caller closes it")
      .def(
          "import_handle",
          [](Driver& d, int fd, Bytes n) {
            return answer<Handle>([&](Handle* out) { return d.import_handle(fd, n, out); });
          },
          py::arg("fd"), py::arg("size"), "(code, handle) to what another process exported; fd stays the caller's")
      .def(
          "export_slab",
          [](Driver& d, Addr base) {
            SlabTicket ticket;
            const Status status = d.export_slab(base, &ticket);
            return py::make_tuple(
                told(status), py::bytes(reinterpret_cast<const char*>(ticket.bytes), status.ok() ? sizeof ticket : 0));
          },
          py::arg("base"), "(code, ticket of 64 bytes)")
      .def(
          "open_slab",
          [](Driver& d, const py::bytes& text) {
            const std::string_view view = text;
            SlabTicket ticket;
            if (view.size() != sizeof ticket.bytes) throw InvalidArgument("open_slab: a ticket has 64 bytes");
            std::memcpy(ticket.bytes, view.data(), view.size());
            Addr base = 0;
            Bytes size = 0;
            const Status status = d.open_slab(ticket, &base, &size);
            return py::make_tuple(told(status), base, size);
          },
          py::arg("ticket"), "(code, address, bytes)")
      .def(
          "close_slab", [](Driver& d, Addr base) { return told(d.close_slab(base)); }, py::arg("base"), WithoutGil())
      .def(
          "set_peer_access", [](Driver& d, Addr at, Bytes n, int peer) { return told(d.set_peer_access(at, n, peer)); },
          py::arg("at"), py::arg("size"), py::arg("peer"), WithoutGil())
      .def(
          "host_alloc",
          [](Driver& d, Bytes n) {
            return answer<Addr>([&](Addr* out) {
              void* base = nullptr;
              const Status status = d.host_alloc(n, &base);
              *out = reinterpret_cast<Addr>(base);
              return status;
            });
          },
          py::arg("size"), "(code, address) of pinned host memory")
      .def(
          "host_free", [](Driver& d, Addr base) { return told(d.host_free(reinterpret_cast<void*>(base))); },
          py::arg("base"), WithoutGil())
      .def(
          "copy_to_host",
          [](Driver& d, Addr to, Addr from, Bytes n, StreamId stream) {
            return told(d.copy_to_host(reinterpret_cast<void*>(to), from, n, stream));
          },
          py::arg("to"), py::arg("from_"), py::arg("n"), py::arg("stream") = 0, WithoutGil())
      .def(
          "copy_to_device",
          [](Driver& d, Addr to, Addr from, Bytes n, StreamId stream) {
            return told(d.copy_to_device(to, reinterpret_cast<const void*>(from), n, stream));
          },
          py::arg("to"), py::arg("from_"), py::arg("n"), py::arg("stream") = 0, WithoutGil())
      .def(
          "synchronize", [](Driver& d) { return told(d.synchronize()); }, WithoutGil())
      .def(
          "slab_alloc",
          [](Driver& d, Bytes n) { return answer<Addr>([&](Addr* out) { return d.slab_alloc(n, out); }); },
          py::arg("size"), "(code, address)")
      .def(
          "slab_free", [](Driver& d, Addr base) { return told(d.slab_free(base)); }, py::arg("base"), WithoutGil())
      .def(
          "event_create", [](Driver& d) { return answer<EventId>([&](EventId* out) { return d.event_create(out); }); },
          "(code, event)")
      .def(
          "event_destroy", [](Driver& d, EventId e) { return told(d.event_destroy(e)); }, py::arg("event"), WithoutGil())
      .def(
          "event_record", [](Driver& d, EventId e, StreamId s) { return told(d.event_record(e, s)); }, py::arg("event"),
          py::arg("stream"), WithoutGil())
      .def(
          "event_query", [](Driver& d, EventId e) { return told(d.event_query(e)); }, py::arg("event"), WithoutGil(),
          "Code.ok = complete, Code.not_ready = not yet")
      .def(
          "event_synchronize", [](Driver& d, EventId e) { return told(d.event_synchronize(e)); }, py::arg("event"),
          WithoutGil())
      .def(
          "stream_wait", [](Driver& d, StreamId s, EventId e) { return told(d.stream_wait(s, e)); }, py::arg("stream"),
          py::arg("event"), WithoutGil())
      .def("is_capturing", &Driver::is_capturing, py::arg("stream"), WithoutGil())
      .def("now", &Driver::now, WithoutGil(), "Nanoseconds.")
      .def(
          "write",
          [](Driver& d, Addr at, const py::bytes& data) {
            const std::string_view view = data;
            py::gil_scoped_release gil;
            return told(d.write(at, view.data(), view.size()));
          },
          py::arg("at"), py::arg("data"))
      .def(
          "read",
          [](Driver& d, Addr at, Bytes n) {
            // The last byte is tried first: an absurd length is refused before it costs us the memory.
            py::bytes data;
            char byte = 0;
            Status status = n > 1 ? d.read(at + n - 1, &byte, 1) : Status{};
            if (status.ok()) {
              PyObject* const made = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(n));  // filled in place
              if (!made) throw py::error_already_set();
              data = py::reinterpret_steal<py::bytes>(made);
              py::gil_scoped_release gil;
              status = d.read(at, PyBytes_AS_STRING(made), n);
            }
            return py::make_tuple(told(status), status.ok() ? data : py::bytes());
          },
          py::arg("at"), py::arg("n"), "(code, bytes)")
      .def("counters", [](const Driver& d) { return counters_dict(d.counters()); });
}

void bind_emulated(py::module_& m) {
  py::class_<EmulatedDriver, Driver, std::shared_ptr<EmulatedDriver>>(m, "EmulatedDriver",
                                                                      "A device on the CPU, with its own time.")
      .def("advance_to", &EmulatedDriver::advance_to, py::arg("t"))
      .def("set_lag", &EmulatedDriver::set_lag, py::arg("lag"))
      .def("set_busy_until", &EmulatedDriver::set_busy_until, py::arg("stream"), py::arg("t"))
      .def("set_capturing", &EmulatedDriver::set_capturing, py::arg("stream"), py::arg("capturing"))
      .def("set_destroyed", &EmulatedDriver::set_destroyed, py::arg("stream"), py::arg("destroyed"))
      .def("take_memory", &EmulatedDriver::take_memory, py::arg("n"))
      .def("give_memory", &EmulatedDriver::give_memory, py::arg("n"))
      .def("physical_in_use", &EmulatedDriver::physical_in_use)
      .def("mappings", &EmulatedDriver::mappings)
      .def("mappings_max", &EmulatedDriver::mappings_max)
      .def("mapped_addresses", &EmulatedDriver::mapped_addresses);
  const EmulatedOptions defaults;
  m.def(
      "make_emulated",
      [](int device, Bytes capacity, bool bytes, bool realtime, bool vmm, Bytes address_space, Bytes granularity) {
        EmulatedOptions options;
        options.device = device;
        options.capacity = capacity;
        options.bytes = bytes;
        options.realtime = realtime;
        options.vmm = vmm;
        options.address_space = address_space;
        options.granularity = granularity;
        return std::shared_ptr<EmulatedDriver>(make_emulated_driver(options));
      },
      py::kw_only(), py::arg("device") = defaults.device, py::arg("capacity") = defaults.capacity,
      py::arg("bytes") = defaults.bytes, py::arg("realtime") = defaults.realtime, py::arg("vmm") = defaults.vmm,
      py::arg("address_space") = defaults.address_space, py::arg("granularity") = defaults.granularity,
      "bytes=False: addresses and accounting only.");
}

void bind_decorators(py::module_& m) {
  py::class_<CheckedDriver, Driver, std::shared_ptr<CheckedDriver>>(m, "CheckedDriver", "Contract police.")
      .def("violations", &CheckedDriver::violations, "One sentence each; empty = the contract was kept.")
      .def("last_violation", &CheckedDriver::last_violation)
      .def("clear_violations", &CheckedDriver::clear_violations)
      .def("leaks", &CheckedDriver::leaks, "What is still held, one sentence each.")
      .def_property_readonly("inner", [](CheckedDriver& d) { return inner_of(d.inner()); });
  py::class_<FaultyDriver, Driver, std::shared_ptr<FaultyDriver>>(m, "FaultyDriver", "Fails the nth call.")
      .def(
          "fail_nth",
          [](FaultyDriver& d, std::uint64_t nth, bool forever, Code as) {
            d.fail_nth(nth, forever ? FaultKind::forever : FaultKind::once, as);
          },
          py::arg("nth"), py::arg("forever") = false, py::arg("as_") = Code::failed,
          "The nth call from now (1 = the next) that can fail does; as_: Code.failed or Code.out_of_memory.")
      .def("disarm", &FaultyDriver::disarm)
      .def("calls", &FaultyDriver::calls)
      .def("failures", &FaultyDriver::failures)
      .def_property_readonly("inner", [](FaultyDriver& d) { return inner_of(d.inner()); });
  m.def(
      "make_checked",
      [](std::shared_ptr<Driver> inner) {
        return std::shared_ptr<CheckedDriver>(make_checked_driver(std::make_unique<Shared>(std::move(inner))));
      },
      py::arg("inner").none(false));
  m.def(
      "make_faulty",
      [](std::shared_ptr<Driver> inner) {
        return std::shared_ptr<FaultyDriver>(make_faulty_driver(std::make_unique<Shared>(std::move(inner))));
      },
      py::arg("inner").none(false));
}

}  // namespace

void bind_driver(py::module_ m) {
  py::class_<ThreadThatMayMap>(m, "MayMapInCapture", "with …: this thread may map memory beside a capture (tests).")
      .def(py::init<>())
      .def("__enter__", [](ThreadThatMayMap& t) { t.may.emplace(); })
      .def("__exit__", [](ThreadThatMayMap& t, const py::args&) { t.may.reset(); });

  py::enum_<Code>(m, "Code", "How a driver call went.")
      .value("ok", Code::ok)
      .value("out_of_memory", Code::out_of_memory)
      .value("not_ready", Code::not_ready)
      .value("invalid", Code::invalid)
      .value("unsupported", Code::unsupported)
      .value("failed", Code::failed);
  bind_base(m);
  bind_emulated(m);
  bind_decorators(m);
  m.def(
      "make_cuda",
      [](int device) {
        py::gil_scoped_release gil;
        return std::shared_ptr<Driver>(make_cuda_driver(device));
      },
      py::arg("device") = 0, "The real device. Raises DriverError with one sentence where there is none.");
  m.def("last_failure", [] { return std::string(last_failure.call) + ": " + std::to_string(last_failure.native); });
  m.def("cuda_device_count", &cuda_device_count, WithoutGil(),
        "Devices that the CUDA driver reports; 0 without one. Creates no context.");
}

}  // namespace dymem
