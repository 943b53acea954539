"""A recording through the C++ pool on an emulated device: what `dymem replay`, `compare` and `stress` have in common."""

from __future__ import annotations

import math
from typing import Callable

from dymem.config import Config
from dymem.errors import InvalidArgument
from dymem.trace import Recording

LAG_MS = 10.0  # unless told otherwise
PLACEMENTS = ("best_fit", "two_ends", "by_size", "grouped")  # dymem::Placement


def lag_ns(lag_ms: float) -> int:
    if not math.isfinite(lag_ms) or not 0 <= lag_ms <= 1e9:
        raise InvalidArgument(f"a lag of {lag_ms} ms cannot be; write for example --lag 10.")
    return round(lag_ms * 1e6)


def replay_recording(recording: Recording, *, limit: int | float | None = None, lag_ms: float = 10.0,
                     config: dict | None = None, audit_every: int = 0,
                     progress: Callable[[int], None] | None = None, layout: bool = False,
                     placement: str = "grouped") -> dict:
    """The JSON object of one trace, its figures as the C++ core counted them.

    `placement`, one of PLACEMENTS: how the classes of blocks share memory.
    With `layout`, its key "layout" holds where everything lay, as bytes (allocator/replay/layout_watch.hpp)."""
    from dymem import _core

    settings = Config.from_mapping(config or {})
    limit_bytes = limit
    if isinstance(limit, float):
        limit_bytes = math.ceil(limit * _core.trace.facts(recording.events)["occupied_peak_bytes"])
    options = {"limit": limit_bytes or 0, "backing": settings.backing, "alias": settings.alias,
               "wait": settings.wait, "grow_ratio": settings.grow_ratio, "grow_slack": settings.grow_slack,
               "lag_ns": lag_ns(lag_ms), "audit_every": audit_every, "layout": layout, "placement": placement}
    result = _core.replay(recording.events, options, progress)
    return {"name": recording.name, "file": recording.file, "device": recording.device, **result,
            "limit_bytes": limit_bytes, "lag_ms": lag_ms, "alias": settings.alias, "backing": settings.backing,
            "placement": placement, "ignored_frees": recording.ignored_frees}
