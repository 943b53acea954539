"""Classes for the allocations of this very program, from a profiled iteration on: followed in C++ (allocator/pool/tagger.hpp).

    with Profile() as profile:
        step()
    follow(profile.facts)     # from now on the pool is told the class of each allocation
    following_stats()
    stop_following()
"""

from __future__ import annotations

import sys
import warnings

from dymem.errors import InvalidArgument
from dymem.mobility.classes import classes
from dymem.mobility.facts import Facts
from dymem.mobility.following import patterns


def follow(facts: Facts, rule: str = "lifetime") -> bool:
    """Follows the program along the iteration that these facts are of: each allocation that corresponds to one of it gets that
    one's class by `rule` (dymem.mobility.classes), every other is untagged, or temporary where a program departs that has gone
    as expected for long (dymem.mobility.following). It costs no Python. What was followed before is not any more.

    Facts of this process say that the next iteration is about to begin. Those of an earlier run (Facts.load) can be followed
    right after install: what comes before the first iteration is untagged, and the first few steps of that one.

    False, with a warning that says why, if the facts are incomplete, have no allocation, or are of memory of the CPU
    (host=True), to which nothing of a pool corresponds: then nothing is followed. Raises InvalidArgument if dymem is
    not installed, if these are no facts, or there is no such rule."""
    following = _following()
    tags = classes(facts, rule)
    why = _unfit(facts)
    # Whatever is wrong with facts shows here, while the search for iterations still goes on.
    found = [] if why else [(device, stream, *pattern.as_bytes())
                            for (device, stream), pattern in patterns(facts, tags, again=True).items()]
    _stand_aside()
    if why:
        following.stop()
        warnings.warn(f"dymem: the profiled iteration is not followed, and all is untagged: {why}", stacklevel=2)
        return False
    following.follow(found, facts.here)
    return True


def _unfit(facts: Facts) -> str | None:
    if facts.host:
        return "it is of memory of the CPU (host=True), and only that of GPUs is followed; profile it without host."
    if not facts.complete or not facts.allocations:
        return facts.notes[0] if facts.notes else "nothing was allocated in it."
    return None


def stop_following() -> None:
    """All that is allocated from now on is untagged. Nothing happens if nothing was followed."""
    adapter = sys.modules.get("dymem._torch")
    if adapter is not None:
        _stand_aside()
        adapter.following.stop()


def following_stats() -> dict[str, int | bool]:
    """What came of follow() since it was last called, on all devices; zeros if it never was.

    following       whether it goes on
    allocations     of the pools, and how many of them were `tagged` (have a class)
    allocated_bytes, tagged_bytes  the same in bytes, as asked for
    departures      steps (allocations and frees) that were not the expected ones
    streams         that did something, 64 a device at most"""
    adapter = sys.modules.get("dymem._torch")
    if adapter is None:
        return {"following": False, **dict.fromkeys(_FIGURES, 0)}
    return {"following": adapter.following.on(), **adapter.following.stats()}


_FIGURES = ("allocations", "tagged", "departures", "allocated_bytes", "tagged_bytes", "streams")


def _stand_aside() -> None:
    from dymem.mobility import automatic

    automatic.stand_aside()


def _following():
    adapter = sys.modules.get("dymem._torch")
    if adapter is None or not adapter.cuda_allocator_is_ours():
        raise InvalidArgument("dymem is not the allocator of PyTorch in this process, so no allocation can get a class: call "
                              "dymem.install() before the first use of CUDA.")
    return adapter.following
