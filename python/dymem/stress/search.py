"""The smallest limit under which a pattern survives, by bisection.

Below the occupied peak nothing can survive, so the search begins there; it ends where the bounds are within
`precision` of one another. Survival is taken to be monotonous; where it is not, a limit that survived is still true.
`bisect` asks whoever can try a limit; `smallest_limit` tries by replays on the emulated device.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, TypeVar

from dymem.replaying import replay_recording
from dymem.trace import Recording

# What is compared: the pool's configurations, by the names that the tables use.
SETTINGS: dict[str, dict[str, object]] = {
    "vmm": {"backing": "vmm", "alias": True},
    "alias=off": {"backing": "vmm", "alias": False},
    "contiguous": {"backing": "contiguous"},
}
MOST = 4.0  # times the occupied peak: what needs more is said to need more

T = TypeVar("T")


def bisect(attempt: Callable[[float], T | None], likely: float, precision: float) -> tuple[float | None, T | None, bool]:
    """The smallest ratio from 1 to MOST at which `attempt` gives something, that, and whether it is within `precision`.

    `likely`: a ratio that probably suffices. An attempt that raises StopIteration ends the search early.
    """
    found, kept = None, None
    low, high = 1.0, max(1.0, likely)
    try:
        for ratio in dict.fromkeys((1.0, min(high, MOST), MOST)):  # mostly the first, or the second, is the answer's neighbour
            if (result := attempt(ratio)) is not None:
                found, kept = ratio, result
                break
            low = ratio
        while found is not None and found - low > precision:
            ratio = (low + found) / 2
            if (result := attempt(ratio)) is None:
                low = ratio
            else:
                found, kept = ratio, result
    except StopIteration:
        return found, kept, False
    return found, kept, True


@dataclasses.dataclass
class Survival:
    setting: str
    ratio: float | None       # smallest limit found / occupied peak; None: not even MOST times was enough
    occupied_peak_bytes: int
    limit_bytes: int | None
    unlimited: dict           # the replay without a limit
    at_limit: dict | None     # the replay at the limit found
    replays: int


def smallest_limit(recording: Recording, setting: str, *, precision: float = 0.005, lag_ms: float = 10.0,
                   keys: dict[str, object] | None = None) -> Survival:
    """Bisects for one setting; `keys` configure the replays, beneath those of the setting."""
    replays = 0

    def replay(limit: int | None) -> dict:
        nonlocal replays
        replays += 1
        return replay_recording(recording, limit=limit, lag_ms=lag_ms, config={**(keys or {}), **SETTINGS[setting]})

    unlimited = replay(None)
    occupied = unlimited["occupied_peak_bytes"]

    def attempt(ratio: float) -> dict | None:
        result = replay(int(occupied * ratio))
        return None if result["oom"] else result

    ratio, kept, _ = bisect(attempt, unlimited["reserved_peak_bytes"] / occupied, precision)
    return Survival(setting, ratio, occupied, None if ratio is None else int(occupied * ratio), unlimited, kept, replays)
