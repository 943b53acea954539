"""Builds dymem with plain g++: libdymem.so (the C++ core) and dymem._core (its Python bindings), no CMake.

Both land in the package folder; _core finds libdymem beside itself (rpath $ORIGIN). Neither needs torch, CUDA or a
GPU: the driver is looked up at run time, and the adapter to PyTorch is compiled on the user's machine at first use,
against the torch that is there, from the C++ sources that the wheel carries in dymem/_src.

A layer is compiled as one: its files include the same headers, which take most of the time that one after the other
needs. So names in anonymous namespaces differ within a layer. Objects are compiled DYMEM_JOBS at a time (default: the
CPUs this process may use) into build/obj/<key of the flags>, and only those of layers of which a source or header is
newer: `pip install .` twice compiles once.
"""

import concurrent.futures
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "allocator"
LIBRARY, CORE = "dymem.libdymem", "dymem._core"
NOT_IN_LIBRARY = ("bind", "torch")  # layers that need Python or torch
FLAGS = ["-std=c++20", "-O3", "-g1", "-fPIC", "-fno-semantic-interposition", "-pthread", "-Wall", "-Wextra",
         "-Wno-attributes", "-Wno-restrict"]


def fail(sentence):
    sys.exit(f"dymem: {sentence}")


def library_layers():
    return [folder for folder in sorted(SOURCES.iterdir()) if folder.name not in NOT_IN_LIBRARY and any(folder.glob("*.cpp"))]


def version():
    text = (ROOT / "python" / "dymem" / "_version.py").read_text()
    return re.search(r'__version__ = "([^"]+)"', text)[1]


def pybind11_include():
    """From the package pybind11, or from torch, which carries the same headers; neither is imported beyond its path."""
    if importlib.util.find_spec("pybind11"):
        import pybind11

        return pybind11.get_include()
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin and (Path(torch.origin).parent / "include" / "pybind11").is_dir():
        return str(Path(torch.origin).parent / "include")
    fail("the headers of pybind11 are not here; run `pip install pybind11` (or install without --no-build-isolation).")


def words(variable, default=""):
    """An environment variable as a shell would split it."""
    try:
        return shlex.split(os.environ.get(variable, default))
    except ValueError as error:
        fail(f"{variable} cannot be read as words of a shell ({error}): {os.environ[variable]}")


def jobs_at_once():
    text = os.environ.get("DYMEM_JOBS", "")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        fail(f"DYMEM_JOBS is '{text}'; it is how many files to compile at a time, for example 4.")
    return int(text) if text else len(os.sched_getaffinity(0))


def check_packaging_tools():
    """pip asks for them itself, except with --no-build-isolation; setuptools then only says that a command is invalid."""
    if {"dist_info", "editable_wheel", "bdist_wheel"}.isdisjoint(sys.argv) or importlib.util.find_spec("wheel"):
        return
    if importlib.util.find_spec("setuptools.command.bdist_wheel") is None:
        fail("this setuptools makes no wheels by itself; run `pip install wheel`, or `pip install -U setuptools` (70.1 or "
             "newer).")


def find_compiler():
    """The command and the first line of its --version."""
    command = words("CXX", "g++")
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError, IndexError):
        fail(f"no C++ compiler: '{' '.join(command)}' does not run; install g++ 11 or newer, or set CXX to a C++20 "
             "compiler.")
    return command, answer.stdout.splitlines()[0]


def out_of_date(target, depfile):
    """Is `target` missing, or older than anything that its compiler-written dependency file names?"""
    if not target.exists() or not depfile.exists():
        return True
    made = target.stat().st_mtime_ns
    names = depfile.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    try:
        return any(Path(name).stat().st_mtime_ns > made for name in names)
    except FileNotFoundError:
        return True


def together(layer):
    """The text that compiles all files of a layer as one."""
    return "".join(f'#include "{layer.name}/{path.name}"\n' for path in sorted(layer.glob("*.cpp")))


def write_if_other(path, text):
    """Is what was there another text, or nothing?"""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return True


