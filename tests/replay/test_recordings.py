"""The bundled recordings of real training runs: what they say of themselves, and what the pool makes of them."""

import json
from pathlib import Path

import pytest

from dymem import _core
from dymem._paths import traces_dir
from dymem.trace import load
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

MIB = 1 << 20
GIB = 1 << 30
FIXED_SHAPES = {"vgg16_b128", "resnet50_b128", "resnet101_b64", "inception_v4_b64", "unet_b16", "vit_b16_b128",
                "efficientnet_b3_b64", "kmeans", "resnet32_nobn_cifar_b100", "resnet50_cifar_b100"}
ONE_STREAM = FIXED_SHAPES | {"bert_varlen", "llama_accum", "llama_ckpt_varlen", "llama_varlen", "resnet32_stochdepth",
                             "resnet50_varres"}
SEVERAL_STREAMS = {"resnet50_prefetch", "llama_fsdp2_ckpt", "resnet152_offload_ckpt"}
RESERVED_TARGET = {"resnet50_prefetch": 1.02, "llama_fsdp2_ckpt": 1.10}  # times the occupied peak


class Bundled:
    def __init__(self, name):
        (recording,) = load(traces_dir() / f"{name}.pickle.xz")
        self.name, self.events = name, recording.events
        self.measured = json.loads((traces_dir() / "measured.json").read_text())["recorded"]["rows"][name]
        self.result = self.replay()

    def replay(self, **options):
        result = _core.replay(self.events, options)
        assert result["audit"] == []
        return result


@pytest.fixture(scope="module", params=sorted(ONE_STREAM | SEVERAL_STREAMS))
def bundled(request):
    return Bundled(request.param)


def test_all_of_them_are_here():
    assert {path.name.removesuffix(".pickle.xz") for path in traces_dir().glob("*.xz")} == ONE_STREAM | SEVERAL_STREAMS


def test_peaks_are_those_that_were_measured_on_the_card(bundled):
    result, measured = bundled.result, bundled.measured
    assert result["live_peak_bytes"] / MIB == pytest.approx(measured["peak_live_mib"], abs=0.051)
    assert result["occupied_peak_bytes"] / MIB == pytest.approx(measured["peak_occupied_mib"], abs=0.051)
    assert result["native_reserved_peak_bytes"] / MIB == measured["peak_reserved_mib"]
    assert _core.trace.facts(bundled.events) == {
        key: result[key] for key in ("live_peak_bytes", "occupied_peak_bytes", "native_reserved_peak_bytes")}


def test_the_pool_counts_what_the_trace_says(bundled):
    result, stats = bundled.result, bundled.result["stats"]
    assert stats["allocated_bytes"]["all"]["peak"] == result["live_peak_bytes"]
    assert stats["active_bytes"]["all"]["peak"] >= result["live_peak_bytes"]
    assert result["reserved_peak_bytes"] == stats["reserved_bytes"]["all"]["peak"] >= stats["active_bytes"]["all"]["peak"]
    if bundled.name in ONE_STREAM:
        assert stats["active_bytes"]["all"]["peak"] == result["occupied_peak_bytes"]
        # Stream order is enough for reuse; only unmapping old regions, looked at every 4,096 mallocs, asks for events.
        assert result["event_calls"] <= result["events"] // 4096
    assert stats["num_ooms"] == 0 and result["oom"] is None


def test_less_is_reserved_than_by_pytorch(bundled):
    assert bundled.result["reserved_peak_bytes"] < bundled.result["native_reserved_peak_bytes"]


def test_reserved_stays_near_occupied(bundled):
    target = 1.02 if bundled.name in ONE_STREAM else RESERVED_TARGET.get(bundled.name)
    if target is None:
        pytest.skip("no target for a new offload stream at every step")
    assert bundled.result["reserved_peak_bytes"] <= target * bundled.result["occupied_peak_bytes"] + 8 * MIB


def test_warm_iterations_hardly_call_the_driver(bundled):
    result = bundled.result
    if bundled.name in FIXED_SHAPES:
        assert result["driver_calls_warm"] == 0
    else:
        assert result["driver_time_warm_us"] <= 0.01 * result["trace_time_warm_us"]
    assert result["driver_time_warm_us"] <= result["driver_time_us"]
    assert 0 < result["trace_time_warm_us"] < 60e6


