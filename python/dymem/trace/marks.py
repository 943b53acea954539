"""Marks in a running recording: a program says which iteration and phase it is in, and what follows in the trace belongs to it."""

from __future__ import annotations

from dymem.trace.snapshot import EVENT, MARK


def mark(device: int, iteration: int, phase: str) -> None:
    """Iteration -1: before the first. Phases: S start, F forward, B backward, O optimizer. Nothing happens before the device's
    first use, when there is no pool yet. A mark has no time of its own: the recorder gives it that of the event before it."""
    from dymem import _core

    if _core.abi.made(device):
        _core.abi.recorder(device).record(EVENT.pack(0, 0, iteration % 2**64, 0, MARK, 0, ord(phase), iteration))
