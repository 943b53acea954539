"""A bundled workload under every allocator: repeats of steps taking turns, then one row of figures for the table.

bench/train.py of the checkout trains; each allocator has a process of its own for every repeat, with the same seed. The
order of turns is reversed from repeat to repeat. `Session` knows how a run is started and how much time is left.

Time for several workloads is shared out evenly: beyond its share a workload begins no further repeat. What it has begun may
go on for SHARES of them, and one that surely does not fit is not begun, so that time which is short costs whole workloads,
the last ones, and not the end of each.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Sequence

from dymem import _paths
from dymem.compare import figures
from dymem.compare.together import Run, comparable_seconds, run_together, take_turns
from dymem.compare.turns import Turns
from dymem.rivals import ALLOCATORS

TRAIN = _paths.PACKAGE.parent.parent / "bench" / "train.py"
MARGIN = {"rmm_pool": 2.2}  # reserved over what PyTorch's own allocator reserves: RMM's pool doubles as it grows
MARGIN_OTHERS = 1.05
HISTORY_ITERATIONS = 4  # of the short run whose addresses are drawn
SHARES = 3
SPENT = "it was not run: the time was spent"


@dataclasses.dataclass
class Session:
    """How the runs of one `dymem compare` are made; `seconds` for all of them, `last_seconds` until one is cut off."""

    device_bytes: int
    seconds: float
    iterations: int = 24
    shapes: int = 8
    say: Callable[[str], None] = lambda sentence: None
    train: Path | None = None  # default: TRAIN
    last_seconds: float | None = None  # default: `seconds`

    def __post_init__(self) -> None:
        self.train = self.train or TRAIN
        now = time.monotonic()
        self.end = now + self.seconds
        self.cut = self.end if self.last_seconds is None else now + self.last_seconds

    def left(self) -> float:
        return max(5.0, self.cut - time.monotonic())

    def allows_another(self, longest: float) -> bool:
        return time.monotonic() + longest < self.end

    def share(self, workloads: int) -> Session:
        """That of the first of so many."""
        left = max(0.0, self.end - time.monotonic())
        even = left / workloads
        return dataclasses.replace(self, seconds=even, last_seconds=min(left, SHARES * even))

    def start(self, workload: str) -> Callable[[Run], Turns]:
        def start(run: Run) -> Turns:
            return Turns(self.command(workload, run), seconds=self.left())

        return start

    def command(self, workload: str, run: Run, *more: str) -> list[str]:
        limit = ["--limit-bytes", str(run.limit_bytes)] if run.limit_bytes else ["--call-cost"]
        return [sys.executable, str(self.train), workload, "--allocator", run.name, "--lockstep", "--iterations",
                str(self.iterations), "--shapes", str(self.shapes), *limit, *more]


@dataclasses.dataclass(frozen=True)
class Bundled:
    """A bundled workload as dymem.compare.capped trains it."""

    name: str
    session: Session
    warm = "Steps count from the second of each shape on."

    def say(self, sentence: str) -> None:
        self.session.say(sentence)

    def allows_another(self, longest: float) -> bool:
        return self.session.allows_another(longest)

    def run(self, runs: Sequence[Run], flipped: bool = False) -> list[dict[tuple[str, int], dict]]:
        return run_together(runs, self.session.start(self.name), self.session.device_bytes, flipped)


def reserved_before(workload: str) -> int | None:
    """What PyTorch's allocator reserved when the bundled recording was made; None for an unrecorded workload."""
    row = json.loads((_paths.traces_dir() / "measured.json").read_text())["recorded"]["rows"].get(workload)
    return row["peak_reserved_mib"] << 20 if row else None


def planned(workload: str, names: Sequence[str], session: Session) -> list[Run]:
    """The runs with what each is expected to reserve; PyTorch's own allocator, the reference, first."""
    names = sorted(names, key=lambda name: name != "native")
    reserved = reserved_before(workload)
    if reserved is None:
        short = dataclasses.replace(session, iterations=3, shapes=0, seconds=session.left(), last_seconds=None)
        reserved = take_turns([Run("native")], short.start(workload))[0].get("reserved_peak_bytes", session.device_bytes)
    return [Run(name, expected_bytes=round(reserved * MARGIN.get(name, MARGIN_OTHERS))) for name in names]


