"""A row of figures for each Layout, the same in the terminal and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dymem.config import format_bytes

if TYPE_CHECKING:
    from dymem.plotting.layout import Layout

HEAD = ("", "events", "blocks", "live peak", "occupied peak", "reserved peak", "overhead")


def summary(layout: Layout) -> tuple[str, ...]:
    """Figures of the whole trace, as text under HEAD."""
    occupied = int(layout.occupied.max(initial=0))
    reserved = None if layout.reserved is None else int(layout.reserved.max(initial=0))
    overhead = "-"
    if layout.stopped is not None:
        overhead = "out of memory"
    elif reserved is not None and occupied:
        overhead = f"{100 * (reserved / occupied - 1):+.1f} %"
    return (layout.name, f"{len(layout):,}", f"{len(layout.born):,}", format_bytes(int(layout.live.max(initial=0))),
            format_bytes(occupied), "-" if reserved is None else format_bytes(reserved), overhead)
