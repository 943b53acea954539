"""Fragmentation stress tests: named patterns of sizes and lifetimes, and the smallest limit under which each survives.

Layers: script.py writes events, patterns.py says what happens, search.py replays and looks for the limit.
"""

from dymem.stress.patterns import PATTERNS, Pattern
from dymem.stress.script import Script
from dymem.stress.search import SETTINGS, Survival, smallest_limit

__all__ = ["PATTERNS", "SETTINGS", "Pattern", "Script", "Survival", "smallest_limit"]
