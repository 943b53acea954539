"""What every test may use, and what is skipped where the machine lacks it.

Where a test goes: contract/ one suite over every driver; pool/ the C++ pool through Python; cpp/ programs of C++;
adapter/ PyTorch over the emulated driver; holders/ CuPy and C beside it; cli/ the commands; packaging/ what is shipped,
what importing needs and what is set; style/ the rules of the sources; gpu/ what only a card can show.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it to 80 in its workers; tables are as wide as in a file

ROOT = Path(__file__).resolve().parent.parent


def has_gpu() -> bool:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_collection_modifyitems(items):
    no_gpu = None if any(item.get_closest_marker("gpu") for item in items) and has_gpu() else "needs an NVIDIA GPU"
    no_torch = None if importlib.util.find_spec("torch") else "needs torch"
    for item in items:
        if item.get_closest_marker("gpu") and no_gpu:  # the marker, not the folder of that name
            item.add_marker(pytest.mark.skip(reason=no_gpu))
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
