"""A recording as a program to be run on a real device: what is called, in order, with nothing left to look up.

The host of a recording knows when work on other streams was done; here that becomes what a program would do: the other
stream is given work that lasts for a while, and where the recording says that it is over, the host waits for it. The
clock of the card runs FASTER times as fast as that of the recording, so that little of the time is waiting; a pause as
long as PAUSE_MS or longer means that everything enqueued is done, so the host waits for the device.
"""

from __future__ import annotations

import dataclasses

from dymem.trace import Recording
from dymem.trace.snapshot import ALLOC, EVENT, FREE_COMPLETED, FREE_REQUESTED, RECORD_STREAM

MAKE, USE, FREE, DONE, PAUSE = range(5)  # kinds of operations
FASTER = 10
PAUSE_MS = 10.0


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    # (MAKE, block, bytes, stream), (USE, block, stream, ms of work), (FREE, block, 0, 0), (DONE, block, 0, 0),
    # (PAUSE, 0, 0, 0); blocks are numbered from 0, DONE waits for the work of the block's USEs.
    operations: list[tuple[int, int, int, float]]
    blocks: int
    calls: int  # of the allocator: blocks made and freed


def program_of(recording: Recording) -> Program:
    events = list(EVENT.iter_unpack(recording.events))
    asked = {event[1]: event[0] for event in events if event[4] == FREE_REQUESTED}
    lasts = {event[1]: (event[0] - asked[event[1]]) / 1e6 / FASTER for event in events if event[4] == FREE_COMPLETED}
    operations: list[tuple[int, int, int, float]] = []
    blocks = calls = 0
    used: set[int] = set()
    last = 0
    for time, block, size, stream, kind, *_ in events:
        if time - last >= PAUSE_MS * 1e6:
            operations.append((PAUSE, 0, 0, 0))
        last = time
        if kind == ALLOC:
            operations.append((MAKE, block, size, stream))
            blocks, calls = max(blocks, block + 1), calls + 1
        elif kind == FREE_REQUESTED:
            operations.append((FREE, block, 0, 0))
            calls += 1
        elif kind == RECORD_STREAM:
            operations.append((USE, block, stream, lasts.get(block, 0.0)))
            used.add(block)
        elif kind == FREE_COMPLETED and block in used:
            operations.append((DONE, block, 0, 0))
    return Program(recording.name, operations, blocks, calls)
