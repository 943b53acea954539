"""Classes in traces: raw events in, events with TraceEvent::mobility out (allocator/base/event.hpp). Pure.

Facts are of one iteration; the classes are for others, carried over by the order of allocations and frees of each stream
(dymem.mobility.following).
  carried   to the iterations after the profiled one. All before it is untagged, and so is it itself, since the facts come
            after it: what a run has that was never looked at before
  known     to all of a run, from its first event on: what a run has whose facts an earlier one left
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Iterator, Mapping

from dymem.errors import TraceError
from dymem.mobility.facts import Facts
from dymem.mobility.following import TRUST_MOST, Cycle, Follower, Followers, Pattern, Steps, patterns
from dymem.mobility.rules import MOVABLE, NAMES, UNTAGGED
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED, MARK, MOBILITY_AT

_NOTHING = Pattern()              # of a stream for which the profiled iteration had none


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How much of the iterations that could have classes has one."""

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
            out[at + MOBILITY_AT] = classes[event[1]]
    return out


def carried(events: bytes | bytearray, profiled: int, classes: Mapping[int, int]) -> tuple[bytearray, Coverage]:
    """The events with classes from iteration `profiled` on, given those of its blocks (block number: class); and how far
    that went. TraceError for a trace without marks, or without that iteration."""
    pattern = patterns_by_stream(events, profiled, classes)
    out = bytearray(events)
    current, iterations, allocated, told = profiled, 0, 0, 0
    steps: dict[int, Steps] = {}
    followers: dict[int, Follower] = {}
    for at, (_, block, size, stream, kind, _, _, iteration) in _numbered(events):
        if kind not in (ALLOC, FREE_REQUESTED) or iteration <= profiled:
            continue
        if iteration != current:
            current, iterations = iteration, iterations + 1
            steps, followers = collections.defaultdict(Steps), {}
        if stream not in followers:
            followers[stream] = Follower(_same(stream, pattern, len(followers)), TRUST_MOST)
        follower = followers[stream]
        if kind == ALLOC:
            tag = follower.step(steps[stream].alloc(block, size), size)
            out[at + MOBILITY_AT] = tag
            allocated += size
            told += size if tag != UNTAGGED else 0
        else:
            follower.step(steps[stream].free(block))
    return out, Coverage(iterations, allocated, told)


def known(events: bytes | bytearray, facts: Facts, classes: list[int], device: int = 0) -> tuple[bytearray, Coverage]:
    """The events with the classes that a run has which is followed along the facts of an earlier one from its first event on
    (`follow(Facts.load(...))` after install), given one for each of facts.allocations; and how far that went.

    Nothing is looked up by number, nor do marks matter: it is the order of allocations and frees alone, of the model's
    building and of every iteration. So these may be facts of this very recording."""
    followers = Followers({stream: Cycle(pattern) for (of, stream), pattern in patterns(facts, classes, again=True).items()
                           if of == device})
    out = bytearray(events)
    iterations, allocated, told = set(), 0, 0
    for at, (_, block, size, stream, kind, _, _, iteration) in _numbered(events):
        if kind == ALLOC:
            tag = followers.alloc(stream, block, size)
            out[at + MOBILITY_AT] = tag
            if iteration >= 0:
                iterations.add(iteration)
                allocated += size
                told += size if tag != UNTAGGED else 0
        elif kind == FREE_REQUESTED:
            followers.free(stream, block)
    return out, Coverage(len(iterations), allocated, told)


def _same(stream: int, patterns: Mapping[int, Pattern], rank: int) -> Pattern:
    """The pattern of this stream; of one that is new, that of the stream that came as late in the profiled iteration: programs
    that make a stream for every iteration have another number for it each time."""
    if stream in patterns:
        return patterns[stream]
    return list(patterns.values())[rank] if rank < len(patterns) else _NOTHING


def patterns_by_stream(events: bytes | bytearray, profiled: int, classes: Mapping[int, int]) -> dict[int, Pattern]:
    """By stream, what iteration `profiled` did, with the classes of its blocks (block number: class); TraceError as carried()."""
    found: dict[int, Pattern] = collections.defaultdict(Pattern)
    steps: dict[int, Steps] = collections.defaultdict(Steps)
    marked = False
    for _, (_, block, size, stream, kind, _, _, iteration) in _numbered(events):
        marked |= iteration >= 0
        if iteration != profiled:
            continue
        if kind == ALLOC:
            found[stream].add(steps[stream].alloc(block, size), classes.get(block, UNTAGGED), size)
        elif kind == FREE_REQUESTED:
            found[stream].add(steps[stream].free(block))
    if not marked:
        raise TraceError("it has no marks of iterations, along which classes could be carried.")
    if not found:
        raise TraceError(f"it has no iteration {profiled}, or nothing was allocated in it.")
    return found


def _numbered(events: bytes | bytearray) -> Iterator[tuple[int, tuple]]:
    return zip(range(0, len(events), EVENT.size), EVENT.iter_unpack(events))


def shares(events: bytes | bytearray) -> dict[str, int]:
    """Bytes allocated under each class, by its name."""
    sums = dict.fromkeys(NAMES, 0)
    for event in EVENT.iter_unpack(events):
        if event[4] == ALLOC:
            sums[NAMES[event[5]] if event[5] < len(NAMES) else NAMES[MOVABLE - 1]] += event[2]
    return sums
