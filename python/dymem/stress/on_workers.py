"""Patterns under several allocators on a card: a worker process for each, smallest limits by bisection, a time budget.

Patterns come one after the other, each under all allocators, so that a run cut short has whole rows. A worker that
crashes or takes too long costs its own cell, and is started again for the next pattern. An allocator that cannot give
its memory back gets a new process for every try. Nothing here needs a GPU or torch: workers do.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, Mapping

from dymem.stress.search import MOST, bisect

A_BIT = 0.01  # of the occupied peak: what is added to the smallest limit for the time near it
RUNS = 4      # for a time: the first from an empty allocator, and the median of the others
START_SECONDS, ANSWER_SECONDS = 120.0, 60.0
END_SECONDS = 20.0  # for a process that closed its output: by then it has ended, unless it never will
SETTING_OUT = 2000  # events: what emptying an allocator, or a new process, takes besides
TAIL = 3  # lines of what a dead worker said


class WorkerDied(Exception):
    """Its sentence says how, with the last lines that the process wrote."""


class WorkerProcess:
    def __init__(self, command: list[str], environment: Mapping[str, str] | None) -> None:
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                                         env=None if environment is None else dict(environment), text=True,
                                         errors="replace")
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.facts: dict | None = None

    def _listen(self) -> None:
        with contextlib.suppress(ValueError):  # closed under it
            for line in self._process.stdout:
                self._said.put(line)
        self._said.put("")

    def ready(self) -> dict:
        if self.facts is None:
            self.facts = self._receive(START_SECONDS)
        return self.facts

    def ask(self, question: dict, seconds: float = ANSWER_SECONDS) -> dict:
        self.ready()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is dead: _receive says how
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict:
        try:
            line = self._said.get(timeout=max(0.1, seconds))
        except queue.Empty:
            raise WorkerDied(f"no answer within {seconds:.0f} s") from None
        if line.endswith("\n"):
            try:
                return json.loads(line)
            except ValueError:
                raise WorkerDied(f"no JSON but {line.strip()[:80]!r}: {self._tail()}") from None
        raise WorkerDied(f"{self._how_it_ended()}: {self._tail()}")  # its output is at an end, perhaps amid an answer

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "closed its output and went on"
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def _tail(self) -> str:
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read()[-4000:].splitlines() if line.strip()]
        return " | ".join(lines[-TAIL:]) or "it said nothing"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._stderr.close()


@dataclasses.dataclass
class Cell:
    """One pattern under one allocator. Times are seconds of the host's clock for the whole pattern, calls are mallocs
    and frees; `first` is the run from an empty allocator, the others are medians of the runs after it."""

    status: str = "budget"      # done | roughly (time ran out: the ratio is an upper bound) | none (needs more than MOST)
                                # | crashed | slow (no answer) | missing | budget (not begun)
    detail: str = ""
    ratio: float | None = None  # memory that sufficed / occupied peak: the smallest limit found, or what was held under it
    limit_bytes: int | None = None
    held_bytes: int | None = None           # most that was held under it: more where an allocator rounds its limit up
    reserved_peak_bytes: int | None = None  # without a limit, of the runs that were timed
    seconds: float | None = None            # without a limit
    first_seconds: float | None = None
    bare_seconds: float | None = None       # without a limit, blocks not touched: the calls alone
    near_seconds: float | None = None       # at the smallest limit and a bit
    near_first_seconds: float | None = None
    calls_per_second: float | None = None   # without a limit, blocks not touched
    tries: int = 0
    damaged: int = 0                        # blocks that lost their bytes, over all runs


@dataclasses.dataclass(frozen=True)
class Job:
    pattern: str
    scale_bytes: int
    seed: int
    occupied_peak_bytes: int
    events: int = 0  # what a run of it takes goes by these

    @property
    def weight(self) -> int:
        return self.events + SETTING_OUT


class Bench:
    """Worker processes by allocator, and what is asked of them."""

    def __init__(self, start: Callable[[str], WorkerProcess], missing: Mapping[str, str], *, precision: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._missing = start, missing  # missing: why an allocator cannot run here
        self._precision, self._clock = precision, clock
        self._workers: dict[str, WorkerProcess] = {}
        self.facts: dict = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def start_all(self, allocators: list[str]) -> None:
        """At once: each takes seconds to start."""
        for name in allocators:
            if name not in self._missing:
                self._workers[name] = self._start(name)

    def measure(self, job: Job, allocator: str, until: float) -> Cell:
        """One cell, begun before and given up soon after the clock shows `until`."""
        if allocator in self._missing:
            return Cell("missing", self._missing[allocator])
        if self._clock() >= until:
            return Cell()
        cell = Cell("roughly")
        try:
            self._fill(cell, job, allocator, until)
        except WorkerDied as death:
            cell.status = "slow" if str(death).startswith("no answer") else "crashed"
            cell.detail = str(death)
            self._end(allocator)
        return cell

    def _fill(self, cell: Cell, job: Job, allocator: str, until: float) -> None:
        occupied = job.occupied_peak_bytes

        def timed(limit: int | None, touch: bool = True) -> tuple[float, float, int] | None:
            """Seconds of the first run and of the median of the others, calls of one; None if memory ran out."""
            runs = self._run(cell, job, allocator, limit, RUNS, touch)["runs"]
            if runs[-1]["oom"]:
                return None
            later = sorted(run["seconds"] for run in runs[1:])
            return runs[0]["seconds"], later[len(later) // 2], runs[0]["calls"]

        def attempt(ratio: float) -> int | None:
            """Bytes that sufficed."""
            if self._clock() >= until:
                raise StopIteration
            answer = self._run(cell, job, allocator, limit := int(occupied * ratio), 1)
            return None if answer["runs"][-1]["oom"] else max(limit, answer["reserved_peak_bytes"] or 0)

        if free := timed(None):
            cell.first_seconds, cell.seconds, _ = free
        found, sufficed, exactly = bisect(attempt, (cell.reserved_peak_bytes or MOST * occupied) / occupied, self._precision)
        if found is None:
            cell.status = "none" if exactly else "budget"
            return
        cell.limit_bytes, cell.held_bytes = int(occupied * found), sufficed
        cell.ratio = max(found, sufficed / occupied)
        cell.status = "done" if exactly else "roughly"
        if self._clock() < until and (near := timed(int(occupied * (found + A_BIT)))):
            cell.near_first_seconds, cell.near_seconds, _ = near
        if self._clock() < until and (bare := timed(None, touch=False)):
            cell.bare_seconds, cell.calls_per_second = bare[1], bare[2] / bare[1]

    def _run(self, cell: Cell, job: Job, allocator: str, limit: int | None, runs: int, touch: bool = True) -> dict:
        question = {"pattern": job.pattern, "scale": job.scale_bytes, "seed": job.seed, "limit": limit, "runs": runs,
                    "touch": touch}
        answer = self._worker(allocator).ask(question)
        if not answer["afresh"]:
            self._end(allocator)
            answer = self._worker(allocator).ask(question)
            if not answer["afresh"]:
                raise WorkerDied("a new process holds memory before it begins")
        cell.tries += 1
        cell.damaged += sum(run["damaged"] for run in answer["runs"])
        if limit is None and touch and not answer["runs"][-1]["oom"]:
            cell.reserved_peak_bytes = answer["reserved_peak_bytes"]
        return answer

    def _worker(self, allocator: str) -> WorkerProcess:
        if allocator not in self._workers:
            self._workers[allocator] = self._start(allocator)
        self.facts = self._workers[allocator].ready()
        return self._workers[allocator]

    def _end(self, allocator: str) -> None:
        if worker := self._workers.pop(allocator, None):
            worker.close()


def measure_all(bench: Bench, jobs: list[Job], allocators: list[str], budget_seconds: float,
                progress: Callable[[str, str, Cell | None], None] = lambda *_: None) -> dict[str, dict[str, Cell]]:
    """Cells by pattern and allocator. `progress` hears of each before it (None) and after.

    Each cell may take its share of what is left, by how much there is to do, so that the last ones get theirs.
    """
    clock = bench._clock
    end = clock() + budget_seconds
    cells: dict[str, dict[str, Cell]] = collections.defaultdict(dict)
    left = sum(job.weight for job in jobs) * len(allocators)
    for job in jobs:
        for allocator in allocators:
            progress(job.pattern, allocator, None)
            now = clock()
            # Three shares for those that need many tries: most need few.
            share = (end - now) * job.weight / left * 3
            cells[job.pattern][allocator] = bench.measure(job, allocator, min(end, now + share))
            progress(job.pattern, allocator, cells[job.pattern][allocator])
            left -= job.weight
    return dict(cells)


def worker_command(allocator: str, machine: str | None = None) -> list[str]:
    return [sys.executable, "-m", "dymem.stress.worker", allocator, *([machine] if machine else [])]
