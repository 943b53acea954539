"""A user's script under several allocators, through the start hook: torch on the CPU, dymem on the emulated driver."""

import json
import os
import subprocess
import time

import pytest

from processes import gone

from dymem.compare import capped, observe, script

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
    result = script.run_once([write(text)], "native", 300)
    assert words in result["error"] and "\n" not in result["error"]


def test_a_script_that_hangs_is_ended_with_its_children(write, tmp_path, monkeypatch):
    path = write("import subprocess, sys, time\n"
                 "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
                 "open('told', 'w').close()\ntime.sleep(600)")
    wait = subprocess.Popen.wait

    def wait_from_then_on(process, timeout=None):
        until = time.monotonic() + 120
        while timeout == 0.1 and not (tmp_path / "told").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_from_then_on)
    result = script.run_once([path], "native", 0.1)
    assert "budget of seconds" in result["error"]
    assert gone(int(result["stderr"]))


def test_a_script_without_steps_has_no_step_time(write):
    row = script.measure([write("import torch")], ["native"], 1, 300)
    assert row["native"]["step_ms"] is None and "error" not in row["native"]


def test_a_path_that_is_no_utf8(write, tmp_path):
    name = os.fsdecode(b"tr\xffain.py")
    row = script.measure([write(TRAINS, name), "drawn.txt"], ["native"], 1, 300)
    assert "error" not in row["native"] and row["workload"] == "tr\ufffdain.py"


def test_of_several_processes_the_one_that_trained_is_told(tmp_path):
    for pid, (rank, steps) in enumerate([(1, [1.0, 1.0]), (0, [2.0, 2.0]), (0, [])]):
        (tmp_path / f"{pid}.json").write_text(json.dumps({"rank": rank, "step_seconds": steps, "calls_after_step": [1, 5, 9]}))
    (tmp_path / "9.json").write_text("{")
    report = script._report(tmp_path)
    assert report["rank"] == 0 and report["step_ms"] == 2000.0 and report["processes"] == 3 and report["calls_per_step"] == 4.0


# --- under caps


def told(steps, **more):
    return {"step_seconds": [0.1] * steps, "step_ms": 100.0, "warm_from": script.warm_from(steps), "live_peak_bytes": 1000,
            "occupied_peak_bytes": 1000, "reserved_peak_bytes": 1200, "requested_peak_bytes": 990, **more}


def test_caps_multiply_what_the_script_holds_under_pytorchs_own_allocator(monkeypatch):
    asked = []

    def run_once(program, name, seconds, history=None, limit_bytes=0):
        asked.append((name, limit_bytes))
        needs = {"native": 1400, "dymem": 1000}[name]
        if limit_bytes and limit_bytes < needs:
            return told(2, error="OutOfMemoryError: no", out_of_memory="OutOfMemoryError: no", failed_at_step=2)
        return told(9 if limit_bytes else 12)

    monkeypatch.setattr(script, "run_once", run_once)
    row = capped.measure(script.Script(["a/train.py"], 60), ["native", "dymem"], [1.02, 1.5], 1)
    assert row["workload"] == "train.py" and row["live_peak_bytes"] == 1000
    assert asked == [("native", 0)] + [("native", 0), ("native", 1500), ("dymem", 1500)] + \
        [("native", 0), ("native", 1020), ("dymem", 1020)]
    narrow, wide = row["caps"]
    assert [narrow[name]["trains"] for name in ("native", "dymem")] == [False, True]
    assert narrow["native"]["failed_at_step"] == 2 and narrow["dymem"]["ratio"] == pytest.approx(1.0)
    assert wide["native"]["trains"] and wide["dymem"]["ratio_upper_95"] == pytest.approx(1.0), "12 steps and 9 are compared"


def test_a_script_that_catches_what_ran_out_and_gives_up_does_not_train(monkeypatch):
    def run_once(program, name, seconds, history=None, limit_bytes=0):
        return told(0, ooms=3) if limit_bytes and name == "native" else told(12, ooms=int(name == "dymem"))

    monkeypatch.setattr(script, "run_once", run_once)
    (cell,) = capped.measure(script.Script(["train.py"], 60), ["native", "dymem"], [1.02], 1)["caps"]
    assert cell["native"]["trains"] is False and "0 of 12 timed steps" in cell["native"]["error"]
    assert cell["dymem"]["trains"] and cell["dymem"]["ratio"] == pytest.approx(1.0), "one that was caught and tried again is fine"


def test_an_allocator_that_makes_fewer_steps_costs_the_others_nothing(monkeypatch):
    steps = {("native", 0): 12, ("native", 1500): 2, ("dymem", 1500): 9}
    monkeypatch.setattr(script, "run_once", lambda program, name, *_, limit_bytes=0: told(steps[name, limit_bytes]))
    (cell,) = capped.measure(script.Script(["train.py"], 60), ["native", "dymem"], [1.5], 1)["caps"]
    assert cell["dymem"]["ratio"] == pytest.approx(1.0) and cell["native"]["trains"]


def test_time_that_is_spent_leaves_out_the_narrow_caps(monkeypatch):
    work = script.Script(["train.py"], 60)
    monkeypatch.setattr(script, "run_once", lambda *_, **__: told(9))
    monkeypatch.setattr(work, "allows_another", lambda longest: longest == 0)
    narrow, wide = capped.measure(work, ["dymem"], [1.02, 1.5], 2)["caps"]
    assert wide["dymem"]["trains"] and narrow["dymem"] == {"trains": None, "error": "it was not run: the time was spent"}


def test_a_script_that_holds_nothing_of_the_gpu_has_no_caps(write):
    row = capped.measure(script.Script([write(TRAINS), "drawn.txt"], 120), ["native"], [1.5], 1)
    assert "held no memory of the GPU" in row["error"] and row["caps"] == []


def test_the_cap_reaches_every_process_of_the_script(write, tmp_path):
    path = write("import os, sys, torch\nprint(os.environ['DYMEM_CONF'], os.environ['DYMEM_RIVAL_LIMIT'], "
                 "len(torch.cuda._queued_calls), file=open('seen.txt', 'w'))")
    assert "error" not in script.run_once([path], "dymem", 120, limit_bytes=3 << 30)
    conf, limit, queued = (tmp_path / "seen.txt").read_text().split()
    assert "limit:3221225472" in conf.split(",") and int(limit) == 3 << 30 and int(queued) > 0


def test_a_rank_bounds_its_own_device(monkeypatch):
    import torch

    bounded, current = [], []

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.pop()

    class Rival:
        def limit(self, limit_bytes):
            bounded.append((current[-1], limit_bytes))

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for rank in ("", "0", "3", "5"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        observe._limit(Rival(), 77)
    assert bounded == [(0, 77), (0, 77), (3, 77), (1, 77)]


def test_memory_that_runs_out_in_one_rank_is_the_answer_of_all(tmp_path):
    for pid, more in enumerate([{}, {"out_of_memory": "OutOfMemoryError: rank 1", "failed_at_step": 1}]):
        (tmp_path / f"{pid}.json").write_text(json.dumps({"rank": pid, "step_seconds": [1.0] * (3 - pid),
                                                          "calls_after_step": [1, 2, 3], **more}))
    report = script._report(tmp_path)
    assert report["rank"] == 0 and report["out_of_memory"] == "OutOfMemoryError: rank 1" and report["failed_at_step"] == 1
