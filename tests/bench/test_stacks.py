"""bench/stacks.py: pairs of made-up scripts that speak the protocol of tests/gpu/stacks/steps.py, and its verdicts."""

import json
import sys

import pytest

SCRIPT = """
import json, os, sys
name, habit = sys.argv[1:]
slow = 2.0 if habit == "slower" and name == "dymem" else 1.0
if habit == "fails" and name == "dymem":
    sys.exit("out of luck")
steps = int(os.environ["STACK_STEPS"])
for number in range(steps):
    print("step" if number else "ready", flush=True)
    sys.stdin.readline()
print("step", flush=True)
backend = "native" if habit == "stays" else name
print(json.dumps({"step_seconds": [9.0] * 2 + [slow] * (steps - 2), "max_memory_allocated": 7, "device": "none",
                  "torch": "0", "ranks": [{"backend": backend}]}))
"""


class Scripted:
    """Stands for a catalogue.Stack."""

    def __init__(self, path, habit):
        self.path, self.habit = path, habit

    def missing(self):
        return "needs luck" if self.habit == "missing" else None

    def command(self, allocator, gpus):
        return [sys.executable, str(self.path), allocator, self.habit]

    def environment(self, gpus, cache, **more):
        return more


@pytest.fixture
def bench(root, monkeypatch, tmp_path):
    """Runs the bench on stacks of these habits; its exit code and the JSON."""
    monkeypatch.syspath_prepend(str(root / "bench"))
    import importlib

    stacks = importlib.import_module("stacks")
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*habits, more=()):
        monkeypatch.setattr(stacks.catalogue, "STACKS", {habit: Scripted(tmp_path / "script.py", habit) for habit in habits})
        monkeypatch.setattr(stacks.catalogue, "gpu_count", lambda: 0)
        monkeypatch.setattr(stacks, "require", lambda *packages: None)  # these scripts need no torch
        target = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", ["stacks.py", "--steps", "6", "--warm-from", "2", "--budget-seconds", "60", "--cpu",
                                          "--json", str(target), *more])
        code = stacks.main()
        return code, {row["stack"]: row for row in json.loads(target.read_text())["stacks"]}

    return run


def test_ratios_are_of_warm_steps_and_a_missing_library_is_named(bench, capsys):
    code, rows = bench("missing", "even", "slower")
    assert code == 0 and set(rows) == {"even", "slower"}
    assert rows["even"]["ratio"] == rows["even"]["ratio_upper_95"] == 1.0 and rows["even"]["pairs"] == 2
    assert rows["slower"]["ratio"] == 2.0 and rows["slower"]["dymem"]["step_ms"] == 2000.0
    assert "missing" in capsys.readouterr().out


def test_a_control_runs_native_against_itself(bench, capsys):
    code, rows = bench("slower", "fails", "stays", more=["--control"])
    assert code == 0 and {row["ratio"] for row in rows.values()} == {1.0}
    assert set(rows["slower"]) >= {"native", "control"} and "dymem" not in rows["slower"]
    assert "control" in capsys.readouterr().out


def test_a_bound_that_is_exceeded_fails(bench):
    assert bench("even", more=["--bound", "1.01"])[0] == 0
    assert bench("slower", more=["--bound", "1.01"])[0] == 1


def test_what_fails_or_is_not_under_dymem_is_told_and_the_others_go_on(bench):
    code, rows = bench("fails", "stays", "even")
    assert code == 1
    assert "out of luck" in "".join(rows["fails"]["errors"]) and rows["fails"]["pairs"] == 0
    assert "another allocator" in rows["stays"]["errors"][0]
    assert rows["even"]["pairs"] == 2


@pytest.mark.parametrize("arguments, sentence", [(["nonsense"], "there is no stack 'nonsense'"),
                                                 (["--pairs", "0"], "--pairs is at least 1"),
                                                 (["--steps", "4", "--warm-from", "4"], "--warm-from")])
def test_bad_arguments(bench, arguments, sentence, capsys):
    with pytest.raises(SystemExit):
        bench("even", more=arguments)
    assert sentence in capsys.readouterr().err
