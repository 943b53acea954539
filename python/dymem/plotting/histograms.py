"""How large blocks are and how long they live: counts, and the bytes that they are of, in bins of powers of two."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Sequence

from dymem.config import format_bytes
from dymem.plotting import axis as axes_of_time

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.layout import Layout

_SIZE_LOWEST = 9   # 512 B
_LIFE_LOWEST = 10  # about a microsecond, in ns


@dataclasses.dataclass
class Bins:
    names: list[str]      # the upper edge of each
    blocks: np.ndarray    # how many
    bytes: np.ndarray     # of how many bytes


def size_bins(layout: Layout, span: tuple[int, int]) -> Bins:
    """Blocks allocated in the span, by size: bin i holds those above 2^(i-1) and up to 2^i times 512 B."""
    mine = _allocated(layout, span)
    return _bins(layout.size[mine], layout.size[mine], _SIZE_LOWEST,
                 lambda edge: format_bytes(edge).replace(".00", "").replace(".0", ""))


def lifetime_bins(layout: Layout, span: tuple[int, int]) -> Bins:
    """Blocks allocated in the span and freed at all, by ns from allocation to free; the last bin: never freed."""
    import numpy as np

    mine = _allocated(layout, span)
    time, n = layout.events["time"], len(layout)
    kept = mine & (layout.freed >= n)
    ended = mine & ~kept
    life = time[np.minimum(layout.freed[ended], n - 1)] - time[layout.born[ended]]
    bins = _bins(life, layout.size[ended], _LIFE_LOWEST, _duration)
    return Bins([*bins.names, "kept"], np.append(bins.blocks, kept.sum()),
                np.append(bins.bytes, layout.size[kept].sum()))


def _allocated(layout: Layout, span: tuple[int, int]):
    return (layout.born >= span[0]) & (layout.born < span[1])


def _bins(values, weights, lowest: int, name) -> Bins:
    import numpy as np

    power = np.ceil(np.log2(np.maximum(values, 1).astype(float))).astype(np.int64) - lowest
    power = np.maximum(power, 0)
    count = int(power.max(initial=0)) + 1
    return Bins([name(1 << (lowest + i)) for i in range(count)], np.bincount(power, minlength=count),
                np.bincount(power, weights, minlength=count).astype(np.int64))


def _duration(ns: int) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns} ns"


def draw_histograms(figure, layouts: Sequence[Layout], *, first: int | None = None, last: int | None = None) -> None:
    """A row for each layout: sizes on the left, lifetimes on the right; bars are counts, dots are bytes."""
    panels = figure.subplots(len(layouts), 2, squeeze=False)
    for row, layout in zip(panels, layouts):
        span = axes_of_time.chosen_events(layout, first, last)
        _draw(row[0], size_bins(layout, span), "size of a block, up to", f"{layout.name}: sizes")
        _draw(row[1], lifetime_bins(layout, span), "lifetime, up to", f"{layout.name}: lifetimes")


def _draw(panel, bins: Bins, label: str, title: str) -> None:
    import numpy as np

    from dymem.plotting.address import plain

    at = np.arange(len(bins.names))
    panel.bar(at, bins.blocks, color="#56b4e9", width=0.8)
    panel.set_ylabel("blocks (bars)")
    panel.set_xticks(at, bins.names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    panel.set_xlabel(label)
    panel.set_title(plain(title), loc="left", fontsize=11)
    other = panel.twinx()
    other.plot(at, bins.bytes / (1 << 30), "o-", color="#d55e00", markersize=4, linewidth=1)
    other.set_ylabel("GiB allocated in all (dots)")
    other.set_ylim(bottom=0)
