"""A user's script under several allocators, through the start hook: torch on the CPU, dymem on the emulated driver."""

import json
import os

import pytest

from dymem.compare import script

pytestmark = pytest.mark.torch

TRAINS = """
import random, sys, torch
w = torch.nn.Linear(8, 8)
o = torch.optim.SGD(w.parameters(), lr=0.1)
print("random", random.random(), w.weight.sum().item(), file=open(sys.argv[1], "a"))
for i in range(6):
    w(torch.randn(4, 8)).sum().backward()
    o.step()
    o.zero_grad()
"""


@pytest.fixture
def write(tmp_path, monkeypatch, first_build):
    monkeypatch.setenv("DYMEM_CONF", "driver:emulated")
    monkeypatch.setenv("DYMEM_CACHE", str(first_build.cache))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.chdir(tmp_path)

    def write(text, name="train.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_each_allocator_runs_the_same_steps_from_the_same_seeds(write, tmp_path):
    row = script.measure([write(TRAINS), "drawn.txt"], ["native", "expandable", "dymem"], 2, 500)
    assert row["workload"] == "train.py"
    assert [row[name]["repeats"] for name in row["allocators"]] == [2, 2, 2]
    assert [run["backend"] for run in row["dymem"]["runs"]] == ["dymem"] * 2
    assert row["native"]["runs"][0]["backend"] == "native"
    assert all(len(run["step_seconds"]) == 5 for name in row["allocators"] for run in row[name]["runs"])
    assert row["fastest_rival"] in ("native", "expandable") and row["dymem"]["ratio_upper_95"] > 0
    drawn = (tmp_path / "drawn.txt").read_text().splitlines()
    assert len(drawn) == 6 and len(set(drawn)) == 1


def test_a_script_that_crashes_tells_its_last_lines_and_the_others_go_on(write):
    path = write("import torch\nprint('so far')\nif torch.cuda.memory.get_allocator_backend() == 'dymem':\n"
                 "    raise ValueError('not this one')\n" + TRAINS.replace("sys.argv[1]", "'drawn.txt'"))
    row = script.measure([path], ["dymem", "native"], 2, 500)
    assert row["dymem"]["error"] == "ended with code 1: ValueError: not this one"
    assert "so far" in row["dymem"]["stderr"] and row["dymem"]["repeats"] == 0 and len(row["dymem"]["runs"]) == 1
    assert row["native"]["repeats"] == 2


@pytest.mark.parametrize("text, words", [
    ("import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried to')", "OutOfMemoryError: CUDA out of memory. Tried to"),
    ("import torch, os; os.kill(os.getpid(), 9)", "ended by SIGKILL: it said nothing"),
    ("print('no torch')", "the script ended without importing torch"),
    ("import torch; raise SystemExit(7)", "ended with code 7"),
    ("def f(:", "SyntaxError"),
    ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe'); sys.exit(3)", "ended with code 3: \ufffd\ufffd"),
])
def test_every_bad_end_is_one_sentence(write, text, words):
    result = script.run_once([write(text)], "native", 60)
    assert words in result["error"] and "\n" not in result["error"]


def test_a_script_that_hangs_is_ended_with_its_children(write, tmp_path):
    path = write("import subprocess, sys, time\n"
                 "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\ntime.sleep(600)")
    result = script.run_once([path], "native", 3)
    assert "budget of seconds" in result["error"]
    pid = int(result["stderr"])
    assert not os.path.exists(f"/proc/{pid}") or open(f"/proc/{pid}/stat").read().split()[2] == "Z"


def test_a_script_without_steps_has_no_step_time(write):
    row = script.measure([write("import torch")], ["native"], 1, 60)
    assert row["native"]["step_ms"] is None and "error" not in row["native"]


def test_a_path_that_is_no_utf8(write, tmp_path):
    name = os.fsdecode(b"tr\xffain.py")
    row = script.measure([write(TRAINS, name), "drawn.txt"], ["native"], 1, 60)
    assert "error" not in row["native"] and row["workload"] == "tr\ufffdain.py"


def test_of_several_processes_the_one_that_trained_is_told(tmp_path):
    for pid, (rank, steps) in enumerate([(1, [1.0, 1.0]), (0, [2.0, 2.0]), (0, [])]):
        (tmp_path / f"{pid}.json").write_text(json.dumps({"rank": rank, "step_seconds": steps, "calls_after_step": [1, 5, 9]}))
    (tmp_path / "9.json").write_text("{")
    report = script._report(tmp_path)
    assert report["rank"] == 0 and report["step_ms"] == 2000.0 and report["processes"] == 3 and report["calls_per_step"] == 4.0