def test_a_stream_that_was_touched_once_changes_little(bundled):
    """Many programs use a side stream once; addresses must stay as sticky as with one stream."""
    if bundled.name not in FIXED_SHAPES:
        pytest.skip("only fixed shapes come to rest")
    most = max(block for _, block, _, _, kind, *_ in EVENT.iter_unpack(bundled.events) if kind == ALLOC) + 1
    stray = EVENT.pack(0, most, 1 << 16, 77, ALLOC, 0, 0, -1) + EVENT.pack(0, most, 1 << 16, 77, FREE_REQUESTED, 0, 0, -1)
    result = _core.replay(stray + bytes(bundled.events), {})
    assert result["audit"] == []
    assert result["driver_calls_warm"] == 0 and result["oom"] is None
    assert result["reserved_peak_bytes"] <= 1.02 * result["occupied_peak_bytes"] + 8 * MIB


def test_it_fits_under_a_limit_just_above_what_is_occupied(bundled):
    if bundled.name not in ONE_STREAM:
        pytest.skip("what one stream waited for is not in a recording")
    occupied = bundled.result["occupied_peak_bytes"]
    limit = int(occupied * (1.02 if occupied >= GIB else 1.10))
    result = bundled.replay(limit=limit)
    assert result["oom"] is None and result["reserved_peak_bytes"] <= limit


def test_it_does_not_fit_under_less_than_is_live(bundled):
    result = bundled.replay(limit=int(bundled.result["live_peak_bytes"] * 0.9))
    assert result["oom"]["event"] < result["events"]
    assert result["oom"]["live_bytes"] + result["oom"]["requested_bytes"] > 0
    assert result["reserved_peak_bytes"] <= result["live_peak_bytes"] * 0.9


@pytest.mark.parametrize("options", [{"alias": False}, {"backing": "contiguous"}], ids=["remap", "contiguous"])
def test_other_configurations(bundled, options):
    result = bundled.replay(**options)
    assert result["oom"] is None
    assert result["reserved_peak_bytes"] >= result["live_peak_bytes"]


# Best fit over one range as CNMeM's shape reaches it, in % over the live peak, to the digit it was measured to.
ONE_RANGE = {"vgg16_b128": 4.0, "resnet50_b128": 0.9, "inception_v4_b64": 0.4, "unet_b16": 3.9, "vit_b16_b128": 1.6,
             "llama_accum": 3.9, "llama_varlen": 3.1, "llama_ckpt_varlen": 14.8, "bert_varlen": 4.3,
             "resnet32_nobn_cifar_b100": 14.6}


def test_one_slab_is_no_worse_than_best_fit(bundled):
    if bundled.name not in ONE_RANGE:
        pytest.skip("not in that table")
    result = bundled.replay(backing="contiguous")
    over = 100 * (result["reserved_peak_bytes"] / result["live_peak_bytes"] - 1)
    assert round(over, 1) <= ONE_RANGE[bundled.name]
    assert result["driver_calls_warm"] == 0 and result["stats"]["segment"]["all"]["peak"] == 1


def test_more_lag_never_breaks_anything(bundled):
    if bundled.name not in SEVERAL_STREAMS:
        pytest.skip("lag concerns several streams")
    for lag in (0, 50_000_000):
        result = bundled.replay(lag_ns=lag, audit_every=5000)
        assert result["oom"] is None and result["reserved_peak_bytes"] >= result["occupied_peak_bytes"]


@pytest.mark.parametrize("lag_ms, most", [(0, 1.02), (10, 1.025), (20, 1.03), (30, 1.04)])
def test_collectives_do_not_drift_away_from_compute(lag_ms, most):
    """FSDP2, 70 steps of 14 lengths recorded under dymem on an H200 (2026-11-28, 582768b): its side stream's all-gathers grew by
    180 MiB each where compute, as many ms behind the host, had gigabytes of its own waiting (decision 0005). 1.13 at 30 ms then."""
    (recording,) = load(Path(__file__).parent / "recordings" / "llama_fsdp2_70.dymem.xz")
    result = _core.replay(recording.events, {"lag_ns": lag_ms * 10**6})
    assert result["oom"] is None and result["audit"] == []
    assert result["reserved_peak_bytes"] <= most * result["occupied_peak_bytes"]
    assert result["driver_time_warm_us"] <= 0.01 * result["trace_time_warm_us"]
