// dymem._torch: installing the adapter, and a way to call it without a GPU (with an explicit device and stream), which
// is how the tests reach it over the emulated driver. Every function below goes through the adapter object that
// PyTorch calls, not around it.
#include <c10/core/Allocator.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <memory>

#include "base/pointers.hpp"
#include "torch/adapter.hpp"
#include "torch/stand_in.hpp"

namespace py = pybind11;

namespace dymem {

void bind_tools(pybind11::module_& m);      // tools_module.cpp
void bind_op_log(pybind11::module_& m);     // op_log_module.cpp
void bind_following(pybind11::module_& m);  // following_module.cpp
void bind_searching(pybind11::module_& m);  // searching_module.cpp

namespace {

// A c10::DataPtr that Python holds, as a tensor's storage would.
struct HeldData {
  c10::DataPtr data;
};

struct ReceivedData {
  std::shared_ptr<void> base;
};

// A callback that PyTorch runs when memory is short, made of what Python gave. Registered once; the function can
// change.
py::function* free_callback = nullptr;

class PythonFreeCallback : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    py::gil_scoped_acquire gil;
    return free_callback && (*free_callback)().cast<bool>();
  }
};

void set_free_callback(py::function function) {
  if (!free_callback)
    c10::FreeCudaMemoryCallbacksRegistry()->Register(
        "dymem_python", [] { return std::unique_ptr<c10::FreeMemoryCallback>(new PythonFreeCallback); });
  free_callback = new py::function(std::move(function));  // kept: may run while the interpreter ends
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.doc() = "dymem as PyTorch's CUDA allocator.";
  // torch's errors become torch's Python exceptions: torch.OutOfMemoryError above all.
  static const auto* const torch_oom = new py::object(py::module_::import("torch").attr("OutOfMemoryError"));
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const c10::OutOfMemoryError& error) {
      PyErr_SetString(torch_oom->ptr(), error.what_without_backtrace());
    } catch (const c10::NotImplementedError& error) {
      PyErr_SetString(PyExc_NotImplementedError, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    } catch (const InvalidArgument& error) {
      PyErr_SetString(py::module_::import("dymem.errors").attr("InvalidArgument").ptr(), error.what());
    }
  });

  m.def("install", &install_torch_allocator, "Make dymem PyTorch's CUDA allocator; touches no CUDA.");
  m.def("native_initialized", &native_allocator_initialized,
        "Whether the allocator that PyTorch uses now was initialised by a first use of CUDA.");

  m.def("heed_fraction_of_settings", [] { torch_allocator().heed_fraction_of_settings(); },
        py::call_guard<py::gil_scoped_release>(),
        "Gives every device in use the per_process_memory_fraction that PyTorch's settings have now.");
  m.def("cuda_allocator_is_ours",
        [] { return native::get() == static_cast<native::CUDAAllocator*>(&torch_allocator()); });

  // --- for tests: the adapter, with explicit device and stream
  py::class_<HeldData>(m, "Data")
      .def_property_readonly("address", [](const HeldData& d) { return as_integer(d.data.get()); })
      .def_property_readonly("device", [](const HeldData& d) { return int(d.data.device().index()); })
      .def_property_readonly("has_deleter",
                             [](const HeldData& d) { return d.data.get_deleter() == torch_allocator().raw_deleter(); })
      .def("record_stream",
           [](const HeldData& d, StreamId stream) { torch_allocator().record_stream_on(d.data, stream); })
      .def("free", [](HeldData& d) { d.data.clear(); });
  m.def(
      "allocate", [](size_t size) { return std::make_unique<HeldData>(HeldData{torch_allocator().allocate(size)}); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "allocate_on",
      [](size_t size, int device, StreamId stream) {
        return std::make_unique<HeldData>(HeldData{torch_allocator().allocate_on(size, device, stream)});
      },
      py::arg("size"), py::arg("device") = 0, py::arg("stream") = 0, py::call_guard<py::gil_scoped_release>());
  m.def(
      "raw_alloc", [](size_t size) { return as_integer(native::raw_alloc(size)); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "raw_alloc_with_stream",
      [](size_t size, std::uintptr_t stream) {
        return as_integer(native::raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream)));
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("raw_delete", [](std::uintptr_t address) { native::raw_delete(as_pointer(address)); });
  // What a tensor's storage keeps of another process's memory.
  py::class_<ReceivedData>(m, "Received")
      .def_property_readonly("address", [](const ReceivedData& r) { return as_integer(r.base.get()); })
      .def("free", [](ReceivedData& r) { r.base.reset(); }, py::call_guard<py::gil_scoped_release>());
  m.def("share", [](std::uintptr_t address) {
    const native::ShareableHandle shared = native::get()->shareIpcHandle(as_pointer(address));
    return py::make_tuple(py::bytes(shared.handle), shared.offset);
  });
  m.def(
      "receive",  // with the GIL, as PyTorch does
      [](const std::string& handle, int device) {
        return device < 0 ? std::make_unique<ReceivedData>(ReceivedData{native::get()->getIpcDevPtr(handle)})
                          : std::make_unique<ReceivedData>(ReceivedData{torch_allocator().open_shared_on(handle, device)});
      },
      py::arg("handle"), py::arg("device") = -1, "device -1: the current one.");
  m.def("raw_deleter", [] { return reinterpret_cast<std::uintptr_t>(native::get()->raw_deleter()); });
  m.def(
      "cache_info",
      [](int device, size_t largest) {
        native::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
        return largest;
      },
      py::arg("device") = 0, py::arg("largest") = 0);
  m.def("base_allocation", [](std::uintptr_t address) {
    size_t size = 0;
    const auto base = as_integer(native::getBaseAllocation(as_pointer(address), &size));
    return py::make_tuple(base, size);
  });
  m.def("init", [] { native::init(1); }, "What PyTorch calls when it initialises CUDA.");
  m.def("enable", [](bool value) { native::enable(value); });
  m.def("set_free_callback", &set_free_callback, "Runs when memory is short, as extensions of PyTorch can register.");
  m.def("attach_out_of_memory_observer", [](py::function function) {
    // As torch._C._cuda_attach_out_of_memory_observer does, which asks for a GPU first.
    auto* const kept = new py::function(std::move(function));
    native::attachOutOfMemoryObserver([kept](std::int64_t device, size_t asked, size_t total, size_t free) {
      py::gil_scoped_acquire gil;
      (*kept)(device, asked, total, free);
    });
  });
  m.def("accelerator_allocator_is_ours",
        [] { return c10::GetAllocator(c10::DeviceType::CUDA) == static_cast<c10::Allocator*>(&torch_allocator()); });
  bind_tools(m);
  bind_op_log(m);
  bind_following(m);
  bind_searching(m);
  bind_stand_in(m);
}

}  // namespace dymem
