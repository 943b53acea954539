"""A card that answers "unknown error" for a while (K6 of driver/cuda.cpp), played by a libcuda made up for it: calls that can
be made again without harm are, for two seconds; others, and other errors, are told at once."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNKNOWN, NOT_PERMITTED = 999, 800

PROGRAM = """
import ctypes, sys, time
from dymem._core import driver as drivers
device = drivers.make_cuda(0)
unit = device.granularity
_, base = device.reserve(unit)
start = time.monotonic()
created, handle = device.create(unit)
exported = device.export_handle(handle)[0].name if handle else None
mapped = device.map(base, unit, handle).name if handle else None
access = device.set_access(base, unit).name if mapped == "ok" else None
failure = drivers.last_failure()
print({"created": created.name, "exported": exported, "mapped": mapped, "access": access, "failure": failure,
       "more": [(device.create(unit)[0].name, time.monotonic() - start) for _ in range(int(sys.argv[1]))],
       "last": device.export_handle(device.create(unit)[1])[0].name if int(sys.argv[1]) else None,
       "seconds": time.monotonic() - start, "calls": ctypes.CDLL("libcuda.so.1").flaky_calls(), **device.counters()})
"""


@pytest.fixture(scope="session")
def flaky_cuda(tmp_path_factory):
    """A folder with the libcuda of flaky_cuda.c."""
    compiler = shutil.which("gcc") or shutil.which("g++") or pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("flaky")
    source = Path(__file__).parent / "flaky_cuda.c"
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-w", str(source), "-o", str(folder / "libcuda.so.1")],
                   check=True)
    return folder


@pytest.fixture
def told(flaky_cuda):
    """What a program saw that made one granule accessible: the codes, how often the flaky call was made, the counters."""

    def run(call="", times=0, code=UNKNOWN, after=0, more=0, **env):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(more)], capture_output=True, text=True, timeout=60, env={
            **os.environ, "LD_LIBRARY_PATH": str(flaky_cuda), "FLAKY_CALL": call, "FLAKY_TIMES": str(times), "FLAKY_AFTER": str(after),
            "FLAKY_CODE": str(code), **env})
        assert done.returncode == 0, done.stderr
        return ast.literal_eval(done.stdout)

    return run


def test_a_card_that_is_well_is_asked_once(told):
    seen = told("cuMemSetAccess")
    assert (seen["created"], seen["exported"], seen["mapped"], seen["access"]) == ("ok",) * 4
    assert (seen["calls"], seen["set_access"], seen["asked_again"]) == (1, 1, 0)


@pytest.mark.parametrize("call, counted", [("cuMemSetAccess", "set_access"), ("cuMemCreate", "create")])
def test_what_passes_by_itself_is_waited_for(told, call, counted):
    seen = told(call, 5)
    assert (seen["created"], seen["mapped"], seen["access"]) == ("ok",) * 3
    assert (seen["calls"], seen["asked_again"], seen[counted]) == (6, 5, 1)
    assert seen["exported"] == "ok", "an unknown error is no reason to give up exporting"


def test_what_does_not_pass_is_told(told):
    seen = told("cuMemSetAccess", 1_000_000)
    assert seen["access"] == "failed" and seen["failure"] == "cuMemSetAccess: 999"
    assert seen["set_access"] == 0 and seen["asked_again"] == seen["calls"] - 1
    assert 2 <= seen["seconds"] and seen["calls"] < 200, "pauses grow: the driver is not hammered"


@pytest.mark.parametrize("env", [{}, {"FLAKY_PLAIN": "1"}], ids=["all", "shareable"])
def test_a_longer_outage_ends_no_more_than_the_call(told, env):
    """One deadline for all forms of a call, and no form that was granted before is given up for it."""
    seen = told("cuMemCreate", after=1, more=2, FLAKY_SECONDS="3", **env)
    (first, after_first), (second, after_second) = seen["more"]
    assert (first, second) == ("failed", "ok")
    assert 2 <= after_first < 3 <= after_second
    assert seen["exported"] == seen["last"] == "ok"


def test_a_mapping_is_not_tried_twice(told):
    seen = told("cuMemMap", 1)
    assert (seen["mapped"], seen["calls"], seen["asked_again"]) == ("failed", 1, 0), "it may have been made all the same"


def test_other_errors_are_told_at_once(told):
    seen = told("cuMemSetAccess", 1, NOT_PERMITTED)
    assert (seen["access"], seen["calls"], seen["asked_again"]) == ("failed", 1, 0)
