"""Compiles the benches' C++ against the libdymem that is installed (or built in place), with plain g++.

Results are kept in build/bench of the checkout, keyed by everything that goes into them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class BuildError(RuntimeError):
    pass


def import_dymem():
    """The dymem that is installed, or the one of this checkout, built in place."""
    if importlib.util.find_spec("dymem") is None:
        sys.path.insert(0, str(ROOT / "python"))
    import dymem

    return dymem


def torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


def cuda_include_folders() -> list[str]:
    """The toolkit's headers, or those that torch's own dependencies bring."""
    torch = torch_folder()
    beside = [torch.parent / "nvidia" / "cu13" / "include"] if torch else []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = [folder for folder in (Path(home) / "include", *beside) if (folder / "cuda_runtime_api.h").exists()]
    if not found:
        raise BuildError("CUDA's headers are not here; set CUDA_HOME to the toolkit")
    return [str(folder) for folder in found[:1]]


def compile_once(name: str, source: Path, flags: list[str], suffix: str) -> Path:
    """The compiled file; compiled again only if the source, a header of dymem, the library or a flag changed."""
    import_dymem()
    from dymem import _paths

    library = Path(_paths.library_path())
    sources = Path(_paths.source_dir())
    include = sources / "allocator"
    command = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++20", "-O2", "-pthread", "-I", str(include), *flags]
    key = hashlib.sha256(" ".join(command).encode())
    for file in (source, library, *sorted(include.rglob("*.hpp"))):
        key.update(file.read_bytes())
    target = ROOT / "build" / "bench" / key.hexdigest()[:12] / f"{name}{suffix}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    link = ["-o", str(part), str(source), f"-L{library.parent}", "-l:libdymem.so", f"-Wl,-rpath,{library.parent}", "-ldl"]
    done = subprocess.run([*command, *link, *library_flags(flags)], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{source.name} does not compile:\n{done.stderr[-4000:]}")
    os.replace(part, target)
    return target


def library_flags(flags: list[str]) -> list[str]:
    if "-DDYMEM_BENCH_TORCH" not in flags:
        return []
    folder = torch_folder() / "lib"
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lc10", "-lc10_cuda"]


def extension(name: str, with_torch: bool):
    """A pybind11 module, compiled from bench/NAME.cpp and imported."""
    torch = torch_folder()
    if importlib.util.find_spec("pybind11"):
        import pybind11

        headers = pybind11.get_include()
    elif torch:
        headers = str(torch / "include")
    else:
        raise BuildError(f"pybind11 is not installed here; run `{sys.executable} -m pip install pybind11`.")
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-isystem", headers, "-isystem", sysconfig.get_paths()["include"]]
    if with_torch:
        if torch is None:
            raise BuildError("torch is not installed here")
        flags += ["-DDYMEM_BENCH_TORCH", "-isystem", str(torch / "include")]
        for folder in cuda_include_folders():
            flags += ["-isystem", folder]
        import torch as loaded  # its libraries must be in the process before the module is

        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(loaded._C._GLIBCXX_USE_CXX11_ABI)}")
    path = compile_once(name, HERE / f"{name}.cpp", flags, sysconfig.get_config_var("EXT_SUFFIX"))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(name: str) -> Path:
    """A program, compiled from bench/NAME.cpp."""
    return compile_once(name, HERE / f"{name}.cpp", [], "")
