"""Classes in traces: raw events in, events with TraceEvent::mobility out (allocator/base/event.hpp). Pure.

Facts are of one iteration; the classes are for the next ones. They are carried over by the order of allocations and frees
of each stream, whatever their sizes: the n-th allocation of an iteration is of the class that the n-th of the profiled one
was, for as long as everything was allocated and freed in the same order so far. From where an iteration departs, its
allocations are untagged; so is all before the profiled iteration, and it itself, since the facts come after it.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Iterator, Mapping

from dymem.errors import TraceError
from dymem.mobility.rules import MOVABLE, NAMES, UNTAGGED
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED, MARK

_MOBILITY_AT = 8 + 8 + 8 + 8 + 1  # bytes before it in an event
_OLDER = -1                       # a free of what an earlier iteration allocated


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How much of what comes after the profiled iteration has a class."""

    iterations: int
    allocated_bytes: int
    tagged_bytes: int

    @property
    def share(self) -> float:
        return self.tagged_bytes / self.allocated_bytes if self.allocated_bytes else 0.0


def stamped(events: bytes | bytearray) -> bytearray:
    """The iteration and phase that the last mark told, on every event that tells none itself."""
    out, iteration, phase = bytearray(), -1, 0
    for time, block, size, stream, kind, mobility, aux, own in EVENT.iter_unpack(events):
        if kind == MARK:
            iteration, phase = (size if size < 1 << 31 else -1), aux
        elif own < 0 and not aux:
            aux, own = phase, iteration
        out += EVENT.pack(time, block, size, stream, kind, mobility, aux, own)
    return out


def tagged(events: bytes | bytearray, classes: Mapping[int, int]) -> bytearray:
    """The events with the class that each block has in `classes` (block number: class); others stay as they are."""
    out = bytearray(events)
    for at, event in _numbered(events):
        if event[4] == ALLOC and event[1] in classes:
            out[at + _MOBILITY_AT] = classes[event[1]]
    return out


def carried(events: bytes | bytearray, profiled: int, classes: Mapping[int, int]) -> tuple[bytearray, Coverage]:
    """The events with classes from iteration `profiled` on, given those of its blocks (block number: class); and how far
    that went. TraceError for a trace without marks, or without that iteration."""
    pattern = _pattern(events, profiled, classes)
    out = bytearray(events)
    followers: dict[tuple[int, int], _Follower] = {}
    own: dict[int, int] = {}  # blocks of the iteration: their place on their stream
    current, iterations, allocated, told = profiled, 0, 0, 0
    for at, (_, block, size, stream, kind, _, _, iteration) in _numbered(events):
        if kind not in (ALLOC, FREE_REQUESTED) or iteration <= profiled:
            continue
        if iteration != current:
            current, iterations = iteration, iterations + 1
            own.clear()
        follower = followers.setdefault((iteration, stream), _Follower(pattern.get(stream, [])))
        if kind == ALLOC:
            tag = follower.alloc()
            own[block] = follower.place - 1
            out[at + _MOBILITY_AT] = tag
            allocated += size
            told += size if tag != UNTAGGED else 0
        else:
            follower.free(own.pop(block, _OLDER))
    return out, Coverage(iterations, allocated, told)


class _Follower:
    """One stream of one iteration, step by step along what the profiled iteration did there."""

    def __init__(self, steps: list[tuple[bool, int]]):
        self.steps, self.next, self.place = steps, 0, 0

    def alloc(self) -> int:
        self.place += 1
        comes, tag = self._step()
        if not comes:
            self.next = len(self.steps)
            return UNTAGGED
        return tag

    def free(self, place: int) -> None:
        comes, expected = self._step()
        if comes or expected != place:
            self.next = len(self.steps)

    def _step(self) -> tuple[bool, int]:
        if self.next >= len(self.steps):
            return False, UNTAGGED - 2  # nothing that could be met
        self.next += 1
        return self.steps[self.next - 1]


def _pattern(events: bytes | bytearray, profiled: int, classes: Mapping[int, int]) -> dict[int, list[tuple[bool, int]]]:
    """By stream, what the iteration did: (True, class) for an allocation, (False, place of what was freed) for a free."""
    steps: dict[int, list[tuple[bool, int]]] = collections.defaultdict(list)
    own: dict[int, int] = {}
    places: collections.Counter = collections.Counter()
    marked = False
    for _, (_, block, _, stream, kind, _, _, iteration) in _numbered(events):
        marked |= iteration >= 0
        if iteration != profiled:
            continue
        if kind == ALLOC:
            own[block] = places[stream]
            places[stream] += 1
            steps[stream].append((True, classes.get(block, UNTAGGED)))
        elif kind == FREE_REQUESTED:
            steps[stream].append((False, own.pop(block, _OLDER)))
    if not marked:
        raise TraceError("it has no marks of iterations, along which classes could be carried.")
    if not steps:
        raise TraceError(f"it has no iteration {profiled}, or nothing was allocated in it.")
    return steps


def _numbered(events: bytes | bytearray) -> Iterator[tuple[int, tuple]]:
    return zip(range(0, len(events), EVENT.size), EVENT.iter_unpack(events))


def shares(events: bytes | bytearray) -> dict[str, int]:
    """Bytes allocated under each class, by its name."""
    sums = dict.fromkeys(NAMES, 0)
    for event in EVENT.iter_unpack(events):
        if event[4] == ALLOC:
            sums[NAMES[event[5]] if event[5] < len(NAMES) else NAMES[MOVABLE - 1]] += event[2]
    return sums
