// dymem._torch, continued: memory history and observers for tests without a GPU. PyTorch's own functions of that kind
// initialise CUDA first; these do what they do after that. Snapshots need nothing here: torch._C._cuda_memorySnapshot
// asks for no GPU.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "torch/adapter.hpp"
#include "torch/history.hpp"

namespace py = pybind11;

namespace dymem {
namespace {

Context gather_python() { return torch::CapturedTraceback::gather(true, true, false); }
Context gather_nothing() { throw std::runtime_error("no frames today"); }

native::RecordContext when_named(const std::string& name) {
  if (name == "all") return native::RecordContext::ALL;
  if (name == "alloc") return native::RecordContext::ALLOC;
  if (name == "state") return native::RecordContext::STATE;
  return native::RecordContext::NEVER;
}

const char* action_name(native::TraceEntry::Action action) {
  constexpr const char* kNames[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                                    "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};
  return kNames[static_cast<int>(action)];
}

// Kept for as long as the process lives: observers and trackers cannot be taken away.
py::function* keep(py::function function) { return new py::function(std::move(function)); }

}  // namespace

void bind_tools(py::module_& m) {
  m.def("is_history_enabled", [] { return native::isHistoryEnabled(); });
  m.def(
      "record_history",
      [](bool enabled, const std::string& context, size_t max_entries, bool clear,
         const std::vector<std::string>& skip_actions, bool failing) {
        py::gil_scoped_release gil;
        native::recordHistory(enabled, failing ? gather_nothing : gather_python, max_entries, when_named(context), clear,
                              skip_actions);
      },
      py::arg("enabled"), py::arg("context") = "all", py::arg("max_entries") = ~size_t{0}, py::arg("clear") = false,
      py::arg("skip_actions") = std::vector<std::string>(), py::arg("failing") = false,
      "As torch.cuda.memory._record_memory_history. failing: gathering frames throws.");
  m.def("frames_of", [](std::uintptr_t address) -> py::object {
    const Context context = torch_allocator().getContextForPointer(reinterpret_cast<void*>(address));
    auto* const traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (!traceback) return py::none();
    std::vector<torch::CapturedTraceback*> wanted{traceback};
    const torch::SymbolizedTracebacks symbols = torch::symbolize(wanted);
    py::list names;
    for (const auto frame : symbols.tracebacks.at(0)) names.append(symbols.all_frames.at(frame).funcname);
    return names;
  }, "Names of the functions that allocated the live block which holds this address, or None.");
  m.def("record_annotation", [](const std::vector<std::pair<std::string, std::string>>& pairs) {
    native::recordAnnotation(pairs);
  });
  m.def("push_compile_context", [](std::string text) { native::pushCompileContext(text); });
  m.def("pop_compile_context", [] { native::popCompileContext(); });
  m.def("set_metadata", [](const std::string& text) { native::setUserMetadata(text); });
  m.def("get_metadata", [] { return native::get()->getUserMetadata(); });
  m.def("annotate_memory", [](std::uintptr_t address, const std::string& text) {
    torch_allocator().annotateMemory(reinterpret_cast<void*>(address), text);
  });
  m.def("attach_trace_tracker", [](py::function function) {
    // Takes the interpreter's lock, which PyTorch forbids its trackers: fine here, since they run without a lock of ours.
    native::attachAllocatorTraceTracker([kept = keep(std::move(function))](const native::TraceEntry& entry) {
      py::gil_scoped_acquire gil;
      (*kept)(action_name(entry.action_), int(entry.device_), entry.addr_, entry.size_);
    });
  });
  if constexpr (!std::is_same_v<torch_compat::OomRejectionObserver, torch_compat::Absent>)
    m.def("attach_rejection_observer", [](py::function function) {
      torch_allocator().attachOomRejectionObserver(torch_compat::rejection_observer(
          [kept = keep(std::move(function))](std::int64_t device, size_t asked, size_t live, size_t total) {
            py::gil_scoped_acquire gil;
            (*kept)(device, asked, live, total);
          }));
    });
}

}  // namespace dymem
