"""What every test may use, and what is skipped where the machine lacks it.

Where a test goes: contract/ one suite over every driver; pool/ the C++ pool through Python; cpp/ programs of C++;
adapter/ PyTorch over the emulated driver; mobility/ facts and classes of what a program allocates; holders/ CuPy and C
beside it; cli/ the commands; packaging/ what is shipped, what importing needs and what is set; style/ the rules of the
sources; gpu/ what only a card can show.
"""

import ctypes
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from core_programs import CorePrograms  # noqa: E402  what tests of several folders share

try:  # a busy machine is slow, and so is the first example
    from hypothesis import HealthCheck, settings

    # In CI the same examples each time: what fails there is what was changed. Elsewhere others each time.
    settings.register_profile("dymem", deadline=None, suppress_health_check=[HealthCheck.too_slow],
                              derandomize=bool(os.environ.get("CI")))
    settings.load_profile("dymem")
except ImportError:  # the tests that need it say so
    pass

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it to 80 in its workers; tables are as wide as in a file

ROOT = Path(__file__).resolve().parent.parent
# Compiling takes minutes on a machine that is slow or busy, and so does waiting for the worker that compiles.
BUILDS = {"first_build", "core_programs", "wheel"}
BUILD_SECONDS = 1500


def has_gpu() -> bool:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_configure(config):
    """One folder for matplotlib, which the workers of pytest-xdist inherit: the user's may be unwritable, or empty."""
    if "PYTEST_XDIST_WORKER" not in os.environ or "MPLCONFIGDIR" not in os.environ:
        os.environ["MPLCONFIGDIR"] = folder = tempfile.mkdtemp(prefix="dymem-matplotlib-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@functools.cache
def fill_font_cache():
    """Once for all workers, before any imports matplotlib: reading the system's fonts takes seconds."""
    with open(Path(os.environ["MPLCONFIGDIR"]) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], capture_output=True)


def pytest_collect_file(file_path):
    if file_path.suffix == ".py" and "matplotlib" in file_path.read_text():
        fill_font_cache()


def pytest_collection_modifyitems(config, items):
    no_gpu = None if any(item.get_closest_marker("gpu") for item in items) and has_gpu() else "needs an NVIDIA GPU"
    timeouts = config.pluginmanager.hasplugin("timeout")
    no_torch = None if importlib.util.find_spec("torch") else "needs torch"
    for item in items:
        if item.get_closest_marker("gpu") and no_gpu:  # the marker, not the folder of that name
            item.add_marker(pytest.mark.skip(reason=no_gpu))
        if BUILDS.intersection(item.fixturenames) and timeouts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 300))
        if "torch" in item.keywords and no_torch:
            item.add_marker(pytest.mark.skip(reason=no_torch))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Path:
    """The bundled recordings."""
    return ROOT / "python" / "dymem" / "traces"


@pytest.fixture
def python(tmp_path):
    """Runs this Python on arguments, in an empty folder and with no configuration but what is given."""

    def run(*arguments, env=None, timeout=300):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DYMEM_")}
        environment["COLUMNS"] = "200"
        environment.update(env or {})
        return subprocess.run([sys.executable, *map(str, arguments)], cwd=tmp_path, env=environment,
                              capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture
def dymem_command(python):
    """Runs `python -m dymem` on arguments."""
    return lambda *arguments, **more: python("-m", "dymem", *arguments, **more)


def shared_folder(tmp_path_factory) -> Path:
    """One for all workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def core_programs(tmp_path_factory):
    return CorePrograms(shared_folder(tmp_path_factory) / "core-programs")


@pytest.fixture(scope="session")
def first_build(tmp_path_factory):
    """A cache with the adapter in it, built once for all workers, and what four processes said that all wanted it first."""
    shared = shared_folder(tmp_path_factory)
    cache, told = shared / "first-build", shared / "first-build.json"
    with open(shared / "first-build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            clean = {key: value for key, value in os.environ.items()
                     if not key.startswith(("DYMEM_", "PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC"))}
            script = "import dymem; dymem.install(driver='emulated'); import torch; print(torch.cuda.get_allocator_backend())"
            jobs = [subprocess.Popen([sys.executable, "-c", script], env={**clean, "DYMEM_CACHE": str(cache)},
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
            said = [job.communicate(timeout=BUILD_SECONDS) for job in jobs]
            told.write_text(json.dumps([[job.returncode, *each] for job, each in zip(jobs, said)]))
    results = [SimpleNamespace(returncode=code, out=out, err=err) for code, out, err in json.loads(told.read_text())]
    return SimpleNamespace(cache=cache, results=results)
