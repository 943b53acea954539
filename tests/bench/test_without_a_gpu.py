"""What benches refuse at once, in one sentence: no GPU or package, no folder for a result, absurd numbers. They write nothing."""

import subprocess
import sys

import pytest

from dymem._core import driver


@pytest.mark.parametrize("arguments, words", [
    (["paired.py", "unet_b16"], "there is no GPU here"), (["sleep.py"], "--driver emulated"),
    (["slab_sharing.py"], "slab_sharing: "),
    (["history_cost.py", "--processes", "0"], "must be positive"),
    (["soak.py", "--scale", "nan"], "must be positive"), (["soak.py", "--scale", "inf"], "must be positive")])
def test_one_sentence_and_exit_2(root, tmp_path, arguments, words):
    if arguments[0] not in ("soak.py", "history_cost.py") and driver.cuda_device_count():
        pytest.skip("there is a GPU")
    name, *rest = arguments
    more = ["--out", str(tmp_path)] if name == "paired.py" else []
    done = subprocess.run([sys.executable, str(root / "bench" / name), *rest, *more], capture_output=True, text=True,
                          cwd=tmp_path, timeout=300)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def alone(root, name, *arguments, without=()):
    """The bench as a program, in a Python that lacks these packages."""
    hidden = "".join(f"sys.modules['{package}'] = None\n" for package in without)
    path = str(root / "bench" / name)
    return ["-c", f"import runpy, sys\n{hidden}sys.argv = {[path, *map(str, arguments)]!r}\n"
            f"sys.path[0] = {str((root / 'bench' / name).parent)!r}\nrunpy.run_path({path!r}, run_name='__main__')"]


@pytest.mark.parametrize("arguments", [
    ["soak.py"], ["native_calls.py", "--driver", "emulated"], ["shuffled.py"], ["sleep.py", "--driver", "emulated"],
    ["stacks.py"], ["equal_losses.py", "unet_b16"], ["train.py", "unet_b16"], ["timeline.py", "unet_b16"], ["profile_cost.py"],
    ["profile_cost.py", "--automatic"], ["slab_sharing.py"], ["placement/ablation.py"]], ids=" ".join)
def test_a_folder_that_is_not_there_is_told_before_the_work(python, root, tmp_path, arguments):
    """And is not made: a slip of the hand would else leave results where nobody looks for them."""
    if arguments[0] == "native_calls.py":
        pytest.importorskip("numpy")
    done = python(root / "bench" / arguments[0], *arguments[1:], "--json", tmp_path / "nowhere" / "x.json",
                  env={"PYTHONPATH": str(root / "python")}, timeout=300)
    assert done.returncode == 2 and "there is no folder" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["timeline.py", "unet_b16", "--trace"], ["train.py", "unet_b16", "--history"]])
def test_so_is_that_of_a_second_file(python, root, tmp_path, arguments):
    done = python(root / "bench" / arguments[0], *arguments[1:], tmp_path / "nowhere" / "x", timeout=300)
    assert done.returncode == 2 and "there is no folder" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments, missing", [
    (["native_calls.py", "--driver", "emulated"], "numpy"), (["native_calls.py"], "torch"), (["profile_cost.py"], "torch"),
    (["profile_cost.py", "--automatic"], "torch"), (["timeline.py", "unet_b16"], "torch"), (["stacks.py"], "torch"),
    (["train.py", "unet_b16"], "torch"), (["record_facts.py", "unet_b16"], "torch")])
def test_a_missing_package_is_named_with_what_installs_it(python, root, tmp_path, arguments, missing):
    if missing == "torch" and arguments[0] == "native_calls.py":
        pytest.importorskip("numpy")
    done = python(*alone(root, *arguments, without=[missing]), env={"PYTHONPATH": str(root / "python")})
    assert done.returncode == 2 and f"-m pip install {missing}" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_without_pybind11_single_calls_are_not_timed(python, root):
    pytest.importorskip("numpy")
    done = python(*alone(root, "native_calls.py", "--driver", "emulated", without=["pybind11", "torch"]),
                  env={"PYTHONPATH": str(root / "python")})
    assert done.returncode == 2 and "-m pip install pybind11" in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.torch
def test_stacks_without_a_gpu_are_refused_and_leave_no_file(python, root, tmp_path):
    if driver.cuda_device_count():
        pytest.skip("there is a GPU")
    done = python(root / "bench" / "stacks.py", "amp", env={"PYTHONPATH": str(root / "python")})
    assert done.returncode == 2 and "there is no GPU here; --cpu" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.torch
@pytest.mark.parametrize("more", [[], ["--automatic"]])
def test_a_program_that_is_not_there_is_not_passed_over(python, root, more):
    done = python(root / "bench" / "profile_cost.py", "--only", "nonsense", *more, env={"PYTHONPATH": str(root / "python")})
    assert done.returncode == 2 and "there is no program 'nonsense' here; there are " in done.stderr, done.stderr
