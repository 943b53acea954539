"""Benches that need a GPU say so where there is none, and write nothing; absurd numbers are refused."""

import subprocess
import sys

import pytest

from dymem._core import driver


@pytest.mark.parametrize("arguments, words", [
    (["paired.py", "unet_b16"], "there is no GPU here"), (["sleep.py"], "--driver emulated"),
    (["soak.py", "--scale", "nan"], "must be positive"), (["soak.py", "--scale", "inf"], "must be positive")])
def test_one_sentence_and_exit_2(root, tmp_path, arguments, words):
    if arguments[0] != "soak.py" and driver.cuda_device_count():
        pytest.skip("there is a GPU")
    name, *rest = arguments
    more = ["--out", str(tmp_path)] if name == "paired.py" else []
    done = subprocess.run([sys.executable, str(root / "bench" / name), *rest, *more], capture_output=True, text=True,
                          cwd=tmp_path, timeout=60)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
