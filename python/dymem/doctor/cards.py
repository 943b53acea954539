"""Checks of the driver and the cards, through libcuda and, for what it does not tell, NVML; no context is created."""

from __future__ import annotations

import ctypes

from dymem.config import format_bytes
from dymem.doctor.finding import Finding
from dymem.doctor.software import torch_version
from dymem.doctor.system import driver_from

# CUdevice_attribute
_COMPUTE_MODE, _MAJOR, _MINOR, _VMM, _POSIX_HANDLES = 20, 75, 76, 102, 103
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_PROHIBITED = 2


class _Prop(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                ("location_id", ctypes.c_int), ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Bar1(ctypes.Structure):
    """nvmlBAR1Memory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def check_driver() -> list[Finding]:
    """The driver, each card, and whether this torch runs on it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [Finding("GPU", "no CUDA driver on this machine", False, "Replaying works; training needs a GPU and "
                        f"NVIDIA's driver: {driver_from()} (in a container: start it with --gpus all).")]
    code, version, count = cuda.cuInit(0), ctypes.c_int(0), ctypes.c_int(0)
    if code != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return [Finding("GPU", f"the driver finds no device (cuInit: {code})", False, "Look at nvidia-smi, and at "
                        "CUDA_VISIBLE_DEVICES.", facts={"cuInit": code})]
    cuda.cuDriverGetVersion(ctypes.byref(version))
    nvml = _Nvml()
    return [_driver(version.value, nvml.driver_version()), *(_card(cuda, nvml, index) for index in range(count.value))]


def _driver(version: int, release: str | None) -> Finding:
    mine = f"{version // 1000}.{version % 1000 // 10}"
    state = f"{release}, CUDA {mine}" if release else f"CUDA {mine}"
    facts = {"cuda": mine, "release": release}
    torch_cuda = torch_version()[1]
    if torch_cuda and torch_cuda.split(".")[0].isdigit() and int(torch_cuda.split(".")[0]) > version // 1000:
        return Finding("driver", f"{state}; torch is built for CUDA {torch_cuda}", False, "Upgrade the driver, or install "
                       f"a torch for CUDA {version // 1000} (see https://pytorch.org/get-started/previous-versions).",
                       facts=facts)
    return Finding("driver", state, True, facts=facts)


def _card(cuda: ctypes.CDLL, nvml: _Nvml, index: int) -> Finding:
    what, device = f"GPU {index}", ctypes.c_int(0)
    if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
        return Finding(what, "cannot be opened", False, "Look at nvidia-smi.")
    facts = _facts(cuda, device, index)
    facts.update(nvml.facts(_bus_id(cuda, device)))
    state = (f"{facts['name']}, {format_bytes(facts['memory_bytes'])}, compute {facts['compute_capability']}, "
             f"compute mode {facts['compute_mode']}")
    if facts.get("mig") is not None:
        state += f", MIG {'on' if facts['mig'] else 'off'}"
    if facts.get("bar1_bytes"):
        state += f", BAR1 {format_bytes(facts['bar1_bytes'])}"
    if facts["vmm"]:
        state += (f"; virtual memory management, granularity {format_bytes(facts['granularity_bytes'])}, "
                  f"{'exportable handles' if facts['exportable_handles'] else 'no exportable handles (no CUDA IPC)'}")
    else:
        state += "; no virtual memory management"
    if facts["compute_mode"] == _COMPUTE_MODES[_PROHIBITED]:
        return Finding(what, state, False, f"nvidia-smi -i {index} -c DEFAULT (as root)", facts=facts)
    advice = "" if facts["vmm"] else "Backing falls back to contiguous: it works, and saves less."
    return Finding(what, state, True, advice, facts=facts)


def _facts(cuda: ctypes.CDLL, device: ctypes.c_int, index: int) -> dict:
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t(0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    mode = _attribute(cuda, device, _COMPUTE_MODE)
    return {"index": index, "name": name.value.decode(errors="replace"), "memory_bytes": total.value,
            "compute_capability": f"{_attribute(cuda, device, _MAJOR)}.{_attribute(cuda, device, _MINOR)}",
            "compute_mode": _COMPUTE_MODES.get(mode, str(mode)), "vmm": bool(_attribute(cuda, device, _VMM)),
            "exportable_handles": bool(_attribute(cuda, device, _POSIX_HANDLES)),
            "granularity_bytes": _granularity(cuda, device)}


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int(0)
    cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value


def _granularity(cuda: ctypes.CDLL, device: ctypes.c_int) -> int:
    """Bytes; 0 where the driver does not say."""
    prop, size = _Prop(type=1, location_type=1, location_id=device.value), ctypes.c_size_t(0)  # pinned, on this device
    try:
        code = cuda.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(prop), 0)
    except AttributeError:  # a driver older than virtual memory management
        return 0
    return size.value if code == 0 else 0


def _bus_id(cuda: ctypes.CDLL, device: ctypes.c_int) -> bytes:
    text = ctypes.create_string_buffer(32)
    return text.value if cuda.cuDeviceGetPCIBusId(text, len(text), device) == 0 else b""


class _Nvml:
    """What only NVML tells; every answer is missing where it is not installed or does not know."""

    def __init__(self) -> None:
        self.library = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0:
                self.library = library
        except (OSError, AttributeError):
            pass

    def driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(96)
        return text.value.decode(errors="replace") if self._ask("nvmlSystemGetDriverVersion", text, len(text)) else None

    def facts(self, bus_id: bytes) -> dict:
        device, bar1, now, later = ctypes.c_void_p(), _Bar1(), ctypes.c_uint(), ctypes.c_uint()
        if not bus_id or not self._ask("nvmlDeviceGetHandleByPciBusId_v2", bus_id, ctypes.byref(device)):
            return {"mig": None, "bar1_bytes": None}
        mig = self._ask("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(later))
        bar = self._ask("nvmlDeviceGetBAR1MemoryInfo", device, ctypes.byref(bar1))
        return {"mig": bool(now.value) if mig else None, "bar1_bytes": bar1.total if bar else None}

    def _ask(self, name: str, *arguments) -> bool:
        if self.library is None:
            return False
        try:
            return getattr(self.library, name)(*arguments) == 0
        except AttributeError:
            return False
