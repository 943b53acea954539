"""Builds and loads dymem._torch, the adapter to PyTorch, against the torch that is installed.

PyTorch's allocator interface is C++ whose layout changes with every minor version, so the adapter is compiled on the
user's machine, once for each combination of torch build, Python, CUDA and our own sources, into the user's cache:
DYMEM_CACHE, else XDG_CACHE_HOME/dymem, else ~/.cache/dymem. All ranks of a job start at once, so building happens
under a file lock: one process compiles, the others wait and load what it made. A library that is not what was built
(cut short, overwritten) is built again. g++ is enough: nvcc is not needed, and CUDA's headers come with torch's own
dependencies or a toolkit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import IO, Callable, Iterator

from dymem._paths import PACKAGE, source_dir
from dymem.dying import CANNOT_START, WHY_NOT, dying_whole
from dymem.errors import InstallError
from dymem.interrupts import held, undone_first

MODULE = "dymem._torch"
TORCH_OLDEST = (2, 11)
# NDEBUG: torch is built with it, and its classes have members without it.
FLAGS = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-pthread", "-Wno-attributes"]
LIBRARIES = ["-l:libdymem.so", "-lc10", "-lc10_cuda", "-ltorch_cuda"]
_HEADERS = {"cuda_runtime_api.h": "nvidia-cuda-runtime", "crt/host_defines.h": "nvidia-cuda-crt"}
# Most of a file's time goes into PyTorch's headers, so that few compilations, each of many files, take a third of the
# time that one for each file would.
PARTS = 2
ONE_TAKES = 1_300_000_000  # bytes: what a compilation has been seen to need, and some more
CORE_SECONDS, ONE_PART_SECONDS = 60, 30  # of all compilations together, and of the longest, on a core of a server
_MEMORY = Path("/proc/meminfo")
# g++ and clang++ end with a code of their own when the compiler proper, their child, is killed.
_KILLED = re.compile("signal terminated program|internal compiler error: Killed|unable to execute command: Killed")


def too_old(torch_version: str) -> str | None:
    """The sentence for a torch that dymem cannot serve; None for one that it can."""
    version = re.match(r"(\d+)\.(\d+)", torch_version)
    if version is None or (int(version[1]), int(version[2])) < TORCH_OLDEST:
        return f"dymem needs torch {TORCH_OLDEST[0]}.{TORCH_OLDEST[1]} or newer, and this is {torch_version}: upgrade torch."
    return None


def load(torch: ModuleType) -> ModuleType:
    """The adapter for this torch, built first if need be."""
    if MODULE in sys.modules:
        return sys.modules[MODULE]
    if (sentence := too_old(torch.__version__)) is not None:
        raise InstallError(sentence)
    import dymem._core  # noqa: F401  loads libdymem.so, which the adapter must find in the process

    sources = source_dir() / "allocator"
    folder = cache_folder() / _folder_name(torch, sources)
    if (module := _load_built(folder)) is not None:
        return module
    with _locked(folder):
        if (module := _load_built(folder)) is not None:  # another process built it meanwhile
            return module
        _announce(torch, folder)
        with undone_first():
            _build(torch, sources, folder)
        if (module := _load_built(folder, complain=True)) is not None:
            return module
    raise InstallError(f"the adapter in {folder} changed as soon as it was built: is something else writing there?")


def cache_folder() -> Path:
    """Where built adapters are kept; InstallError if nothing says where."""
    if os.environ.get("DYMEM_CACHE"):
        root = Path(os.environ["DYMEM_CACHE"])
    elif os.environ.get("XDG_CACHE_HOME"):
        root = Path(os.environ["XDG_CACHE_HOME"]) / "dymem"
    else:
        try:
            root = Path("~/.cache/dymem").expanduser()
        except RuntimeError:
            raise InstallError("dymem keeps its adapter in the home folder of its user, and this one has none: set "
                               "DYMEM_CACHE to a folder that this user may write to.") from None
    return root / "adapter"


def _folder_name(torch: ModuleType, sources: Path) -> str:
    digest = hashlib.sha256()
    for part in (torch.__version__, torch.version.git_version, torch.version.cuda, sysconfig.get_config_var("SOABI"),
                 sys.version, *FLAGS, *LIBRARIES):
        digest.update(f"{part}\0".encode())
    for path in sorted([*sources.rglob("*.hpp"), *(sources / "torch").glob("*.cpp")]):
        digest.update(f"{path.relative_to(sources)}\0".encode() + path.read_bytes())
    return f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"


def _load_built(folder: Path, complain: bool = False) -> ModuleType | None:
    """The module, if what lies there is exactly what was built and it loads."""
    library = folder / "_torch.so"
    try:
        built = json.loads((folder / "built.json").read_text())
        intact = hashlib.sha256(library.read_bytes()).hexdigest() == built["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not intact:  # never load it: mapping a file that was cut short kills the process
        return None
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(library))
    try:
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE, loader))
        loader.exec_module(module)
    except ImportError as error:
        if complain:
            raise InstallError(f"the adapter was built but does not load: {error}") from error
        return None
    sys.modules[MODULE] = module
    sys.modules["dymem"]._torch = module
    return module


@contextlib.contextmanager
def _locked(folder: Path):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a")
    except OSError as error:
        raise InstallError(f"dymem cannot keep its adapter in {folder} ({error.strerror}): set DYMEM_CACHE to a folder "
                           "that this user may write to.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has it open too


def _announce(torch: ModuleType, folder: Path) -> None:
    others = {}
    for stamp in folder.parent.glob("torch-*/built.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            others[stamp.stat().st_mtime] = json.loads(stamp.read_text())["torch"]
    before = others[max(others)] if others else torch.__version__
    if before != torch.__version__:
        line = f"torch is now {torch.__version__}, the adapter was built for {before}: building it again"
    else:
        line = f"building its adapter for torch {torch.__version__}"
    print(f"dymem: {line} (once, {how_long()})", file=sys.stderr, flush=True)


def how_long() -> str:
    """What building takes on this machine, for a sentence: "about 30 s on 2 cores"."""
    cores = _at_once()
    seconds = max(ONE_PART_SECONDS, round(CORE_SECONDS / cores, -1))
    return f"about {seconds:.0f} s on {cores} core{'s' if cores > 1 else ''}"


def _build(torch: ModuleType, sources: Path, folder: Path) -> None:
    compiler = find_compiler()
    package = Path(torch.__file__).resolve().parent
    includes = [package / "include", package / "include" / "torch" / "csrc" / "api" / "include",
                *_cuda_includes(package), _python_include()]
    compile_command = [*compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                       "-I", str(sources)]
    for path in includes:
        compile_command += ["-isystem", str(path)]
    started = time.monotonic()
    work = folder / f"building-{os.getpid()}"
    for left in folder.glob("building-*"):  # by builds that were killed: nobody else builds while we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    log = folder / "build.log"
    try:
        work.mkdir()
        objects, commands = [], []
        for number, part in enumerate(_parts(list((sources / "torch").glob("*.cpp")))):
            together = work / f"part{number}.cpp"
            together.write_text("".join(f'#include "torch/{path.name}"\n' for path in part))
            objects.append(str(work / f"part{number}.o"))
            commands.append([*compile_command, "-c", str(together), "-o", objects[-1]])
        library = work / "_torch.so"
        link = [*compiler, "-shared", "-pthread", "-o", str(library), *objects, f"-L{PACKAGE}", f"-L{package / 'lib'}",
                *LIBRARIES]
        with open(log, "w") as out:
            _run_all(torch, commands, out, log)
            _run_all(torch, [link], out, log)
        os.replace(library, folder / "_torch.so")
        stamp = {"sha256": hashlib.sha256((folder / "_torch.so").read_bytes()).hexdigest(), "torch": torch.__version__,
                 "cuda": torch.version.cuda, "python": sys.version.split()[0], "compiler": compiler,
                 "seconds": round(time.monotonic() - started, 1)}
        (work / "built.json").write_text(json.dumps(stamp, indent=1))
        os.replace(work / "built.json", folder / "built.json")
    except OSError as error:
        raise InstallError(f"the adapter for torch {torch.__version__} could not be written to {folder}: {error}; set "
                           "DYMEM_CACHE to a folder with room that this user may write to.") from error
    finally:
        with held():
            shutil.rmtree(work, ignore_errors=True)


def _parts(sources: list[Path], count: int = PARTS) -> list[list[Path]]:
    """The files that are compiled together: `count` lists of about the same number of bytes, each in order."""
    found = [[] for _ in range(count)]
    for path in sorted(sources, key=lambda path: (-path.stat().st_size, path.name)):
        min(found, key=lambda part: sum(other.stat().st_size for other in part)).append(path)
    return [sorted(part) for part in found if part]


def _run_all(torch: ModuleType, commands: list[list[str]], out, log: Path) -> None:
    """Runs the commands; what they print goes to the log, and the first error into the exception."""
    with _counted(len(commands)) as tell:
        results = _together(commands, _at_once(), log.parent, tell)
    for number, (code, text) in enumerate(results):
        if code < 0 or (code > 0 and _KILLED.search(text)):  # memory ran out, as a rule: alone it may have enough
            results[number], = _together([commands[number]], 1, log.parent)
    failed = None
    for command, (code, text) in zip(commands, results):
        out.write(f"{shlex.join(command)}\n{text}\n")
        if code != 0 and failed is None:
            failed = next((line.strip() for line in text.splitlines() if "error" in line), f"{command[0]} failed")
    if failed is not None:
        out.flush()
        raise InstallError(f"the adapter for torch {torch.__version__} could not be built: {failed}; all that the compiler "
                           f"said is in {log}.")


@contextlib.contextmanager
def _counted(parts: int) -> Iterator[Callable[[int], None]]:
    """Says how many are done, on one line that goes when all are; only on a terminal, and not of one part."""
    def tell(done: int) -> None:
        _rewrite(f"dymem: {done} of {parts} parts")

    if parts == 1 or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    tell(0)
    try:
        yield tell
    finally:
        _rewrite("")


def _rewrite(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone: that is no reason not to build
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()


def _at_once() -> int:
    """How many compilations this machine has cores and memory for."""
    cores = len(os.sched_getaffinity(0))
    try:
        free = int(re.search(r"^MemAvailable:\s*(\d+) kB", _MEMORY.read_text(), re.MULTILINE)[1]) << 10
    except (OSError, TypeError):  # what is free is not said here
        return cores
    return max(1, min(cores, free // ONE_TAKES))


def _together(commands: list[list[str]], at_once: int, folder: Path,
              tell: Callable[[int], None] = lambda done: None) -> list[tuple[int, str]]:
    """The exit code of each command, negative for a signal, and what it printed. An exception leaves none running, nor does
    whatever kills this process: all are started by the thread that waits for them, and die with it."""
    environment = {**os.environ, "LC_ALL": "C"}
    results: list[tuple[int, str]] = [(0, "")] * len(commands)
    waiting = list(range(len(commands)))
    running: dict[int, subprocess.Popen] = {}
    with contextlib.ExitStack() as files:
        said = [files.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in commands]
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number = waiting.pop(0)
                    with held():  # else Ctrl-C could fall between a compiler that runs and a name for it
                        running[number] = _started(commands[number], said[number], environment)
                for number, job in list(running.items()):
                    if job.poll() is not None:
                        said[number].seek(0)
                        results[number] = job.returncode, said[number].read().decode(errors="replace")
                        del running[number]
                        _check_started(commands[number], *results[number])
                        tell(len(commands) - len(waiting) - len(running))
                time.sleep(0.02)
        finally:
            with held():  # whoever is impatient presses twice
                for job in running.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(job.pid, signal.SIGKILL)
                for job in running.values():
                    job.wait()
    return results


def _started(command: list[str], said: IO[bytes], environment: dict[str, str]) -> subprocess.Popen:
    """In a session of its own: killing a compiler's driver alone would leave the compiler proper behind."""
    try:
        return subprocess.Popen(dying_whole(command), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                                env=environment, start_new_session=True)
    except OSError as error:
        raise _does_not_run(command, error.strerror) from error


