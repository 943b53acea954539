"""Finds, for each allocation of an iteration, the one of the profiled iteration that it corresponds to. Pure.

What a stream does is a sequence of steps, told so that neither sizes nor what lies far back matter:
  an allocation   ALIKE if it is as large as the stream's allocation before it, else OTHER
  a free          its age: how many allocations the stream has made since, its own included; FAR at most
An iteration is followed step by step along the profiled one. Where it departs (a block is skipped, a library takes another
workspace), its last ALIGNED steps are looked for in the profiled one, and it goes on from the nearest such place; until
there is one, its allocations correspond to nothing. Constant time a step: one look-up where it departs.

A place that was found may be the wrong one: some runs of allocations are alike, and what a program does before its first
iteration is none. So a class is told only where it is trusted: each step that is the expected one adds to the trust, up to
TRUST_MOST, a departure takes DEPARTED away, and TRUSTED it must be. Sizes vary from iteration to iteration, but not without bounds:
an allocation more than UNLIKE powers of two larger or smaller than that of its place is another one, and takes one away.

Another one, or one where an iteration departs that has been followed for long (the trust is SURE), is most often workspace: a
library is called for the first time, or has chosen another algorithm. It is told to be temporary.

Programs that run do not say where an iteration begins: there a pattern is followed as a Cycle, once for good. That is done in
C++ (allocator/pool/tagger.hpp, compared with this); follow() switches it on.
"""

from __future__ import annotations

import bisect
import collections
from typing import Hashable, Mapping

from dymem.mobility.facts import Facts
from dymem.mobility.rules import TEMPORARY, UNTAGGED
from dymem.trace.snapshot import BLOCK_UNIT

ALIKE, OTHER = 0, -1
FAR = 16      # allocations: an older block's free says only that it is older
ALIGNED = 8   # steps that must be the same where a departed iteration is taken up again
TRUSTED = 12  # steps as expected before a class is told
DEPARTED = 6
TRUST_MOST = 64
SURE = 52    # of TRUST_MOST: what is not expected there is taken for workspace
UNLIKE = 5   # powers of two between an allocation and that of its place; images and sequences vary by less


def width(size: int) -> int:
    """Powers of two in a block of so many requested bytes; the smallest ones are all alike."""
    return max(size, BLOCK_UNIT).bit_length()


class Steps:
    """Names the steps of one stream in one iteration."""

    def __init__(self) -> None:
        self.count, self.size = 0, -1
        self.born: dict[Hashable, int] = {}

    def alloc(self, block: Hashable, size: int) -> int:
        step = ALIKE if size == self.size else OTHER
        self.size = size
        self.born[block] = self.count
        self.count += 1
        return step

    def free(self, block: Hashable) -> int:
        born = self.born.pop(block, None)
        return FAR if born is None else min(self.count - born, FAR)


class Pattern:
    """What one stream did in the profiled iteration, with the class and the width of each allocation."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.classes: list[int] = []  # of each step; of a free UNTAGGED
        self.widths: list[int] = []   # of each step; 0: of a free, or not known
        self.places: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)  # where steps that end so end

    def add(self, step: int, tag: int = UNTAGGED, size: int | None = None) -> None:
        self.steps.append(step)
        self.classes.append(tag)
        self.widths.append(0 if size is None else width(size))
        if len(self.steps) >= ALIGNED:
            self.places[tuple(self.steps[-ALIGNED:])].append(len(self.steps) - 1)

    def nearest(self, last: tuple[int, ...], to: int) -> int | None:
        """The place nearest to `to` where the pattern's last steps are these; ahead if one behind is as near."""
        places = self.places.get(last)
        if not places:
            return None
        at = bisect.bisect_left(places, to)
        return min(places[max(0, at - 1):at + 1], key=lambda place: (abs(place - to), -place))

    def after(self, place: int) -> int:
        return place + 1

    def as_bytes(self) -> tuple[bytes, bytes, bytes]:
        """Steps, classes and widths as allocator/pool/tagger.hpp takes them: signed bytes, and twice unsigned ones."""
        return bytes(step & 0xff for step in self.steps), bytes(self.classes), bytes(self.widths)


class Cycle(Pattern):
    """A pattern that begins anew when it is over."""

    def __init__(self, of: Pattern) -> None:
        super().__init__()
        self.steps, self.classes, self.widths = of.steps, of.classes, of.widths
        for place in range(len(self.steps)):
            last = tuple(self.steps[(place - back) % len(self.steps)] for back in reversed(range(ALIGNED)))
            self.places[last].append(place)

    def nearest(self, last: tuple[int, ...], to: int) -> int | None:
        """As a pattern's, on the circle."""
        places, count = self.places.get(last), len(self.steps)
        if not places:
            return None
        at = bisect.bisect_left(places, to)
        ahead, behind = places[at % len(places)], places[at - 1]
        return ahead if (ahead - to) % count <= (to - behind) % count else behind

    def after(self, place: int) -> int:
        return (place + 1) % len(self.steps)


