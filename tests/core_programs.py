"""Programs of C++ on the core, plain or under a sanitizer. An object that several of them need is compiled once,
whichever worker comes first; each kind of build has a folder and a lock of its own.
"""

import fcntl
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "allocator"
LAYERS = ("base", "driver", "space", "stream", "pool", "trace")
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++20", "-O1", "-DDYMEM_DEBUG", "-pthread", "-I", str(SOURCES)]
SANITIZED = ["-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class CorePrograms:
    """build() gives the program of one source file; it skips, with the compiler's own words, where that cannot work."""

    def __init__(self, folder: Path):
        self.folder = folder

    def build(self, source: Path, sanitizer: str = "", layers: tuple[str, ...] = LAYERS) -> Path:
        folder = self.folder / (sanitizer or "plain")
        folder.mkdir(parents=True, exist_ok=True)
        flags = [*FLAGS, *((*SANITIZED, SANITIZERS[sanitizer]) if sanitizer else ())]
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.probe(flags, folder)
            sources = [write_together(SOURCES / layer, folder / f"{layer}.cpp") for layer in layers]
            objects = {path: folder / f"{path.stem}.o" for path in [*sources, source]}
            missing = [(path, made) for path, made in objects.items() if not made.exists()]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
                for answer in workers.map(lambda pair: compile_one(flags, *pair), missing):
                    assert answer.returncode == 0, answer.stderr
            program = folder / source.stem
            answer = run([*COMPILER, *flags, *map(str, objects.values()), "-ldl", "-o", str(program)])
            assert answer.returncode == 0, answer.stderr
        return program

    @staticmethod
    def probe(flags: list[str], folder: Path) -> None:
        source, program = folder / "probe.cpp", folder / "probe"
        source.write_text("#include <thread>\nint main() { std::thread([] {}).join(); }\n")
        try:
            tried = run([*COMPILER, *flags, str(source), "-o", str(program)])
            if tried.returncode == 0:
                tried = run([str(program)])
        except OSError as error:
            pytest.skip(f"no compiler: {error}")
        if tried.returncode != 0:
            pytest.skip(f"{flags[-1]} does not work here: {tried.stderr.strip().splitlines()[-1:]}")


def write_together(layer: Path, made: Path) -> Path:
    """A layer is compiled as one, as in setup.py: that takes a quarter of the time."""
    made.write_text("".join(f'#include "{layer.name}/{path.name}"\n' for path in sorted(layer.glob("*.cpp"))))
    return made


def compile_one(flags: list[str], source: Path, made: Path):
    """Under another name first: an object that is there is whole."""
    half = made.with_suffix(".part")
    answer = run([*COMPILER, *flags, "-c", str(source), "-o", str(half)])
    if answer.returncode == 0:
        half.rename(made)
    return answer
