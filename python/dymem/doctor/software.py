"""Checks of what is installed: dymem itself, its configuration, torch, the compiler, headers, optional packages."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from dymem import __version__, _paths
from dymem._adapter_build import _cuda_includes, find_compiler, too_old
from dymem.config import ENVIRONMENT, Config, shortened
from dymem.doctor.finding import Finding
from dymem.errors import DymemError, InstallError
from dymem.plotting import needs

_PICTURES = ("pictures (dymem plot, compare --html and --pictures, stress --picture) need it", "pip install matplotlib numpy")
_OPTIONAL = {"matplotlib": _PICTURES, "numpy": _PICTURES}  # what is not there without each, and how to get it


def check_core() -> Finding:
    try:
        from dymem import _core  # noqa: F401

        path = _paths.library_path()
        return Finding("core", f"dymem {__version__}, {path}", True, facts={"version": __version__, "library": path})
    except (ImportError, DymemError) as error:
        return Finding("core", f"does not load: {error}", False, "Build it: pip install . in the checkout.",
                       facts={"version": __version__})


def check_config() -> Finding:
    try:
        conf = Config.from_environment().to_conf()
        return Finding("configuration", conf or f"defaults ({ENVIRONMENT} sets nothing)", True, facts={"conf": conf})
    except DymemError as error:
        return Finding("configuration", str(error), False, f"Correct {ENVIRONMENT}.")


def torch_version() -> tuple[str | None, str | None]:
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


def check_torch() -> Finding:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return Finding("torch", "not installed", False, "pip install torch")
    version, cuda = torch_version()
    facts = {"version": version, "cuda": cuda, "path": spec.origin}
    if version is None:
        where = spec.origin or ", ".join(spec.submodule_search_locations or [])
        return Finding("torch", f"what is imported as torch is not PyTorch: {where}", False,
                       "Rename it, or run from another folder.", facts=facts)
    if (sentence := too_old(version)) is not None:
        return Finding("torch", version, False, f"{sentence} pip install -U torch", facts=facts)
    if cuda is None:
        return Finding("torch", f"{version}, without CUDA", False, "Install a CUDA build of torch: pip install torch "
                       "--index-url https://download.pytorch.org/whl/cu130", facts=facts)
    return Finding("torch", f"{version}, CUDA {cuda}", True, facts=facts)


def check_compiler() -> Finding:
    mend = "apt-get install g++, or set CXX to a C++20 compiler."
    try:
        command = find_compiler()
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (InstallError, OSError, subprocess.CalledProcessError):
        return Finding("compiler", "none that runs", False, mend)
    line = (answer.stdout.splitlines() or ["?"])[0]
    facts = {"command": command, "path": shutil.which(command[0]), "version": line}
    try:
        subprocess.run([*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], input="", capture_output=True,
                       text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return Finding("compiler", f"{facts['path']}: {line}; it knows no C++20", False, mend, facts=facts)
    return Finding("compiler", f"{facts['path']}: {line}", True, facts=facts)


def check_headers() -> list[Finding]:
    """What the adapter is compiled with besides torch: Python's, CUDA's and pybind11's headers."""
    include = Path(sysconfig.get_paths()["include"])
    here = (include / "Python.h").exists() or (Path(sysconfig.get_paths()["platinclude"]) / "Python.h").exists()
    findings = [Finding("Python headers", str(include) if here else "Python.h is not there", here,
                        "" if here else "apt-get install python3-dev (or your system's package of Python.h)",
                        facts={"include": str(include)})]
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return findings
    package = Path(spec.origin).parent
    try:
        folders = [str(folder) for folder in _cuda_includes(package)[:1]]
        findings.append(Finding("CUDA headers", folders[0], True, facts={"include": folders}))
    except InstallError as error:
        findings.append(Finding("CUDA headers", "not all are there", False, str(error)))
    findings.append(_pybind11(package))
    return findings


def _pybind11(torch_package: Path) -> Finding:
    if (torch_package / "include" / "pybind11" / "pybind11.h").exists():
        return Finding("pybind11", f"torch's own, in {torch_package / 'include'}", True, facts={"from": "torch"})
    try:
        version = importlib.metadata.version("pybind11")
        return Finding("pybind11", version, True, facts={"from": "pybind11", "version": version})
    except importlib.metadata.PackageNotFoundError:
        return Finding("pybind11", "neither torch's nor its own package", False, "pip install pybind11")


def check_optional() -> list[Finding]:
    """Packages that only some commands need."""
    findings = []
    for name, (lost, mend) in _OPTIONAL.items():
        try:
            there = importlib.util.find_spec(name) is not None
            version = importlib.metadata.version(name) if there else ""
        except (ValueError, importlib.metadata.PackageNotFoundError):
            there, version = name in sys.modules and sys.modules[name] is not None, "?"
        if not there:
            findings.append(Finding(name, f"not installed; {lost}", False, mend, needed=False))
        elif (why := _broken(name)) is not None:
            findings.append(Finding(name, f"{version} is installed but does not import ({why}); {lost}", False, mend,
                                    needed=False, facts={"version": version}))
        else:
            findings.append(Finding(name, version, True, needed=False, facts={"version": version}))
    return findings


def _broken(name: str) -> str | None:
    """Why a package that is there does not import: built for another numpy, say."""
    try:
        if name == "matplotlib":
            needs.require()  # as the pictures do
        else:
            importlib.import_module(name)
    except Exception as error:  # of a package that is broken, anything
        cause = error.__context__ if isinstance(error, DymemError) else error
        return shortened(cause if str(cause) else type(cause).__name__)
    return None
