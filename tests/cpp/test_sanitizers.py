"""The core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: pool_stress.cpp in every mode.

Skips, with the compiler's own words, where the compiler or the machine cannot run a sanitized program.
"""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "allocator"
LAYERS = ("base", "driver", "space", "stream", "pool", "trace")
pytestmark = pytest.mark.slow
SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-DDYMEM_DEBUG", "-pthread",
         "-I", str(SOURCES)]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def sanitized(name, folder):
    """pool_stress built under a sanitizer; skips if a program of two lines cannot be."""
    flags = [*FLAGS, SANITIZERS[name]]
    probe = folder / "probe.cpp"
    probe.write_text("#include <thread>\nint main() { std::thread([] {}).join(); }\n")
    try:
        tried = run([*COMPILER, *flags, str(probe), "-o", str(folder / "probe")])
        if tried.returncode == 0:
            tried = run([str(folder / "probe")])
    except OSError as error:
        pytest.skip(f"no compiler: {error}")
    if tried.returncode != 0:
        pytest.skip(f"{SANITIZERS[name]} does not work here: {tried.stderr.strip().splitlines()[-1:]}")

    sources = [path for layer in LAYERS for path in sorted((SOURCES / layer).glob("*.cpp"))]
    sources.append(Path(__file__).with_name("pool_stress.cpp"))
    objects = [folder / f"{path.parent.name}-{path.stem}.o" for path in sources]

    def compile_one(pair):
        return run([*COMPILER, *flags, "-c", str(pair[0]), "-o", str(pair[1])])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for answer in workers.map(compile_one, zip(sources, objects)):
            assert answer.returncode == 0, answer.stderr
    program = folder / "pool_stress"
    answer = run([*COMPILER, *flags, *map(str, objects), "-ldl", "-o", str(program)])
    assert answer.returncode == 0, answer.stderr
    return program


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def stress(request, tmp_path_factory):
    return sanitized(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("mode", ["vmm", "remap", "contiguous", "limit"])
def test_many_threads(stress, mode):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    answer = run([str(stress), "6", "4000", "7", mode], env=environment, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-6000:]
    assert answer.stdout.startswith(f"{mode}: ")
