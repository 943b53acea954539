"""Fragmentation stress tests: named patterns of sizes and lifetimes, and the smallest limit under which each survives.

Layers: script.py writes events, patterns.py says what happens, search.py looks for the limit, by replays on the
emulated device. On a card: program.py makes calls of the events, execute.py runs them on a device (on_card.py), worker.py
in a process of one allocator's own, on_workers.py asks those processes for the limit. picture.py draws either.
"""

from dymem.stress.patterns import PATTERNS, Pattern
from dymem.stress.script import Script
from dymem.stress.search import SETTINGS, Survival, bisect, smallest_limit

__all__ = ["PATTERNS", "SETTINGS", "Pattern", "Script", "Survival", "bisect", "smallest_limit"]