class Follower:
    """Follows one stream along a pattern: of one iteration, or along a cycle for good. `trust`: of the place where it begins,
    the pattern's first; TRUST_MOST if a mark says that an iteration begins there."""

    def __init__(self, pattern: Pattern, trust: int = 0) -> None:
        self.pattern, self.next, self.lost, self.trust = pattern, 0, False, trust
        self.last: collections.deque[int] = collections.deque(maxlen=ALIGNED)

    def step(self, step: int, size: int | None = None) -> int:
        """The class of what was allocated in this step (`size`: of the request, if known); UNTAGGED where it corresponds to
        nothing, and for a free."""
        steps, place = self.pattern.steps, self.next
        if not steps:
            return UNTAGGED
        self.last.append(step)
        departs = not self.lost and (place >= len(steps) or steps[place] != step)
        if self.lost or departs:
            place = self.pattern.nearest(tuple(self.last), self.next)
            self.lost = place is None
        unlike = not self.lost and self._unlike(place, size)
        strange = TEMPORARY if step in (ALIKE, OTHER) and self.trust >= SURE else UNTAGGED
        if departs or unlike:
            self.trust = max(0, self.trust - (DEPARTED if departs else 1))
        if self.lost:
            return strange if departs else UNTAGGED
        self.next = self.pattern.after(place)
        if unlike:
            return strange
        self.trust = min(self.trust + 1, TRUST_MOST)
        return self.pattern.classes[place] if self.trust >= TRUSTED else UNTAGGED

    def _unlike(self, place: int, size: int | None) -> bool:
        there = self.pattern.widths[place]
        return size is not None and there > 0 and abs(width(size) - there) > UNLIKE


class Followers:
    """All streams of a program that runs, each along the pattern of its own; one that the profile has not along that of the
    profile's streams that were not seen since, in the order in which both appeared, round and round. A new stream has the
    trust of the one that did something last, the first one what is given."""

    def __init__(self, cycles: Mapping[Hashable, Cycle], trust: int = 0) -> None:
        self.cycles, self.trust = cycles, trust
        self.recent: Follower | None = None
        self.steps: dict[Hashable, Steps] = collections.defaultdict(Steps)
        self.followers: dict[Hashable, Follower] = {}
        self.strangers = 0

    def alloc(self, stream: Hashable, block: Hashable, size: int) -> int:
        """The class of an allocation, in the order in which they are made."""
        return self._of(stream).step(self.steps[stream].alloc(block, size), size)

    def free(self, stream: Hashable, block: Hashable) -> None:
        self._of(stream).step(self.steps[stream].free(block))

    def _of(self, stream: Hashable) -> Follower:
        if stream not in self.followers:
            self.followers[stream] = Follower(self._cycle(stream), self.recent.trust if self.recent else self.trust)
        self.recent = self.followers[stream]
        return self.recent

    def _cycle(self, stream: Hashable) -> Cycle:
        if stream in self.cycles:
            return self.cycles[stream]
        unseen = [known for known in self.cycles if known not in self.followers]
        if not unseen:
            return Cycle(Pattern())
        self.strangers += 1
        return self.cycles[unseen[(self.strangers - 1) % len(unseen)]]


def patterns(facts: Facts, classes: list[int], again: bool = False) -> dict[tuple[int, int], Pattern]:
    """The pattern of each (device, stream) of the profiled iteration, in the order in which they appear. again: for cycles,
    where another such iteration was before it: its first allocation comes after its last, and what it frees of before is as old
    as what it leaves behind itself, of the same size, the first for the first."""
    moments = [(a.at, True, a) for a in facts.allocations]
    moments += [(a.freed, False, a) for a in (*facts.allocations, *facts.older) if a.freed is not None]
    found: dict[tuple[int, int], Pattern] = collections.defaultdict(Pattern)
    steps: dict[tuple[int, int], Steps] = collections.defaultdict(Steps)
    if again:
        left: dict[tuple[int, int, int], collections.deque[int]] = collections.defaultdict(collections.deque)
        for a in facts.allocations:
            steps[a.device, a.stream].size = a.bytes
            if a.freed is None:
                left[a.device, a.stream, a.bytes].append(a.place)
        made = collections.Counter((a.device, a.stream) for a in facts.allocations)
        for a in sorted((a for a in facts.older if a.freed is not None), key=lambda a: a.freed):
            if places := left[a.device, a.stream, a.bytes]:
                steps[a.device, a.stream].born[a.index] = places.popleft() - made[a.device, a.stream]
    for _, comes, a in sorted(moments, key=lambda moment: moment[0]):
        stream = a.device, a.stream
        if comes:
            found[stream].add(steps[stream].alloc(a.index, a.bytes), classes[a.index], a.bytes)
        else:
            found[stream].add(steps[stream].free(a.index))
    return dict(found)
