"""`dymem doctor`: what this machine has, whether dymem can serve PyTorch on it, and what to do if not.

Each check is a function from nothing to a Finding; none touches a GPU beyond asking the driver what is there, and
none stops the others. Only what training needs decides the exit code: the replay commands work without any of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from rich import box
from rich.table import Table

from dymem import __version__, _paths
from dymem.cli.console import out
from dymem.config import ENVIRONMENT, Config
from dymem.errors import DymemError

_VMM = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


@dataclass
class Finding:
    what: str
    state: str
    ok: bool
    advice: str = ""


def check_core() -> Finding:
    try:
        from dymem import _core  # noqa: F401

        return Finding("core", f"dymem {__version__}, {_paths.library_path()}", True)
    except (ImportError, DymemError) as error:
        return Finding("core", f"does not load: {error}", False, "Build it: pip install . in the checkout.")


def check_config() -> Finding:
    try:
        conf = Config.from_environment().to_conf()
        return Finding("configuration", conf or f"defaults ({ENVIRONMENT} sets nothing)", True)
    except DymemError as error:
        return Finding("configuration", str(error), False, f"Correct {ENVIRONMENT}.")


def check_torch() -> Finding:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return Finding("torch", "not installed", False, "pip install torch")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    cuda = _torch_cuda(Path(spec.origin).parent) if spec.origin else None
    if cuda is None:
        return Finding("torch", f"{version}, without CUDA", False, "Install a CUDA build of torch.")
    return Finding("torch", f"{version}, CUDA {cuda}", True)


def _torch_cuda(folder: Path) -> str | None:
    """The CUDA version in torch/version.py, read without importing torch."""
    names: dict = {}
    try:
        exec(compile((folder / "version.py").read_text(), "version.py", "exec"), names)  # torch's own file
    except OSError:
        return None
    return names.get("cuda")


def check_compiler() -> Finding:
    command = shlex.split(os.environ.get("CXX", "g++"))
    found = shutil.which(command[0]) if command else None
    if found is None:
        return Finding("compiler", "none", False, "apt-get install g++, or set CXX to a C++20 compiler.")
    answer = subprocess.run([*command, "-dumpfullversion"], capture_output=True, text=True)
    return Finding("compiler", f"{found} {answer.stdout.strip()}", True)


def check_driver() -> list[Finding]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [Finding("GPU", "no CUDA driver on this machine", False, "Replaying works; training needs a GPU.")]
    code, version, count = cuda.cuInit(0), ctypes.c_int(0), ctypes.c_int(0)
    if code != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return [Finding("GPU", f"the driver finds no device (cuInit: {code})", False, "Look at nvidia-smi.")]
    cuda.cuDriverGetVersion(ctypes.byref(version))
    findings = [Finding("driver", f"CUDA {version.value // 1000}.{version.value % 1000 // 10}", True)]
    return findings + [_check_device(cuda, index) for index in range(count.value)]


def _check_device(cuda: ctypes.CDLL, index: int) -> Finding:
    device, vmm, name, total = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(100), ctypes.c_size_t(0)
    if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
        return Finding(f"GPU {index}", "cannot be opened", False, "Look at nvidia-smi.")
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(vmm), _VMM, device)
    memory = f"{name.value.decode()}, {total.value / (1 << 30):.0f} GiB"
    if vmm.value:
        return Finding(f"GPU {index}", f"{memory}, virtual memory management", True)
    return Finding(f"GPU {index}", f"{memory}, no virtual memory management", True,
                   "Backing falls back to contiguous: it works, and saves less.")


def check_adapter() -> Finding:
    """Built for a torch of this version? (The build itself also looks at the exact build and at our sources.)"""
    from dymem._adapter_build import cache_folder

    folder, version = cache_folder(), importlib.metadata.version("torch")
    built = []
    for stamp in folder.glob("*/built.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            built.append(json.loads(stamp.read_text())["torch"].split("+")[0])
    if version.split("+")[0] in built:
        return Finding("adapter", f"built for torch {version}, in {folder}", True)
    others = f"built for torch {', '.join(sorted(set(built)))}" if built else "not built yet"
    return Finding("adapter", others, False, "Nothing: the first install() builds it, in about a minute.")


def main() -> int:
    checks: list[Callable[[], Finding]] = [check_core, check_config, check_torch, check_compiler]
    findings = [check() for check in checks] + check_driver()
    if findings[2].ok:
        findings.append(check_adapter())
    table = Table(box=box.SIMPLE_HEAD, title=f"dymem on {platform.node()}, Python {platform.python_version()} "
                  f"({sys.executable})", title_justify="left")
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row("[green]ok[/green]" if finding.ok else "[yellow]--[/yellow]", finding.what, finding.state,
                      finding.advice)
    out.print(table)
    # An adapter not built yet is no fault: install() builds it.
    ready = all(finding.ok for finding in findings if finding.what != "adapter")
    out.print("dymem can serve PyTorch here." if ready else
              "dymem cannot serve PyTorch here yet (replay and compare work without a GPU).")
    return 0 if ready else 1