def measure(workload: str, names: Sequence[str], repeats: int, session: Session) -> dict:
    """The row of one workload. A failed allocator has `error` in its cell, and is not tried again."""
    runs = planned(workload, names, session)
    results: dict[str, list[dict]] = {name: [] for name in names}
    seconds: list[dict[str, list[float]]] = []
    longest = 0.0
    for repeat in range(repeats):
        if not runs or (repeat and not session.allows_another(longest)):
            break
        began = time.monotonic()
        session.say(f"{workload}, repeat {repeat + 1}")
        measured = run_together(runs, session.start(workload), session.device_bytes, flipped=repeat % 2 == 1)
        seconds.append({name: times for (name, _), times in comparable_seconds(measured, runs[0].key).items()})
        for group in reversed(measured):  # of the reference's runs, the first group's is told
            for (name, _), result in group.items():
                results[name] = results[name][:repeat] + [result]
        runs = [dataclasses.replace(run, expected_bytes=round(1.05 * peak)) for run in runs
                if (peak := results[run.name][-1].get("reserved_peak_bytes")) is not None
                and "error" not in results[run.name][-1]]
        longest = max(longest, time.monotonic() - began)
    return row_of(workload, names, results, seconds)


def left_out(workload: str, names: Sequence[str], **more: object) -> dict:
    """The row of one that was not begun."""
    return {"workload": workload, "allocators": list(names), "error": SPENT, **more}


def row_of(workload: str, names: Sequence[str], results: dict[str, list[dict]],
           seconds: Sequence[dict[str, list[float]]]) -> dict:
    """The JSON object of one workload, from each allocator's runs and the comparable step times of every repeat."""
    row: dict[str, object] = {"workload": workload, "allocators": list(names)}
    cells = {name: cell_of(name, results[name]) for name in names}
    fastest = figures.fastest({name: cell["step_ms"] for name, cell in cells.items()},
                              [name for name in names if not name.startswith("dymem")])
    occupied = [cell["occupied_peak_bytes"] for cell in cells.values() if "error" not in cell
                and cell["occupied_peak_bytes"]]
    row |= {"fastest_rival": fastest, "smallest_occupied_peak_bytes": min(occupied, default=None)}
    for name, cell in cells.items():
        cell["over_smallest_occupied"] = figures.overhead(cell["reserved_peak_bytes"], min(occupied, default=None))
        if fastest is not None and "error" not in cell:
            cell |= figures.ratio_figures([(repeat[fastest], repeat[name]) for repeat in seconds
                                           if fastest in repeat and name in repeat])
        row[name] = cell
    return row


def cell_of(name: str, runs: Sequence[dict]) -> dict:
    """One allocator's figures over its runs; with `error` in it if one failed."""
    good = [run for run in runs if "error" not in run]
    cell: dict[str, object] = {"allocator": name, "title": ALLOCATORS[name].title, "repeats": len(good)}
    failed = next((run for run in runs if "error" in run), None)
    if failed is not None:
        cell |= {key: failed[key] for key in ("error", "stderr", "out_of_memory", "failed_at_step") if key in failed}
    elif not runs:
        cell["error"] = SPENT
    told = good or [run for run in runs if "step_seconds" in run]
    cell |= {key: figures.largest(told, key) for key in figures.PEAKS}
    times = [run["step_ms"] for run in good if run.get("step_ms")]
    cell["step_ms"] = round(figures.median(times), 4) if times else None
    cell["overhead"] = figures.overhead(cell["reserved_peak_bytes"], cell["occupied_peak_bytes"])
    costs = [run["call_ns"] for run in good if run.get("call_ns") is not None]
    cell |= {"calls_per_step": figures.largest(told, "calls_per_step"), "calls": figures.largest(told, "calls"),
             "call_ns": round(figures.median(costs), 1) if costs else None,
             "device_allocations": figures.largest(told, "device_allocations"),
             "device_frees": figures.largest(told, "device_frees"),
             "reserved_known_by": ALLOCATORS[name].reserved_known_by, "runs": list(runs)}
    return cell


def record_history(workload: str, name: str, target: Path, session: Session) -> str | None:
    """Trains a few steps more to write who held what; a sentence where that failed."""
    command = [sys.executable, str(session.train), workload, "--allocator", name, "--iterations",
               str(HISTORY_ITERATIONS), "--history", str(target)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=max(60.0, session.left()))
    except subprocess.TimeoutExpired:
        return f"{workload} under {name}: no picture of addresses, the time was spent."
    if run.returncode != 0 or not target.exists():
        lines = (run.stderr or run.stdout).strip().splitlines() or [f"it ended with code {run.returncode}"]
        return f"{workload} under {name}: no picture of addresses: {lines[-1]}"
    return None
