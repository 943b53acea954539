"""Who holds the peak: the blocks that are there when most bytes are occupied, one by one and grouped.

Grouped by the line of Python that allocated them where the recording has stacks, else by phase and iteration.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Sequence

from dymem.config import format_bytes
from dymem.plotting import axis as axes_of_time, colours

if TYPE_CHECKING:
    from dymem.plotting.layout import Layout

ROWS_MAX = 15


@dataclasses.dataclass
class Holder:
    who: str
    blocks: int
    bytes: int
    largest: int    # bytes
    phase: str


@dataclasses.dataclass
class Peak:
    name: str
    event: int          # the state after it
    iteration: int      # -1: before the first
    seconds: float      # since the first event
    bytes: int          # occupied
    reserved: int | None
    groups: list[Holder]   # most bytes first
    largest: list[Holder]  # single blocks
    by_line: bool          # grouped by lines of Python


def peak_of(layout: Layout, first: int | None = None, last: int | None = None) -> Peak:
    """The peak within the iterations first … last."""
    import numpy as np

    a, b = axes_of_time.chosen_events(layout, first, last)
    event = a + int(np.argmax(layout.occupied[a:b]))
    held = np.flatnonzero((layout.born <= event) & (layout.ended > event))
    classes = colours.classify(layout, "phase")
    by_line = bool(layout.frame[held].any())
    iterations = layout.events["iteration"][layout.born]
    groups: dict[str, Holder] = {}
    single = []
    for block in held.tolist():
        phase, size = classes.names[classes.of_block[block]], int(layout.size[block])
        iteration = int(iterations[block])
        when = phase if iteration < 0 else f"{phase}, iteration {iteration}"
        line = layout.frames[layout.frame[block] - 1] if layout.frame[block] else ""
        who = (line or "not told") if by_line else when
        group = groups.setdefault(who, Holder(who, 0, 0, 0, phase))
        group.blocks += 1
        group.bytes += size
        group.largest = max(group.largest, size)
        single.append(Holder(f"{line} ({when})" if line else when, 1, size, size, phase))
    return Peak(layout.name, event, int(layout.events["iteration"][event]), float(layout.events["time"][event]) / 1e9,
                int(layout.occupied[event]), None if layout.reserved is None else int(layout.reserved[event]),
                sorted(groups.values(), key=lambda g: (-g.bytes, g.who)),
                sorted(single, key=lambda h: (-h.bytes, h.who))[:ROWS_MAX], by_line)


def rows(peak: Peak, most: int = ROWS_MAX) -> list[tuple[str, str, str, str, str]]:
    """(who, blocks, bytes, share of the peak, largest block), the last row for all that are not shown."""
    def row(who: str, blocks: int, bytes_: int, largest: int):
        share = f"{100 * bytes_ / max(peak.bytes, 1):.1f} %"
        return who, f"{blocks:,}", format_bytes(bytes_), share, format_bytes(largest)

    shown, rest = peak.groups[:most], peak.groups[most:]
    table = [row(g.who, g.blocks, g.bytes, g.largest) for g in shown]
    if rest:
        table.append(row(f"{len(rest):,} more", sum(g.blocks for g in rest), sum(g.bytes for g in rest),
                         max(g.largest for g in rest)))
    return table


def sentence(peak: Peak) -> str:
    """When the peak is, and how much of the device is reserved then."""
    where = f"in iteration {peak.iteration}" if peak.iteration >= 0 else "outside of marked iterations"
    text = f"{peak.name}: {format_bytes(peak.bytes)} occupied at event {peak.event:,} ({peak.seconds:.2f} s, {where})"
    return text + ("." if peak.reserved is None else f", {format_bytes(peak.reserved)} reserved then.")


def draw_peak(panels, layouts: Sequence[Layout], *, first: int | None = None, last: int | None = None) -> None:
    """A bar for each group, most bytes on top."""
    from dymem.plotting.address import plain, shared_colours, unit_of

    named: dict[str, str] = {}
    peaks = [peak_of(layout, first, last) for layout in layouts]
    most = max(min(len(peak.groups), ROWS_MAX) for peak in peaks)
    for panel, layout, peak in zip(panels, layouts, peaks):
        shared_colours(colours.classify(layout, "phase"), named)
        groups = peak.groups[:ROWS_MAX]
        unit, unit_name = unit_of(max((g.bytes for g in groups), default=1))
        at = range(len(groups))
        panel.barh(at, [g.bytes / unit for g in groups], color=[named[g.phase] for g in groups], height=0.7)
        panel.set_yticks(at, [plain(g.who) for g in groups], fontsize=8)
        panel.set_ylim(most - 0.4, -0.6)
        for y, group in zip(at, groups):
            panel.annotate(f"{format_bytes(group.bytes)}, {group.blocks:,} block{'s' * (group.blocks != 1)}",
                           (group.bytes / unit, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        panel.set_xlabel(f"bytes held at the peak, {unit_name}")
        panel.margins(x=0.16)
        panel.set_title(plain(sentence(peak)), loc="left", fontsize=11)
