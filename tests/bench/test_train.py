"""bench/train.py's loop and its JSON under any allocator, with an allocator and a card that are made up."""

import json
import types

import pytest

pytestmark = pytest.mark.torch
MIB = 1 << 20


@pytest.fixture
def train(root, monkeypatch):
    """The module, and PyTorch made to believe in a card."""
    monkeypatch.syspath_prepend(str(root / "bench"))
    import importlib

    import torch

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    return importlib.import_module("train")


@pytest.fixture
def foreign():
    """An allocator that can tell nothing of its driver calls."""
    from dymem.rivals.allocator import Allocator, nothing_known

    class Foreign(Allocator):
        def __init__(self):
            super().__init__("foreign", "Foreign")
            self.limits, self.asked = [], 0

        def limit(self, limit_bytes):
            self.limits.append(limit_bytes)

        def usage(self):
            self.asked += 1
            return nothing_known() | {"live_peak_bytes": 5 * MIB, "occupied_peak_bytes": 5 * MIB,
                                      "reserved_peak_bytes": 6 * MIB, "reserved_bytes": 6 * MIB, "calls": 10 * self.asked}

    return Foreign()


def run(train, allocator, *options, fails=None):
    def build(phase):
        def step(i):
            phase("F")
            if fails is not None and i == 4:
                raise fails
            return 0.5 * i

        return step

    arguments = train.parse_arguments(["some", "--allocator", "native", *options])
    return train.run(arguments, types.SimpleNamespace(build=build, iterations=6, tf32=True), allocator)


def test_the_keys_stay_and_what_cannot_be_told_is_null(train, foreign):
    result = json.loads(json.dumps(run(train, foreign)))
    assert {"workload", "allocator", "iterations", "warm_from", "step_seconds", "step_ms", "losses", "reserved_after_step_bytes",
            "device_allocations_after_step", "live_peak_bytes", "occupied_peak_bytes", "reserved_peak_bytes",
            "requested_peak_bytes", "device_allocations", "device_frees", "allocation_retries", "calls",
            "calls_per_step"} <= set(result)
    assert result["reserved_after_step_bytes"] == [6 * MIB] * 6 and result["device_allocations_after_step"] == [None] * 6
    assert result["losses"][2] == float(1).hex() and result["calls_per_step"] == 10 and foreign.limits == [None]


def test_a_cap_reaches_the_allocator(train, foreign):
    run(train, foreign, "--limit-bytes", str(7 * MIB))
    assert foreign.limits == [7 * MIB]


def test_any_allocators_out_of_memory_is_caught_and_nothing_else(train, foreign):
    import torch

    for error in (torch.OutOfMemoryError("CUDA out of memory.\nMore"), MemoryError("std::bad_alloc: out_of_memory"),
                  MemoryError()):
        result = run(train, foreign, fails=error)
        assert result["out_of_memory"] in ("CUDA out of memory.", "std::bad_alloc: out_of_memory", "MemoryError")
        assert result["failed_at_step"] == 4 and len(result["step_seconds"]) == 4
    with pytest.raises(RuntimeError, match="illegal"):
        run(train, foreign, fails=RuntimeError("an illegal memory access"))


@pytest.mark.parametrize("calls, warm_from, expected", [([10, 20, 30], 1, 10.0), ([5, 5, 9], 2, 4.0), ([None, None], 0, None),
                                                        ([3], 0, None), ([], 0, None)])
def test_calls_of_a_step(train, calls, warm_from, expected):
    assert train.calls_per_step(calls, warm_from) == expected


@pytest.mark.parametrize("options, words", [
    (["unet_b16", "--allocator", "jemalloc"], "dymem_contiguous"), (["unet_b16", "--limit-bytes", "-1"], "--limit-bytes"),
    (["unet_b16", "--allocator", "dymem", "--conf", "limt:3"], "limt")])
def test_bad_options_are_named(python, root, options, words):
    done = python(root / "bench" / "train.py", *options)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("allocator, conf", [("dymem", "wait:off"), ("dymem_contiguous", None)])
def test_the_environment_says_the_form_and_the_cap(train, monkeypatch, allocator, conf):
    import os

    from dymem.config import Config

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    monkeypatch.setenv("DYMEM_CONF", "grow_slack:4MiB")
    train.prepare_environment(train.ALLOCATORS[allocator], 3 * MIB, conf)
    config = Config.from_environment()
    assert config.limit == 3 * MIB and config.backing == ("vmm" if allocator == "dymem" else "contiguous")
    assert config.wait is (conf is None) and config.grow_slack == (8 << 20 if conf else 4 << 20)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
