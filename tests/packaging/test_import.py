"""Importing dymem needs nothing but Python: each of these runs in a process whose imports are watched."""

import pytest

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""
OPTIONAL = ["torch", "numpy", "matplotlib", "cupy", "typer", "rich", "click"]


def test_import_without_any_package(python):
    run = python("-c", BLOCK.format(blocked=OPTIONAL) + "import dymem; print(dymem.Config().to_conf() == '', "
                 "callable(dymem.install), dymem.__version__)")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("True True ")


def test_import_loads_neither_the_core_nor_cuda(python):
    run = python("-c", "import dymem, sys; maps = open('/proc/self/maps').read();"
                 "print([n for n in ('dymem._core', 'torch', 'numpy') if n in sys.modules], "
                 "'libcuda' in maps, 'libdymem' in maps)")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[] False False"


def test_core_works_without_torch(python):
    run = python("-c", BLOCK.format(blocked=OPTIONAL) + "from dymem import _core; print(_core.abi.valid_keys()[0]); "
                 "import dymem; print(dymem.memory_stats()['reserved_bytes.all.current'])")
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["limit", "0"]


def test_install_is_a_function_after_use(python):
    """The module dymem.install must not take the place of the function of that name."""
    run = python("-c", "import dymem, dymem.install; import dymem._paths; print(callable(dymem.install))")
    assert run.stdout.strip() == "True", run.stderr


@pytest.mark.parametrize("missing", [["typer"], ["rich"], ["typer", "rich"]])
def test_command_line_says_what_is_missing_in_one_line(python, missing):
    code = BLOCK.format(blocked=missing).replace("raise ModuleNotFoundError", "raise ModuleNotFoundError")
    run = python("-c", code + "import importlib.util as u; find = u.find_spec\n"
                 f"u.find_spec = lambda n, p=None: None if n in {missing!r} else find(n, p)\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode != 0
    assert run.stderr.count("\n") == 1 and all(f"pip install {' '.join(missing)}" in run.stderr for _ in missing)


def test_library_path_is_the_library(python):
    run = python("-c", "import ctypes, dymem; lib = ctypes.CDLL(dymem.library_path()); "
                 "print(bool(lib.dymem_malloc), bool(lib.dymem_free))")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "True True"


@pytest.mark.parametrize("device", [-1, 64, 10**6])
def test_statistics_of_a_device_that_cannot_be(python, device):
    run = python("-c", "import dymem\n"
                 f"try: dymem.memory_stats({device})\nexcept dymem.InvalidArgument as error: print(error)")
    assert run.returncode == 0 and str(device) in run.stdout, run.stderr


@pytest.mark.parametrize("device", ["'cuda:0'", "None", "2.5", "2**70", "10**5000"])
def test_what_is_no_device_at_all_is_one_sentence(python, device):
    run = python("-c", f"import dymem\ntry:\n    dymem.memory_stats({device})\nexcept dymem.InvalidArgument as error:\n    print(error)")
    assert run.returncode == 0 and run.stdout.count("\n") == 1 and "no number of a device" in run.stdout, run.stderr
    run = python("-c", f"import dymem\ntry:\n    dymem.save_trace('t', {device})\nexcept dymem.InvalidArgument as error:\n    print(error)")
    assert run.returncode == 0 and run.stdout.count("\n") == 1 and "no number of a device" in run.stdout, run.stderr
