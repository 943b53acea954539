"""The benches' own arithmetic, on numbers whose answer is known, and the soak, short; none of it needs a card."""

import json

import pytest


def run_of(seconds, losses=("0x1p0",), reserved=110, occupied=100, allocator="native"):
    return {"allocator": allocator, "warm_from": 1, "step_seconds": seconds, "step_ms": 1e3 * seconds[-1],
            "losses": list(losses), "live_peak_bytes": 90, "occupied_peak_bytes": occupied,
            "reserved_peak_bytes": reserved}


def test_a_ratio_leaves_the_first_steps_out_and_weighs_long_steps_more(bench):
    paired = bench("paired")
    runs = [{"a": run_of([9.0, 1.0, 3.0]), "b": run_of([1.0, 1.0, 4.0])}]
    summary = paired.summarise(runs, {})
    assert summary["ratios"] == [1.25]  # (1 + 4) / (1 + 3)
    assert summary["step_ratio_median"] == pytest.approx((1 + 4 / 3) / 2, abs=1e-5)


def test_the_upper_bound_is_the_ratio_when_nothing_varies_and_above_the_median_when_it_does(bench):
    paired = bench("paired")
    steady = [([1.0] * 8, [1.02] * 8)] * 5
    assert paired.upper_bound(steady) == pytest.approx(1.02)
    noisy = [([1.0] * 8, [1.0 + 0.01 * k] * 8) for k in range(-2, 3)]
    assert paired.median([paired.pair_ratio(p) for p in noisy]) == pytest.approx(1.0)
    assert 1.005 < paired.upper_bound(noisy) <= 1.02


def test_overhead_and_the_smaller_occupied_peak(bench):
    paired = bench("paired")
    runs = [{"a": run_of([1.0, 1.0], reserved=150, occupied=120),
             "b": run_of([1.0, 1.0], reserved=104, occupied=100, allocator="dymem")}]
    summary = paired.summarise(runs, {})
    assert summary["a"]["overhead"] == pytest.approx(0.25) and summary["b"]["overhead"] == pytest.approx(0.04)
    assert summary["a"]["reserved_over_smallest_occupied"] == pytest.approx(1.5)


def test_losses_that_differ_in_one_bit_are_not_equal(bench):
    paired = bench("paired")
    a, b = run_of([1.0, 1.0], ["0x1.0p0", "0x1.8p0"]), run_of([1.0, 1.0], ["0x1.0p0", "0x1.8000000000001p0"])
    summary = paired.summarise([], {"a": a, "b": b})
    assert summary["losses_equal"] is False and summary["first_differing_loss"] == 1
    assert paired.summarise([], {"a": a, "b": a})["losses_equal"] is True


def test_growth_is_told_from_noise(bench):
    soak = bench("soak")
    window = {"malloc_ns_median": 100, "free_ns_median": 80, "rss_bytes": 100 << 20, "views": 1000, "va_bytes": 4 << 30}
    assert all(f["flat"] for f in soak.growth([window, window, window | {"malloc_ns_median": 140}]).values())
    for name, grown in {"malloc_ns_median": 150, "rss_bytes": 120 << 20, "views": 1300, "va_bytes": 6 << 30}.items():
        flat = {k: f["flat"] for k, f in soak.growth([window, window, window | {name: grown}]).items()}
        assert flat == {k: k != name for k in flat}


def test_a_recording_becomes_columns_with_the_peak_that_was_measured(bench, traces):
    pytest.importorskip("numpy")
    calls = bench("native_calls")
    measured = json.loads((traces / "measured.json").read_text())["recorded"]["rows"]
    column = calls.columns(traces / "unet_b16.pickle.xz")
    assert calls.peak_live_bytes(column) / 2**20 == pytest.approx(measured["unet_b16"]["peak_live_mib"], abs=0.1)
    assert set(column["op"].tolist()) == {0, 1}


@pytest.mark.torch
def test_workloads_run_as_long_as_their_recordings(bench, traces):
    pytest.importorskip("numpy")
    workloads = bench("workloads").WORKLOADS
    rows = json.loads((traces / "measured.json").read_text())["recorded"]["rows"]
    for path in sorted(traces.glob("*.pickle.xz")):
        name = path.name.split(".")[0]
        assert name in workloads, f"{name} was recorded, but bench/workloads.py has no such workload"
        assert workloads[name].iterations == rows[name]["iterations"], name


