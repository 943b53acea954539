"""The pictures by name, each drawn from Layouts into a figure of matplotlib."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from dymem.plotting.layout import Layout
from dymem.plotting.needs import require

PICTURES = {
    "address": "address over time: who lay where, and what was held for nothing",
    "bytes": "bytes over time, by class",
    "histogram": "sizes and lifetimes of blocks",
    "peak": "who holds the peak",
}


@dataclasses.dataclass
class Options:
    colour: str = "phase"
    x: str = "auto"
    first: int | None = None   # iterations, both included
    last: int | None = None


def draw(name: str, layouts: Sequence[Layout], options: Options, title: str | None = None):
    """matplotlib's Figure of one of PICTURES."""
    from dymem.plotting import address, histograms, over_time, peak

    require()
    from matplotlib.figure import Figure

    span = {"first": options.first, "last": options.last}
    if name == "address":
        return address.address_picture(layouts, title=title, colour=options.colour, x=options.x, **span)
    if name == "histogram":
        figure = Figure(figsize=(14, 0.6 + 4.2 * len(layouts)), layout="constrained")
        histograms.draw_histograms(figure, layouts, **span)
    elif name == "peak":
        figure = Figure(figsize=(14, 0.6 + 4.0 * len(layouts)), layout="constrained")
        peak.draw_peak(figure.subplots(len(layouts), 1, squeeze=False)[:, 0], layouts, **span)
    else:
        figure = Figure(figsize=(14, 1.4 + 3.2 * len(layouts)), layout="constrained")
        panels = figure.subplots(len(layouts), 1, squeeze=False, sharex=True)[:, 0]
        kind = address.kind_of_time(layouts, options.x)
        over_time.draw_bytes(panels, layouts, colour=options.colour, kind=kind, **span)
    if title:
        figure.suptitle(address.plain(title), x=0.01, ha="left", fontsize=14, fontweight="bold")
    return figure
