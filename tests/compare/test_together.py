"""Groups that fit on the card, turns that survive a failure, and times that compare across groups."""

import pytest

from dymem.compare.together import CONTEXT_BYTES, Run, comparable_seconds, groups, run_together
from dymem.compare.training import Session

GIB = 1 << 30


def of(*sizes):
    return [Run(f"r{i}", expected_bytes=size * GIB - CONTEXT_BYTES) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("device, expected", [
    (100, [["r0", "r1", "r2", "r3"]]),
    (30, [["r0", "r1", "r2"], ["r0", "r3"]]),
    (20, [["r0", "r1"], ["r0", "r2"], ["r0", "r3"]]),
    (1, [["r0", "r1"], ["r0", "r2"], ["r0", "r3"]]),  # too small for two: it is tried all the same, then alone
])
def test_every_group_holds_the_reference_and_fits(device, expected):
    made = groups(of(10, 9, 9, 10), device * GIB)
    assert [[run.name for run in group] for group in made] == expected


def test_a_lone_reference_is_a_group():
    assert groups(of(10), 5 * GIB) == [of(10)]


def good(*seconds):
    return {"step_seconds": [9.0, *seconds], "warm_from": 1}


def test_times_of_groups_are_scaled_by_what_the_reference_took_beside_them():
    a, b, c = ("a", 0), ("b", 0), ("c", 0)
    seconds = comparable_seconds([{a: good(1.0, 1.0), b: good(2.0, 2.0)}, {a: good(3.0, 1.0), c: good(6.0, 2.0)}], a)
    assert seconds[b] == [4.0, 2.0] and seconds[c] == [4.0, 2.0]


def test_times_stay_as_they_are_without_a_sound_reference_and_for_a_run_alone():
    a, b, c = ("a", 0), ("b", 0), ("c", 0)
    told = comparable_seconds([{a: {"error": "x"}, b: good(2.0)}], a)
    assert told == {b: [2.0]}
    assert comparable_seconds([{a: good(1.0)}, {a: good(3.0), c: good(6.0) | {"alone": True}}], a)[c] == [6.0]


def test_steps_take_turns_and_one_that_dies_leaves_the_others(fake_train, log, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "async")
    session = Session(80 * GIB, 60, iterations=4, train=fake_train)
    runs = [Run("native"), Run("async"), Run("dymem")]
    (results,) = run_together(runs, session.start("some"), session.device_bytes)
    assert "the card caught fire" in results["async", 0]["error"]
    assert [len(results[name, 0]["step_seconds"]) for name in ("native", "dymem")] == [4, 4]
    order = [name for name, _, step in log() if step != "built"]
    assert order == ["native", "dymem", "dymem", "native", "native", "dymem", "dymem", "native"]


def test_what_runs_out_beside_others_is_run_again_alone(fake_train, log, monkeypatch):
    session = Session(80 * GIB, 60, iterations=5, train=fake_train)
    starts = []

    def start(run):
        starts.append(run.name)
        crowded = run.name == "async" and starts.count("async") == 1
        return session.start("some")(Run(run.name, 1 << 20) if crowded else run)

    (results,) = run_together([Run("native"), Run("async")], start, session.device_bytes)
    assert starts == ["native", "async", "async"]
    assert results["async", 0]["alone"] and "error" not in results["async", 0]


def test_running_out_under_a_cap_is_an_answer(fake_train):
    session = Session(80 * GIB, 60, iterations=5, train=fake_train)
    (results,) = run_together([Run("native"), Run("native", 120 << 20), Run("dymem", 120 << 20)], session.start("some"),
                              session.device_bytes)
    assert results["native", 120 << 20]["failed_at_step"] == 3 and "alone" not in results["native", 120 << 20]
    assert "error" not in results["dymem", 120 << 20] and len(results["native", 0]["step_seconds"]) == 5
