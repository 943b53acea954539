"""From facts to classes: which mobility each allocation of the iteration has, by one of two rules. Pure.

lifetime    What is freed in the part of the iteration (one forward, one backward, one optimizer step) that made it is
            temporary; what is freed in a later part movable: the form that packs best when nothing is offloaded in
            between, since what lives through the part fills one end without gaps and the rest comes and goes at the
            other. What outlives the iteration (parameters, the optimizer's state, gradients that the next one drops) has
            no class: it is in the way of neither at the ends of the pool (allocator/pool/placement.hpp).
paper       Algorithm 3 (HPDC 2020, section 3.3.2), by kind of layer, forks, and waiting for a join. In backward a result
            that would wait is movable. Workspace is temporary; what no layer made is untagged.

Both say nothing (untagged) of an iteration whose facts are incomplete.
"""

from __future__ import annotations

import reprlib

from dymem.config import shortened
from dymem.errors import InvalidArgument
from dymem.mobility.facts import BACKWARD, Allocation, Facts
from dymem.mobility.rules import MOVABLE, RECLAIMED, RECLAIMED_KINDS, TEMPORARY, UNTAGGED

LASTING = frozenset({"parameter", "optimizer"})


def by_lifetime(a: Allocation) -> int:
    if a.freed is None:
        return UNTAGGED
    return TEMPORARY if a.short_lived else MOVABLE


def by_paper(a: Allocation) -> int:
    """Algorithm 3, for what it speaks of: the results of layers."""
    if a.role in LASTING:
        return MOVABLE
    if a.node is None:
        return UNTAGGED
    if a.role == "workspace":
        return TEMPORARY
    if a.kind in RECLAIMED_KINDS:
        return RECLAIMED
    if a.phase == BACKWARD:
        return TEMPORARY if a.fork else MOVABLE
    return TEMPORARY if a.fork or a.waits or not a.users else MOVABLE


RULES = {"lifetime": by_lifetime, "paper": by_paper}


def classes(facts: Facts, rule: str = "lifetime") -> list[int]:
    """One class (rules.MOVABLE, …) for each of facts.allocations; InvalidArgument for what is no rule, or no facts."""
    if not isinstance(facts, Facts):
        raise InvalidArgument(f"there are no facts in {shortened(reprlib.repr(facts))}: give the `facts` of a profile, or what "
                              "Facts.load(path) returns.")
    if not isinstance(rule, str) or rule not in RULES:
        raise InvalidArgument(f"there is no rule '{shortened(rule)}'; there are {', '.join(RULES)}.")
    if not facts.complete:
        return [UNTAGGED] * len(facts.allocations)
    return [RULES[rule](a) for a in facts.allocations]


def by_stream(facts: Facts, rule: str = "lifetime") -> dict[tuple[int, int], list[int]]:
    """The classes of each device's and stream's allocations, in the order in which it makes them: (device, stream): classes."""
    tags = classes(facts, rule)
    found: dict[tuple[int, int], list[int]] = {}
    for a, tag in zip(facts.allocations, tags):
        found.setdefault((a.device, a.stream), []).append(tag)
    return found
