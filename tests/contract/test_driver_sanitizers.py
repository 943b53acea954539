"""The drivers under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: driver_program.cpp in both modes.

Skips where the compiler or the machine cannot run a sanitized program.
"""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "allocator"
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-DDYMEM_DEBUG", "-pthread",
         "-I", str(SOURCES)]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def program(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sanitized")
    flags = [*FLAGS, f"-fsanitize={request.param}"]
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    try:
        works = run([*COMPILER, *flags, str(probe), "-o", str(folder / "probe")]).returncode == 0
    except OSError:
        works = False
    if not works or run([str(folder / "probe")]).returncode != 0:
        pytest.skip(f"-fsanitize={request.param} does not work here")
    sources = [*sorted((SOURCES / "base").glob("*.cpp")), *sorted((SOURCES / "driver").glob("*.cpp")),
               HERE / "driver_program.cpp"]
    objects = [folder / f"{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for answer in workers.map(lambda p: run([*COMPILER, *flags, "-c", str(p[0]), "-o", str(p[1])]),
                                  zip(sources, objects)):
            assert answer.returncode == 0, answer.stderr
    answer = run([*COMPILER, *flags, *map(str, objects), "-ldl", "-o", str(folder / "program")])
    assert answer.returncode == 0, answer.stderr
    return folder / "program"


@pytest.mark.parametrize("mode", ["bytes", "accounting"])
def test_nothing_to_report(program, mode):
    answer = run([str(program), "400", mode], timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    calls, failed = (int(word) for word in answer.stdout.replace(",", "").split() if word.isdigit())
    assert calls > 3 * 400 and failed > 0, answer.stdout
