"""pool_fuzz.cpp in every mode: an independent model of physical memory against the pool, thousands of random calls."""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("base", "driver", "space", "stream", "pool", "trace")
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++20", "-O1", "-g", "-DDYMEM_DEBUG", "-pthread", "-I", str(ROOT / "allocator")]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    sources = [path for layer in LAYERS for path in sorted((ROOT / "allocator" / layer).glob("*.cpp"))]
    sources.append(Path(__file__).with_name("pool_fuzz.cpp"))
    objects = [folder / f"{path.parent.name}-{path.stem}.o" for path in sources]

    def compile_one(pair):
        return subprocess.run([*COMPILER, *FLAGS, "-c", str(pair[0]), "-o", str(pair[1])], capture_output=True, text=True)

    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
            for answer in workers.map(compile_one, zip(sources, objects)):
                assert answer.returncode == 0, answer.stderr
    except OSError as error:
        pytest.skip(f"no compiler: {error}")
    program = folder / "pool_fuzz"
    subprocess.run([*COMPILER, *FLAGS, *map(str, objects), "-ldl", "-o", str(program)], check=True)
    return program


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
