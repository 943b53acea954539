"""Bytes over time: what live blocks hold, stacked by class, what is pending, and what the allocator reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from dymem.plotting import address, axis as axes_of_time, colours

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.axis import Axis
    from dymem.plotting.colours import Classes
    from dymem.plotting.layout import Layout

COLUMNS = 1200


def stacked(layout: Layout, axis: Axis, classes: Classes) -> np.ndarray:
    """Bytes, (classes + 1) × columns: of live blocks by class, and in the last row pending ones."""
    import numpy as np

    n = len(layout)
    at = np.clip(axis.instants, 0, n - 1)
    rows = [_held(n, layout, classes.of_block == i)[at] for i in range(len(classes.names))]
    rows.append(layout.occupied[at] - layout.live[at])
    out = np.array(rows)
    out[:, ~axis.within(layout)] = 0
    return out


def _held(n: int, layout: Layout, mine) -> np.ndarray:
    import numpy as np

    change = np.zeros(n + 1, np.int64)
    np.add.at(change, layout.born[mine], layout.size[mine])
    np.add.at(change, layout.freed[mine], -layout.size[mine])
    return np.cumsum(change[:n])


def draw_bytes(panels, layouts: Sequence[Layout], *, colour: str, kind: str, first: int | None = None,
               last: int | None = None) -> None:
    """On matplotlib's axes, one for each layout."""
    top = max(int(max(layout.occupied.max(), layout.reserved.max() if layout.reserved is not None else 0, 1))
              for layout in layouts)
    unit, unit_name = address.unit_of(top)
    named: dict[str, str] = {}
    axes = axes_of_time.shared_axes(layouts, kind, COLUMNS, first, last)
    for panel, layout, axis in zip(panels, layouts, axes):
        classes = colours.classify(layout, colour)
        of_name = address.shared_colours(classes, named)
        panel.stackplot(axis.positions(), stacked(layout, axis, classes) / unit, step="post", linewidth=0,
                        colors=[*of_name, colours.PENDING_COLOUR])
        address.draw_lines(panel, layout, axis, unit)
        panel.set_ylabel(f"bytes, {unit_name}")
        panel.set_ylim(0, top / unit * 1.07)
        panel.set_xlim(axis.left, axis.right)
        panel.set_title(address.caption(layout, axis), loc="left", fontsize=11)
        address.mark_iterations(panel, layout, axis)
    panels[-1].set_xlabel(axes_of_time.label(axes))
    address.legend(panels[0], named, pending=any((layout.ended > layout.freed).any() for layout in layouts), idle=False)