class BuildNative(build_ext):
    """Compiles and links the two shared objects; setuptools copies them (in place, wheel and editable alike)."""

    def get_ext_filename(self, fullname):
        if fullname.split(".")[-1] == "libdymem":
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def run(self):
        for variable in ("CXX", "CXXFLAGS", "LDFLAGS", "CC", "CFLAGS", "CPPFLAGS"):  # setuptools splits them too
            words(variable)
        super().run()

    def build_extensions(self):
        self.compiler_command, compiler_version = find_compiler()
        self.flags = FLAGS + words("CXXFLAGS") + ["-I", str(SOURCES)]
        # What a user's flags or another compiler change must not be mixed with objects made before.
        key = " ".join([*self.compiler_command, compiler_version, *self.flags])
        self.objects_root = ROOT / "build" / "obj" / hashlib.sha256(key.encode()).hexdigest()[:12]
        python = sysconfig.get_paths()["include"]
        # Bindings are glue: fewer optimisations and no debug lines halve the time that they take to compile.
        system = ["-isystem", pybind11_include(), "-isystem", python, "-O1", "-g0"]
        layers = [(SOURCES / "bind", system), *((layer, []) for layer in library_layers())]
        jobs = sorted(layers, key=lambda job: -sum(path.stat().st_size for path in job[0].glob("*.cpp")))  # long ones first
        objects = self.compile_all(jobs)
        library = self.get_ext_fullpath(LIBRARY)
        self.link(library, objects["library"], ["-Wl,-soname,libdymem.so", "-ldl"])
        self.link(self.get_ext_fullpath(CORE), objects["bind"],
                  ["-L" + os.path.dirname(library), "-l:libdymem.so", "-Wl,-rpath,$ORIGIN"])

    def compile_all(self, jobs):
        objects, stale = {"library": [], "bind": []}, []
        for layer, extra in jobs:
            tag = f".{sys.implementation.cache_tag}" if extra else ""  # bindings depend on the Python they are for
            target = self.objects_root / f"{layer.name}{tag}.o"
            objects["bind" if extra else "library"].append(str(target))
            changed = write_if_other(target.with_suffix(".cpp"), together(layer))
            if changed or out_of_date(target, target.with_suffix(".d")):
                stale.append((layer, target, extra))
        workers = jobs_at_once()
        if stale:
            print(f"dymem: compiling {len(stale)} of {len(jobs)} layers, {workers} at a time", flush=True)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for outcome in [pool.submit(self.compile_one, *job) for job in stale]:
                outcome.result()
        return objects

    def compile_one(self, layer, target, extra):
        part = target.with_suffix(f".{os.getpid()}.part")  # a compile cut short must not look done
        command = [*self.compiler_command, *self.flags, *extra, "-MMD", "-MF", str(target.with_suffix(".d")), "-MT",
                   str(target), "-c", str(target.with_suffix(".cpp")), "-o", str(part)]
        self.execute_compiler(command, f"{layer.relative_to(ROOT)} does not compile")
        os.replace(part, target)

    def link(self, target, objects, options):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        command = [*self.compiler_command, "-shared", "-pthread", "-o", target, *objects,
                   *words("LDFLAGS"), *options]
        self.execute_compiler(command, f"{os.path.basename(target)} does not link")

    def execute_compiler(self, command, complaint):
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.stderr:
            print(answer.stderr, file=sys.stderr, end="", flush=True)
        if answer.returncode != 0:
            fail(f"{complaint} with {self.compiler_command[0]} (C++20 is needed: g++ 11 or newer); its messages are "
                 "above.")


class BuildPackage(build_py):
    """Adds to the wheel the header for C, and the C++ that the adapter is compiled from: all headers, and torch/'s sources."""

    def run(self):
        in_place = getattr(self, "editable_mode", False)
        if not in_place:
            shutil.rmtree(Path(self.build_lib) / "dymem", ignore_errors=True)  # what was deleted must not be shipped
        super().run()
        if not in_place:
            for source, target in self.carried_files():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    def carried_files(self):
        wanted = sorted([*SOURCES.rglob("*.hpp"), *(SOURCES / "torch").rglob("*.cpp")])
        package = Path(self.build_lib) / "dymem"
        return [*((path, package / "_src" / path.relative_to(ROOT)) for path in wanted),
                *((path, package / "include" / path.name) for path in (SOURCES / "abi").glob("*.h"))]

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + [str(target) for _, target in self.carried_files()]


check_packaging_tools()
setup(
    version=version(),
    license="Apache-2.0",
    ext_modules=[Extension(LIBRARY, []), Extension(CORE, [])],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPackage},
)
