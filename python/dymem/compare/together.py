"""Several runs of the same work taking turns on one card, as many at once as it holds.

Invariants: a run that fails leaves the turns and the others go on; what ran out of memory without a cap of its own, while
others were beside it, is run once more alone, and only that counts; every group holds the reference, so that times of
different groups compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Callable, Sequence

from dymem.compare.turns import Turns

CONTEXT_BYTES = 1 << 30  # what a process holds of the card beside its allocator: context, modules, libraries


@dataclasses.dataclass(frozen=True)
class Run:
    """One allocator, perhaps under a cap; `expected_bytes` is what it is thought to reserve."""

    name: str
    limit_bytes: int = 0
    expected_bytes: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.limit_bytes


Start = Callable[[Run], Turns]


def groups(runs: Sequence[Run], device_bytes: int) -> list[list[Run]]:
    """Runs that fit on the card together; the first run is the reference, and first in every group."""
    reference, *others = runs
    room = device_bytes - _bytes_of(reference)
    made: list[list[Run]] = [[reference]]
    left = room
    for run in sorted(others, key=_bytes_of):
        if _bytes_of(run) > left and len(made[-1]) > 1:
            made.append([reference])
            left = room
        made[-1].append(run)
        left -= _bytes_of(run)
    return made


def _bytes_of(run: Run) -> int:
    return run.expected_bytes + CONTEXT_BYTES


def take_turns(runs: Sequence[Run], start: Start) -> list[dict]:
    """Trains all at once, steps taking turns, the order reversed after each round; what each measured."""
    with contextlib.ExitStack() as stack:
        turns = [stack.enter_context(start(run)) for run in runs]
        going = [turn for turn in turns if turn.ready()]
        while going:
            going = [turn for turn in going if turn.step()][::-1]
        return [turn.result() for turn in turns]


def comparable_seconds(measured: Sequence[dict[tuple[str, int], dict]],
                       reference: tuple[str, int]) -> dict[tuple[str, int], list[float]]:
    """Warm step times of every run that trained, as if all groups had met the same card: scaled step by step by what
    the reference took beside them, over what it took on average."""
    steps = [_warm(results[reference]) for results in measured]
    base = [sum(times) / len(times) for times in zip(*steps)] if all(steps) else []
    seconds: dict[tuple[str, int], list[float]] = {}
    for results, beside in zip(measured, steps):
        for key, result in results.items():
            mine = _warm(result)
            if not mine:
                continue
            scaled = base and not result.get("alone") and len(mine) == len(base)
            seconds[key] = [t * b / r for t, b, r in zip(mine, base, beside)] if scaled else mine
    return seconds


def _warm(result: dict) -> list[float]:
    return [] if "error" in result else result["step_seconds"][result["warm_from"]:]


def run_together(runs: Sequence[Run], start: Start, device_bytes: int,
                 flipped: bool = False) -> list[dict[tuple[str, int], dict]]:
    """What every run measured, a dict for each group; each dict has the reference's own run beside the group's."""
    measured = []
    for group in groups(runs, device_bytes):
        ordered = group[::-1] if flipped else group
        results = {run.key: result for run, result in zip(ordered, take_turns(ordered, start))}
        if len(group) > 1:
            for run in group:
                if not run.limit_bytes and "out_of_memory" in results[run.key]:
                    results[run.key] = take_turns([run], start)[0] | {"alone": True}
        measured.append(results)
    return measured
