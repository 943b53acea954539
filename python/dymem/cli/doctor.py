"""`dymem doctor`: what this machine has, whether dymem can serve PyTorch on it, and what to do if not.

Each check is a function from nothing to a Finding; none touches a GPU beyond asking the driver what is there, and
none stops the others. Only what training needs decides the exit code: the replay commands work without any of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from dymem import __version__, _paths
from dymem.cli.console import out
from dymem._adapter_build import cache_folder, find_compiler, too_old
from dymem.config import ENVIRONMENT, Config
from dymem.errors import DymemError, InstallError

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
    version, cuda = _torch_version()
    if version is None:
        where = spec.origin or ", ".join(spec.submodule_search_locations or [])
        return Finding("torch", f"what is imported as torch is not PyTorch: {where}", False,
                       "Rename it, or run from another folder.")
    if (sentence := too_old(version)) is not None:
        return Finding("torch", version, False, sentence)
    if cuda is None:
        return Finding("torch", f"{version}, without CUDA", False, "Install a CUDA build of torch.")
    return Finding("torch", f"{version}, CUDA {cuda}", True)


def _torch_version() -> tuple[str | None, str | None]:
    """The versions of torch and its CUDA, from torch/version.py: read without importing torch."""
    names: dict = {}
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    try:
        exec(compile((Path(spec.origin).parent / "version.py").read_text(), "version.py", "exec"), names)  # torch's own
    except OSError:
        return None, None
    return names.get("__version__"), names.get("cuda")


def check_compiler() -> Finding:
    try:
        command = find_compiler()
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (InstallError, OSError, subprocess.CalledProcessError):
        return Finding("compiler", "none that runs", False, "apt-get install g++, or set CXX to a C++20 compiler.")
    return Finding("compiler", f"{shutil.which(command[0])}: {(answer.stdout.splitlines() or ['?'])[0]}", True)


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
    folder, version = cache_folder(), str(_torch_version()[0])
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
    title = Text(f"dymem on {platform.node()}, Python {platform.python_version()} ({sys.executable})")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row("[green]ok[/green]" if finding.ok else "[yellow]--[/yellow]", finding.what, Text(finding.state),
                      Text(finding.advice))  # text from elsewhere is no markup
    out.print(table)
    # An adapter not built yet is no fault: install() builds it.
    ready = all(finding.ok for finding in findings if finding.what != "adapter")
    out.print("dymem can serve PyTorch here." if ready else
              "dymem cannot serve PyTorch here yet (replay and compare work without a GPU).")
    return 0 if ready else 1