def _check_started(command: list[str], code: int, text: str) -> None:
    if code == CANNOT_START and text.startswith(WHY_NOT):  # an executable file that is no program
        raise _does_not_run(command, text.removeprefix(WHY_NOT).strip())


def _does_not_run(command: list[str], why: str) -> InstallError:
    return InstallError(f"the compiler {command[0]} does not run ({why}): install g++ 11 or newer, or set CXX to a compiler.")


def find_compiler() -> list[str]:
    """The command that compiles C++ here; InstallError if there is none."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # quotes that are not closed
        named = [os.environ["CXX"]]
    for command in ([named] if named else [["g++"], ["c++"], ["clang++"]]):
        if shutil.which(command[0]):
            return command
    what = f"'{named[0]}' (from CXX) is not there" if named else "none is there"
    raise InstallError(f"dymem compiles its adapter to PyTorch once, with a C++20 compiler, and {what}: install g++ 11 or "
                       "newer, or set CXX to a compiler.")


def _python_include() -> str:
    for path in {sysconfig.get_paths()["include"], sysconfig.get_paths()["platinclude"]}:
        if (Path(path) / "Python.h").exists():
            return path
    raise InstallError("building the adapter needs Python's own headers (Python.h), and they are not installed: install "
                       "your system's package of them (python3-dev, python3-devel).")


def _cuda_includes(torch_package: Path) -> list[Path]:
    """Folders that together have CUDA's headers: those of torch's dependencies first, then a toolkit's."""
    candidates = []
    for root in dict.fromkeys([torch_package.parent, *(Path(p) for p in sys.path if p)]):
        candidates += sorted((root / "nvidia").glob("*/include"))
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        homes.append(str(Path(nvcc).resolve().parent.parent))
    for home in filter(None, homes):
        candidates += [Path(home) / "include", *sorted(Path(home).glob("targets/*/include"))]
    found = []
    for header, package in _HEADERS.items():
        folder = next((path for path in candidates if (path / header).exists()), None)
        if folder is None:
            raise InstallError(f"building the adapter needs CUDA's headers, and {header} is not installed: run `pip install "
                               f"{package}`, or set CUDA_HOME to a CUDA toolkit.")
        found.append(folder)
    # The rest of torch's own dependencies: its headers may include theirs.
    return list(dict.fromkeys([*found, *(path for path in candidates if torch_package.parent in path.parents)]))
