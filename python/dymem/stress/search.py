"""The smallest limit under which a pattern survives, by bisection over replays on the emulated device.

Below the occupied peak nothing can survive, so the search begins there; it ends where the bounds are within
`precision` of one another. Survival is taken to be monotonous; where it is not, a limit that survived is still true.
"""

from __future__ import annotations

import dataclasses

from dymem.replaying import replay_recording
from dymem.trace import Recording

# What is compared: the pool's configurations, by the names that the tables use.
SETTINGS: dict[str, dict[str, object]] = {
    "vmm": {},
    "alias=off": {"alias": False},
    "contiguous": {"backing": "contiguous"},
}
MOST = 4.0  # times the occupied peak: what needs more is said to need more


@dataclasses.dataclass
class Survival:
    setting: str
    ratio: float | None       # smallest limit found / occupied peak; None: not even MOST times was enough
    occupied_peak_bytes: int
    limit_bytes: int | None
    unlimited: dict           # the replay without a limit
    at_limit: dict | None     # the replay at the limit found
    replays: int


def smallest_limit(recording: Recording, setting: str, *, precision: float = 0.005, lag_ms: float = 10.0) -> Survival:
    """Bisects for one setting."""
    replays = 0

    def replay(limit: int | None) -> dict:
        nonlocal replays
        replays += 1
        return replay_recording(recording, limit=limit, lag_ms=lag_ms, config=SETTINGS[setting])

    unlimited = replay(None)
    occupied = unlimited["occupied_peak_bytes"]
    found, kept = None, None
    low, high = 1.0, max(1.0, unlimited["reserved_peak_bytes"] / occupied)
    for ratio in dict.fromkeys((1.0, min(high, MOST), MOST)):  # mostly the first, or the second, is the answer's neighbour
        result = replay(int(occupied * ratio))
        if not result["oom"]:
            found, kept = ratio, result
            break
        low = ratio
    while found is not None and found - low > precision:
        ratio = (low + found) / 2
        result = replay(int(occupied * ratio))
        if result["oom"]:
            low = ratio
        else:
            found, kept = ratio, result
    return Survival(setting, found, occupied, None if found is None else int(occupied * found), unlimited, kept, replays)