@pytest.mark.torch
def test_shapes_come_again_shuffled_once_all_are_known(bench, monkeypatch):
    shapes = bench("workloads").Shapes
    fresh = shapes(lambda rng: rng.randrange(10**9))
    drawn = [fresh() for _ in range(12)]
    assert len(set(drawn)) == 12
    monkeypatch.setattr(shapes, "repeat", 4)
    again = shapes(lambda rng: rng.randrange(10**9))
    seen = [again() for _ in range(12)]
    assert seen[:4] == drawn[:4]
    assert all(sorted(seen[i:i + 4]) == sorted(drawn[:4]) for i in (4, 8)) and seen[4:] != seen[:4] * 2


def test_every_block_of_a_sequence_is_checkpointed_once(bench):
    import torch

    workloads = bench("workloads")
    blocks = [workloads.CifarBlock(4, 4, 1, True) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Sequential(*blocks), torch.nn.Conv2d(4, 4, 1))
    assert workloads.checkpoint_blocks(model) == 3
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    model(x).sum().backward()  # recomputes through the wrapped forwards
    assert x.grad is not None and blocks[0].conv1.weight.grad is not None


@pytest.mark.torch
def test_a_wrong_place_for_torchtune_is_named(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("DYMEM_TORCHTUNE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="DYMEM_TORCHTUNE"):
        bench("workloads").torchtune_offload()


@pytest.mark.torch
def test_training_without_a_gpu_or_with_an_unknown_name_says_so(python, root):
    done = python(root / "bench" / "train.py", "no_such_workload")
    assert done.returncode == 2 and "no workload 'no_such_workload'" in done.stderr
    listed = python(root / "bench" / "train.py", "--list-all").stdout.split()
    assert {"unet_b16", "kmeans", "resnet32_stochdepth"} <= set(listed)


def test_a_short_soak_grows_nowhere_and_is_sound(python, root, tmp_path):
    target = tmp_path / "soak.json"
    done = python(root / "bench" / "soak.py", "--iterations", 400, "--window", 100, "--json", target)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(target.read_text())
    # Not the call times: this machine may be busy with other things.
    assert [n for n in ("rss_bytes", "views", "va_bytes") if not report["growth"][n]["flat"]] == []
    assert report["end"]["audit_findings"] == 0 and len(report["windows"]) == 4
    assert sum(window["stitches"] for window in report["windows"]) > 0


def test_single_calls_are_timed_on_the_emulated_driver(python, root, tmp_path):
    pytest.importorskip("numpy")
    pytest.importorskip("pybind11")
    target = tmp_path / "calls.json"
    done = python(root / "bench" / "native_calls.py", "--driver", "emulated", "--rounds", 1, "--trace", "unet_b16",
                  "--json", target)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(target.read_text())["traces"][0]
    assert row["audit"] == [] and 0 < row["dymem"]["malloc"]["median_ns"] < 100_000
    assert row["dymem"]["large"]["calls"] > 0


def test_pairs_alternate_their_order_and_what_was_measured_is_kept_when_a_run_fails(bench, tmp_path, monkeypatch):
    paired = bench("paired")
    order = []

    def train(workload, allocators, options, budget, deterministic):
        order.append((*allocators, deterministic))
        if len(order) == 4:
            return [{"error": "ended with code 1: no memory"}, {"error": f"ended with code 1: {paired.OTHER_END_GONE}"}]
        return [run_of([5.0, 1.0, 1.0 if name == "native" else 1.5], allocator=name) for name in allocators]

    monkeypatch.setattr(paired, "train", train)
    options = paired.parse_arguments(["some", "--pairs", "4", "--out", str(tmp_path), "--suffix=-x"])
    assert paired.measure("some", options, paired.Budget(1000)) is False
    assert order == [("native", "dymem", True), ("native", "dymem", False), ("dymem", "native", False),
                     ("native", "dymem", False)]
    report = json.loads((tmp_path / "paired-some-x.json").read_text())
    assert report["summary"]["ratios"] == [1.25, 1.25] and report["summary"]["losses_equal"] is True
    assert report["errors"] == ["native: ended with code 1: no memory"]


def test_apart_runs_one_process_after_the_other(bench, tmp_path, monkeypatch):
    paired = bench("paired")
    order = []

    def train(workload, allocators, *rest):
        order.append(allocators)
        return [run_of([5.0, 1.0], allocator=name) for name in allocators]

    monkeypatch.setattr(paired, "train", train)
    options = paired.parse_arguments(["some", "--apart", "--no-losses", "--pairs", "2", "--out", str(tmp_path)])
    assert paired.measure("some", options, paired.Budget(1000)) is True
    assert order == [["native"], ["dymem"], ["dymem"], ["native"]]


def test_a_spent_budget_ends_with_the_pairs_there_are(bench, tmp_path, monkeypatch):
    paired = bench("paired")
    monkeypatch.setattr(paired, "train", lambda workload, allocators, *rest: [run_of([5.0, 1.0], allocator=name)
                                                                               for name in allocators])
    options = paired.parse_arguments(["some", "--no-losses", "--out", str(tmp_path)])
    assert paired.measure("some", options, paired.Budget(-1)) is True
    assert json.loads((tmp_path / "paired-some.json").read_text())["summary"]["pairs"] == 1


FAKE_TRAINING = """
import json, sys
name, fails_at = sys.argv[1], int(sys.argv[sys.argv.index("--iterations") + 1])
print("ready", flush=True)
for i in range(3):
    if not sys.stdin.readline():
        sys.exit("the other end of --lockstep has gone")
    with open("order.txt", "a") as order:
        print(sys.argv[3], file=order)
    if i == fails_at and sys.argv[3] == "dymem":
        sys.exit("the card caught fire")
    print("step", flush=True)
print(json.dumps({"allocator": sys.argv[3]}))
"""


@pytest.mark.parametrize("fails_at", [-1, 1])
def test_steps_take_turns_and_a_failure_ends_both(bench, tmp_path, monkeypatch, fails_at):
    paired, trainer = bench("paired"), bench("trainer")
    (tmp_path / "train.py").write_text(FAKE_TRAINING)
    monkeypatch.setattr(trainer, "HERE", tmp_path)
    monkeypatch.chdir(tmp_path)
    options = paired.parse_arguments(["some", "--iterations", str(fails_at)])
    budget = paired.Budget(60)
    results = paired.train("some", ["native", "dymem"], options, budget)
    order = (tmp_path / "order.txt").read_text().split()
    if fails_at < 0:
        assert order == ["native", "dymem", "dymem", "native", "native", "dymem"]
        assert results == [{"allocator": "native"}, {"allocator": "dymem"}]
    else:
        assert order == ["native", "dymem", "dymem", "native"]
        assert paired.OTHER_END_GONE in results[0]["error"]
        assert results[1]["error"] == "ended with code 1: the card caught fire"


def test_figures_that_come_with_the_last_step_are_not_lost(bench, tmp_path, monkeypatch):
    """One that says everything at once and is gone before it could be let go again."""
    trainer = bench("trainer")
    (tmp_path / "train.py").write_text("import sys; print('ready\\nstep\\n{\"losses\": [1]}')")
    monkeypatch.setattr(trainer, "HERE", tmp_path)
    with trainer.Trainer("some", "native", seconds=60) as one:
        one._process.wait()
        assert one.ready()
        assert not one.step()
        assert one.result() == {"losses": [1]}


def test_a_trainer_that_hangs_is_cut_off(bench, tmp_path, monkeypatch):
    trainer = bench("trainer")
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(trainer, "HERE", tmp_path)
    with trainer.Trainer("some", "native", seconds=0.5) as one:
        assert not one.ready()
        assert "budget of seconds" in one.result()["error"]


def test_a_timeline_counts_overlaps_once_and_tells_copies_apart(bench):
    timeline = bench("timeline")

    def event(name, category, start, end, stream, **more):
        return {"name": name, "cat": category, "ts": start, "dur": end - start, "args": {"stream": stream, **more}}

    span, streams = timeline.streams_of([
        event("gemm", "kernel", 0, 4000, 7), event("relu", "kernel", 3000, 5000, 7), event("norm", "kernel", 9000, 10000, 7),
        event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 1000, 3000, 20, bytes=100_000_000),
        {"name": "aten::add", "cat": "cpu_op", "ts": 0, "dur": 50_000, "args": {}}], steps=2)
    assert span == 5.0
    assert streams["7"] == {"busy_ms": 3.0, "idle_ms": 2.0, "kinds": {"kernel": {"count": 1.5, "ms": 3.5}}}
    assert streams["20"]["kinds"] == {"DtoH": {"count": 0.5, "ms": 1.0, "gb_per_s": 50.0}}
    assert timeline.streams_of([], 1) == (0.0, {})
