"""Mobility: which allocation holds what, and so of which class it is (Dymem, HPDC 2020, sections 3.1 and 3.3).

    from dymem.mobility import Profile, classes
    with Profile() as profile:      # around one training iteration, of any model
        step()
    tags = classes(profile.facts)   # one class for each allocation of the iteration, in their order
    follow(profile.facts)           # or: the allocations of the next iterations have them from now on

Facts and rules are plain data and pure functions, without torch; only Profile needs it, when it is entered.
"""

from __future__ import annotations

from dymem.mobility.classes import RULES, by_stream, classes
from dymem.mobility.facts import Allocation, Facts, Node
from dymem.mobility.following import patterns
from dymem.mobility.live import follow, following_stats, stop_following
from dymem.mobility.profile import Profile, profile_iteration
from dymem.mobility.rules import (MOVABLE, NAMES, RECLAIMED, RECLAIMED_KINDS, TEMPORARY, UNTAGGED, execution_order, mobility,
                                  mobility_of)

__all__ = ["Allocation", "Facts", "MOVABLE", "NAMES", "Node", "Profile", "RECLAIMED", "RECLAIMED_KINDS", "RULES",
           "TEMPORARY", "UNTAGGED", "by_stream", "classes", "execution_order", "follow", "following_stats", "mobility",
           "mobility_of", "patterns", "profile_iteration", "stop_following"]
