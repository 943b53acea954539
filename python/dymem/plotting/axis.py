"""The time axis of a picture: which part of a trace is shown, and which event each column of pixels stands for.

Time is counted from the first event shown, so that the same iterations of several files lie below each other.
A column stands for the fullest instant of its span (most occupied bytes), so that no peak falls between two columns.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

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
        raise InvalidArgument(f"{layout.name} has no iterations marked: --from and --to cannot choose among them.")
    wanted = np.flatnonzero((iterations >= (first if first is not None else -1))
                            & (iterations <= (last if last is not None else np.iinfo(np.int32).max))
                            & ((iterations >= 0) | (first is None)))
    if not len(wanted):
        raise InvalidArgument(f"{layout.name} has no iterations from {first if first is not None else 'the first'} to "
                              f"{last if last is not None else 'the last'}; it has {iterations[marked].min()} to "
                              f"{iterations[marked].max()}.")
    return int(wanted[0]), int(wanted[-1]) + 1


def seconds_of(layout: Layout, span: tuple[int, int]) -> float:
    """From the first event of a span to its last."""
    time = layout.events["time"]
    return float(time[span[1] - 1] - time[span[0]]) / 1e9


def place_of(layout: Layout, kind: str, span: tuple[int, int]) -> np.ndarray:
    """Where each event lies on the axis; never backwards."""
    import numpy as np

    if kind == "time":
        return (layout.events["time"] - layout.events["time"][span[0]]) / 1e9
    return np.arange(len(layout), dtype=float)


def make_axis(layout: Layout, kind: str, columns: int, span: tuple[int, int], seconds: float = 0.0) -> Axis:
    """`columns` columns over the events [a, b) of `span`; of time, over at least `seconds`, so that panels share it."""
    import numpy as np

    a, b = span
    at = place_of(layout, kind, span)
    if kind == "time":
        left, right = 0.0, max(seconds, float(at[b - 1]), 1e-6)
    else:
        left, right = float(a), float(b)
    edges = np.linspace(left, right, columns + 1)
    bounds = np.minimum(np.searchsorted(at, edges, "left"), b)
    bounds[-1] = b
    instants = np.empty(columns, np.int64)
    for column, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist())):
        # Where nothing happens, it is as it was before.
        instants[column] = low + int(np.argmax(layout.occupied[low:high])) if high > low else low - 1
    if kind == "time":
        instants[edges[:-1] > at[b - 1]] = len(layout)  # this span has ended, that of another panel goes on
    return Axis(kind, left, right, span, instants)
