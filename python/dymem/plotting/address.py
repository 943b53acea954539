"""Address over time: every block where it lay in device memory, from when it was allocated to when it ended.

Coloured = held by a block; grey = held of the device for no block: fragmentation at a glance. The black line is what
blocks occupy, the red one what the allocator reserved; the distance between them is the area of the grey.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from dymem.config import format_bytes
from dymem.errors import InvalidArgument
from dymem.plotting import axis as axes_of_time
from dymem.plotting import colours, raster
from dymem.plotting.layout import Layout
from dymem.plotting.needs import require
from dymem.plotting.replayed import layout_for

if TYPE_CHECKING:
    from dymem.trace import Recording

# Pixels of a panel's array: fewer than the panel has on paper from 120 dpi on. More would be thinned out when it is drawn,
# and with them blocks of a single row, in one panel other ones than in the next.
COLUMNS, ROWS, ROWS_OF_SEVERAL = 1600, 544, 384
_DIP = 6                   # pixels: dips of the line of occupied bytes that are narrower are left out
_NUMBERS = 24              # numbers of iterations that can be read side by side; the first, "iteration 0", takes more


def address_picture(recording: Recording | Layout | Sequence[Recording | Layout], target: str | Path | None = None, *,
                    title: str | None = None, colour: str = "phase", x: str = "auto", first: int | None = None,
                    last: int | None = None, dpi: int = 130):
    """Draws one panel for each recording (load(path, layout=True)) or Layout, below each other on one time axis.

    A recording without addresses (dymem's own) is drawn as dymem's pool places it. For other allocators, make a Recording
    of events and their addresses, or a Layout with a name of its own: layout_of(recording, name).
    `target`: a .png, .svg or .pdf, written whole or not at all; None = only the figure (matplotlib's) is returned.
    `title` stands above all panels. `colour`: "phase", "mobility", "size" or "stream". `x`: "event", "time" or "auto"
    (events, where all panels replay the same ones). `first` and `last`: iterations to show, both included.
    """
    require()
    from matplotlib.figure import Figure

    given = [recording] if isinstance(recording, Layout) or hasattr(recording, "events") else list(recording)
    layouts = [each if isinstance(each, Layout) else layout_for(each) for each in given]
    kind = kind_of_time(layouts, x)
    figure = Figure(figsize=(14, 1.6 + (4.8 if len(layouts) == 1 else 3.8) * len(layouts)), layout="constrained")
    panels = figure.subplots(len(layouts), 1, squeeze=False, sharex=True)[:, 0]
    draw_addresses(panels, layouts, colour=colour, kind=kind, first=first, last=last)
    if title:
        figure.suptitle(plain(title), x=0.01, ha="left", fontsize=14, fontweight="bold")
    if target is not None:
        from dymem.plotting.files import save_figure

        save_figure(figure, target, dpi)
    return figure


def kind_of_time(layouts: Sequence[Layout], x: str) -> str:
    """"event" or "time"; "auto" is events where all layouts are of the same ones."""
    if x not in ("auto", *axes_of_time.LABELS):
        raise InvalidArgument(f"the time axis cannot be '{x}'; choose event, time or auto.")
    return x if x != "auto" else "event" if axes_of_time.same_trace(layouts) else "time"


def draw_addresses(panels, layouts: Sequence[Layout], *, colour: str, kind: str, first: int | None = None,
                   last: int | None = None) -> None:
    """On matplotlib's axes, one for each layout: the same time, the same scale of bytes, one legend."""
    top = max(layout.top for layout in layouts)
    named: dict[str, str] = {}
    axes = axes_of_time.shared_axes(layouts, kind, COLUMNS, first, last)
    for panel, layout, axis in zip(panels, layouts, axes):
        classes = colours.classify(layout, colour)
        of_name = shared_colours(classes, named)
        _draw_panel(panel, layout, axis, classes, of_name, top, ROWS if len(layouts) == 1 else ROWS_OF_SEVERAL)
    panels[-1].set_xlabel(axes_of_time.label(axes))
    legend(panels[0], named, pending=any((layout.ended > layout.freed).any() for layout in layouts), idle=True)


def shared_colours(classes: colours.Classes, named: dict[str, str]) -> list[str]:
    """A colour for each class; the same name has the same colour in every panel."""
    for name in classes.names:
        named.setdefault(name, colours.PALETTE[len(named) % len(colours.PALETTE)])
    return [named[name] for name in classes.names]


def _draw_panel(panel, layout: Layout, axis: axes_of_time.Axis, classes: colours.Classes, of_name: list[str],
                top: int, rows: int) -> None:
    import numpy as np
    from matplotlib.colors import to_rgb

    picture = raster.rasterise(layout, axis, classes, rows, top)
    palette = np.array([to_rgb(c) for c in (colours.NOTHING_COLOUR, colours.IDLE_COLOUR, colours.PENDING_COLOUR,
                                            *of_name)])
    unit, name = unit_of(top)
    panel.imshow((palette[picture] * 255).round().astype(np.uint8), origin="lower", aspect="auto",
                 interpolation="nearest", extent=(axis.left, axis.right, 0, top / unit))
    draw_lines(panel, layout, axis, unit)
    panel.set_ylabel(f"device memory, {name}")
    panel.set_ylim(0, top / unit * 1.07)
    panel.set_xlim(axis.left, axis.right)
    panel.set_title(caption(layout, axis), loc="left", fontsize=11)
    mark_iterations(panel, layout, axis)


def draw_lines(panel, layout: Layout, axis: axes_of_time.Axis, unit: int) -> None:
    """Occupied and reserved bytes, with a rim of white so that they stand out from the blocks.

    Occupied bytes without narrow dips: a line that follows all of them would be all that is seen of a dense picture."""
    from matplotlib.patheffects import withStroke

    shown, at = axis.within(layout), axis.positions()
    for bytes_, colour in ((layout.occupied, colours.LIVE_LINE), (layout.reserved, colours.RESERVED_LINE)):
        if bytes_ is not None:
            line = bytes_[axis.instants[shown]] / unit
            panel.plot(at[shown], peaks(line, _DIP) if bytes_ is layout.occupied else line, color=colour,
                       linewidth=1.2, path_effects=[withStroke(linewidth=2.8, foreground="white")])


def peaks(line, width: int):
    """The line without dips narrower than `width` columns: the highest around each, then the lowest of those."""
    import numpy as np

    if width < 2 or not len(line):
        return line
    windows = np.lib.stride_tricks.sliding_window_view
    highest = windows(np.pad(line, width - 1, mode="edge"), width).max(axis=1)
    return windows(highest, width).min(axis=1)


def caption(layout: Layout, axis: axes_of_time.Axis) -> str:
    """The name, and the figures that the picture shows: peaks of the whole trace."""
    occupied = int(layout.occupied.max(initial=0))
    text = f"{plain(layout.name)}: occupied peak {format_bytes(occupied)}"
    if layout.reserved is not None:
        reserved = int(layout.reserved.max(initial=0))
        text += f", reserved peak {format_bytes(reserved)}"
        if occupied and layout.stopped is None:
            text += f", overhead {100 * (reserved / occupied - 1):+.1f} %"
    if axis.span != (0, len(layout)):
        text += " (of the whole trace)"
    if layout.stopped is not None:
        text += f"; out of memory at event {layout.stopped:,}"
    return text


def mark_iterations(panel, layout: Layout, axis: axes_of_time.Axis) -> None:
    """A thin line where an iteration begins, and its number, as many as can be read.

    Clipped: a number outside of the axes (of a figure that is zoomed into) would make them shrink to have room for it."""
    import numpy as np

    a, b = axis.span
    iterations = layout.events["iteration"][a:b]
    begins = np.flatnonzero(np.diff(iterations, prepend=-1) > 0)
    places = axes_of_time.place_of(layout, axis.kind, axis.origin)[a:b]
    width = axis.right - axis.left
    room = max(1, round(_NUMBERS * float(places[-1] - places[0]) / width))  # a short trace beside a long one has little
    every = max(1, -(-len(begins) // room))
    free = axis.left  # from here on no number stands yet
    for index, begin in enumerate(begins[::every].tolist()):
        x = float(places[begin])
        panel.axvline(x, color="#00000040", linewidth=0.7)
        if x < free:
            continue
        panel.annotate(f"{'iteration ' if index == 0 else ''}{iterations[begin]}", (x, 1),
                       xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points", fontsize=8,
                       va="top", color="#404040", annotation_clip=True)
        free = x + width * (1.3 if index == 0 else 0.7) / _NUMBERS


def legend(panel, named: dict[str, str], *, pending: bool, idle: bool) -> None:
    """One row of colours and lines above a panel, two where there are many."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in named.items()]
    if pending:
        handles.append(Patch(color=colours.PENDING_COLOUR, label="pending (freed, still in use)"))
    if idle:
        handles.append(Patch(color=colours.IDLE_COLOUR, label="reserved for no block"))
    handles.append(Line2D([], [], color=colours.LIVE_LINE, label="occupied bytes (peaks)"))
    handles.append(Line2D([], [], color=colours.RESERVED_LINE, label="reserved bytes"))
    columns = len(handles) if len(handles) <= 9 else -(-len(handles) // 2)
    panel.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.08), ncols=columns, fontsize=9,
                 frameon=False, borderaxespad=0, handlelength=1.2, columnspacing=1.4)


def unit_of(top: int) -> tuple[int, str]:
    """The unit that an axis up to `top` bytes is labelled in."""
    return (1 << 30, "GiB") if top >= 2 << 30 else (1 << 20, "MiB") if top >= 2 << 20 else (1 << 10, "KiB")


def plain(text: str) -> str:
    """As it is: no mathematics between dollars, and only what can be drawn."""
    return text.encode("utf-8", "replace").decode().replace("$", r"\$")
