"""The time axis of a picture: which part of a trace is shown, and which event each column of pixels stands for.

A column stands for the fullest instant of its span (most occupied bytes), so that no peak falls between two columns.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dymem.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.layout import Layout


LABELS = {"event": "time, in events of the allocator", "time": "time, in seconds"}


@dataclasses.dataclass
class Axis:
    kind: str              # "event" or "time"
    left: float            # in events, or seconds
    right: float
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


def make_axis(layout: Layout, kind: str, columns: int, span: tuple[int, int] | None = None,
              seconds: tuple[float, float] | None = None) -> Axis:
    """`columns` columns over the events [a, b) of `span`, or over `seconds` where panels share one clock."""
    import numpy as np

    a, b = span or (0, len(layout))
    if kind == "time":
        at = layout.events["time"] / 1e9
        left, right = seconds or (float(at[a]), float(at[b - 1]))
    else:
        at = np.arange(len(layout), dtype=float)
        left, right = float(a), float(b)
    if right <= left:
        right = left + (1e-6 if kind == "time" else 1)
    edges = np.searchsorted(at, np.linspace(left, right, columns + 1), "left")
    edges[-1] = max(edges[-1], b) if seconds is None else edges[-1]
    edges = np.minimum(edges, b)
    instants = np.empty(columns, np.int64)
    for column in range(columns):
        low, high = int(edges[column]), int(edges[column + 1])
        if high > low:
            instants[column] = low + int(np.argmax(layout.occupied[low:high]))
        else:
            instants[column] = low - 1  # nothing happens here: as it was before
    if right > at[b - 1] and kind == "time":  # this trace has ended, others go on
        instants[np.linspace(left, right, columns + 1)[:-1] > at[b - 1]] = len(layout)
    return Axis(kind, left, right, instants)
