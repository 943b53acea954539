"""Mobility classes with hindsight: what a perfect rule would have said when each block of a trace was allocated.

From the marks of iterations and phases alone, so only for recordings that have them. Pure: events in, events out.
  temporary   freed in the phase of the iteration that allocated it (before the first iteration: freed before it)
  movable     freed in a later phase of that iteration: what waits for its backward
  untagged    outlives its iteration: parameters, gradients, the optimizer's state
Stands in for classes that a program gives while it runs, to tell what they are worth; no allocator could know them.
"""

from __future__ import annotations

from dymem.errors import TraceError
from dymem.mobility.rules import MOVABLE, TEMPORARY, UNTAGGED
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED, MOBILITY_AT


def with_hindsight(events: bytes | bytearray) -> bytearray:
    """A copy of the events with each allocation's class set; TraceError if no iteration is marked."""
    out = bytearray(events)
    born: dict[int, tuple[int, int, int]] = {}  # block: where its event begins, iteration, phase
    marked = False
    for index, (_, block, _, _, kind, _, phase, iteration) in enumerate(EVENT.iter_unpack(events)):
        marked |= iteration >= 0
        if kind == ALLOC:
            at = index * EVENT.size
            born[block] = at, iteration, phase
            out[at + MOBILITY_AT] = UNTAGGED
        elif kind == FREE_REQUESTED and block in born:
            at, iteration_then, phase_then = born.pop(block)
            if iteration == iteration_then:
                out[at + MOBILITY_AT] = TEMPORARY if iteration < 0 or phase == phase_then else MOVABLE
    if not marked:
        raise TraceError("it has no marks of iterations, from which classes could be told; replay it without --mobility.")
    return out
