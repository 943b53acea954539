"""pool_fuzz.cpp in every mode: an independent model of physical memory against the pool, thousands of random calls."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fuzzer(core_programs):
    return core_programs.build(Path(__file__).with_name("pool_fuzz.cpp"))


@pytest.mark.parametrize("seed, runs, steps, bytes, modes", [
    (1, 200, 1500, 0, {}), (10_000, 40, 800, 1, {}), (20_000, 150, 1000, 0, {"FAULTS": "300"}),
    (30_000, 100, 1000, 0, {"CAPTURE": "1"}), (40_000, 30, 1000, 1, {"SLEEP": "1"}),
    (50_000, 30, 1000, 1, {"SLEEP": "1", "FAULTS": "3000", "CAPTURE": "1"}), (60_000, 100, 1200, 0, {"CONTIGUOUS": "1"}),
    (70_000, 30, 800, 1, {"CONTIGUOUS": "1"}), (80_000, 100, 1000, 0, {"CONTIGUOUS": "1", "FAULTS": "3000"}),
    (90_000, 60, 1000, 0, {"CONTIGUOUS": "1", "CAPTURE": "1"}),
], ids=["accounting", "bytes", "faults", "captures", "sleep", "sleep and faults", "slabs", "bytes of slabs",
        "faults of slabs", "captures over slabs"])
def test_no_byte_is_lost_or_given_too_early(fuzzer, seed, runs, steps, bytes, modes):
    """DYMEM_FUZZ=10 in the environment: ten times as many runs."""
    runs *= int(os.environ.get("DYMEM_FUZZ", 1))
    answer = subprocess.run([str(fuzzer), str(seed), str(runs), str(steps), str(bytes)], capture_output=True, text=True,
                            env={**os.environ, **modes}, timeout=300 * int(os.environ.get("DYMEM_FUZZ", 1)))
    assert answer.returncode == 0, answer.stdout[-3000:]
    assert f"runs {runs} bad 0" in answer.stdout
