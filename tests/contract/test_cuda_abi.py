"""The driver interface that dymem declares for itself, against <cuda.h> where there is one; and life without CUDA."""

import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dymem import errors
from dymem._core import driver as drivers

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "allocator"
COMPILER = shlex.split(os.environ.get("CXX", "g++"))


def cuda_include():
    folders = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if nvcc := shutil.which("nvcc"):
        folders.append(Path(nvcc).resolve().parents[1] / "include")
    folders += sorted(Path("/usr/local").glob("cuda*/include"))
    if (nvidia := importlib.util.find_spec("nvidia")) and nvidia.submodule_search_locations:
        for root in nvidia.submodule_search_locations:
            folders += sorted(Path(root).glob("*/include"))
    return next((folder for folder in folders if (folder / "cuda.h").is_file()), None)


def compile_check(*more, source=HERE / "cuda_abi_check.cpp"):
    include = cuda_include()
    if include is None:
        pytest.skip("needs CUDA's headers")
    if shutil.which(COMPILER[0]) is None:
        pytest.skip("needs a C++ compiler")
    return subprocess.run([*COMPILER, "-std=c++20", "-fsyntax-only", "-I", str(include), "-I", str(SOURCES), *more,
                           str(source)], capture_output=True, text=True)


def test_our_declarations_are_cudas():
    answer = compile_check()
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("right, wrong", [("kAttributeVmm = 102", "kAttributeVmm = 103"),
                                          ("unsigned short usage = 0;", "unsigned usage = 0;"),
                                          ("kErrorNotReady = 600", "kErrorNotReady = 601")])
def test_the_check_can_fail(tmp_path, right, wrong):
    folder = tmp_path / "driver"
    folder.mkdir()
    text = (SOURCES / "driver" / "cuda_abi.hpp").read_text()
    assert right in text
    (folder / "cuda_abi.hpp").write_text(text.replace(right, wrong))
    (folder / "cuda_table.hpp").write_text((SOURCES / "driver" / "cuda_table.hpp").read_text())
    (tmp_path / "check.cpp").write_text((HERE / "cuda_abi_check.cpp").read_text())
    answer = compile_check("-iquote", str(tmp_path), source=tmp_path / "check.cpp")
    assert answer.returncode != 0
    assert "static assertion failed" in answer.stderr


def test_without_a_gpu_there_is_one_clear_sentence():
    if drivers.cuda_device_count():
        pytest.skip("there is a GPU")
    with pytest.raises(errors.DriverError) as caught:
        drivers.make_cuda(0)
    assert str(caught.value).count("\n") == 0
    assert "NVIDIA driver" in str(caught.value) or "nvidia-smi" in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("device", [-1, 10_000])
def test_a_gpu_that_is_not_there(device):
    with pytest.raises(errors.DriverError, match=f"there is no GPU {device}; the driver reports"):
        drivers.make_cuda(device)
