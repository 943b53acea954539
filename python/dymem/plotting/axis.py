"""The time axis of a picture: which part of a trace is shown, and which event each column of pixels stands for.

Panels below each other have one axis, as long as the longest needs, and their columns are over all of it. Seconds are
counted from the first event shown, and so are events where the panels are of different traces, so that the same
iterations of several files lie below each other. Panels of one trace keep the numbers that its events have in captions.
A column stands for the fullest instant of its span (most occupied bytes), so that no peak falls between two columns.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Sequence

from dymem.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.layout import Layout


LABELS = {"event": "time, in events of the allocator", "time": "time, in seconds since the first event shown"}


@dataclasses.dataclass
class Axis:
    kind: str              # "event" or "time"
    left: float            # in events, or seconds since the first event shown
    right: float
    span: tuple[int, int]  # the events [a, b) that are shown
    origin: int            # the event at 0
    instants: np.ndarray   # for each column the event after which it is; -1 = before the first event

    def within(self, layout: Layout) -> np.ndarray:
        """Which columns show a state of the layout: not before its first event, nor after its end."""
        return (self.instants >= 0) & (self.instants < len(layout))

    def positions(self) -> np.ndarray:
        """Where each column begins, in events or seconds."""
        import numpy as np

        return np.linspace(self.left, self.right, len(self.instants) + 1)[:-1]

    def column(self, event):
        """The first column that shows the state after `event` (an array of them)."""
        import numpy as np

        return np.searchsorted(self.instants, event, "left")


def chosen_events(layout: Layout, first: int | None, last: int | None) -> tuple[int, int]:
    """The events [a, b) of the iterations first … last, both included; None = from the beginning, to the end."""
    import numpy as np

    iterations = layout.events["iteration"]
    if first is None and last is None:
        return 0, len(layout)
    marked = np.flatnonzero(iterations >= 0)
    if not len(marked):
        raise InvalidArgument(f"{layout.whole_name} has no iterations marked: --from and --to cannot choose among "
                              "them.")
    wanted = np.flatnonzero((iterations >= (first if first is not None else -1))
                            & (iterations <= (last if last is not None else np.iinfo(np.int32).max))
                            & ((iterations >= 0) | (first is None)))
    if not len(wanted):
        raise InvalidArgument(f"{layout.whole_name} has no iterations from "
                              f"{first if first is not None else 'the first'} to "
                              f"{last if last is not None else 'the last'}; it has {iterations[marked].min()} to "
                              f"{iterations[marked].max()}.")
    return int(wanted[0]), int(wanted[-1]) + 1


def same_trace(layouts: Sequence[Layout]) -> bool:
    """Do all show the same events?"""
    return all(layout.source == layouts[0].source for layout in layouts)


def shared_axes(layouts: Sequence[Layout], kind: str, columns: int, first: int | None, last: int | None) -> list[Axis]:
    """An axis for each layout, all from the same left to the same right: where one ends, the others may go on."""
    spans = [chosen_events(layout, first, last) for layout in layouts]
    origins = [0 if kind == "event" and same_trace(layouts) else span[0] for span in spans]
    given = list(zip(layouts, spans, origins))
    every = [ends_of(layout, kind, span, origin) for layout, span, origin in given]
    ends = min(left for left, _ in every), max(right for _, right in every)
    return [make_axis(layout, kind, columns, span, origin, ends) for layout, span, origin in given]


def label(axes: Sequence[Axis]) -> str:
    """What stands below the panels."""
    from_first = axes[0].kind == "event" and any(axis.origin for axis in axes)
    return LABELS[axes[0].kind] + (" since the first one shown" if from_first else "")


def ends_of(layout: Layout, kind: str, span: tuple[int, int], origin: int) -> tuple[float, float]:
    """Where a span begins and ends on an axis."""
    a, b = span
    if kind == "event":
        return float(a - origin), float(b - origin)
    at = place_of(layout, kind, origin)
    return float(at[a]), max(float(at[b - 1]), float(at[a]) + 1e-6)


def place_of(layout: Layout, kind: str, origin: int) -> np.ndarray:
    """Where each event lies on the axis; never backwards."""
    import numpy as np

    if kind == "time":
        return (layout.events["time"] - layout.events["time"][origin]) / 1e9
    return np.arange(len(layout), dtype=float) - origin


def make_axis(layout: Layout, kind: str, columns: int, span: tuple[int, int], origin: int = 0,
              ends: tuple[float, float] | None = None) -> Axis:
    """`columns` columns from `ends[0]` to `ends[1]`, which panels share; as long as its events [a, b) unless given."""
    import numpy as np

    a, b = span
    at = place_of(layout, kind, origin)
    begin, end = ends_of(layout, kind, span, origin)
    left, right = ends or (begin, end)
    edges = np.linspace(left, right, columns + 1)
    bounds = np.clip(np.searchsorted(at, edges, "left"), a, b)
    bounds[-1] = b
    instants = np.empty(columns, np.int64)
    for column, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist())):
        # Where nothing happens, it is as it was before.
        instants[column] = low + int(np.argmax(layout.occupied[low:high])) if high > low else low - 1
    # Nothing where this span has not begun, or has ended and that of another panel goes on. In seconds its last event
    # takes no time, and has its column all the same.
    instants[edges[1:] <= begin] = -1
    instants[edges[:-1] >= end if kind == "event" else edges[:-1] > at[b - 1]] = len(layout)
    return Axis(kind, left, right, span, origin, instants)
