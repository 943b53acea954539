"""The pictures of `dymem compare`: step time over the cap, and who held which addresses. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Sequence

from dymem.plotting import needs
from dymem.rivals import ALLOCATORS

SLOWEST = 4.0  # where the axis of step times ends


def cap_curve(row: Mapping, target: Path) -> None:
    """Step time under each cap over PyTorch's without one; a cross at the top where it did not train."""
    needs.require()
    from matplotlib.figure import Figure

    from dymem.plotting.files import save_figure

    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    caps = [cell["cap"] for cell in row["caps"]]
    for position, name in enumerate(row["allocators"]):
        cells = [cell[name] for cell in row["caps"]]
        trained = [(cap, cell["ratio"]) for cap, cell in zip(caps, cells) if cell.get("ratio")]
        colour = f"C{position}"
        axes.plot([cap for cap, _ in trained], [min(ratio, SLOWEST) for _, ratio in trained], marker="o", color=colour,
                  label=ALLOCATORS[name].title)
        # Beside each other, so that one cross does not hide the next.
        failed = [cap + 0.0006 * position for cap, cell in zip(caps, cells) if cell["trains"] is False]
        axes.plot(failed, [SLOWEST * 0.97] * len(failed), linestyle="", marker="x", markersize=9, color=colour)
    axes.axhline(1.0, color="#888888", linewidth=0.8, zorder=0)
    axes.set(xlabel="hard cap / live peak of PyTorch without a cap", ylabel="step time / PyTorch without a cap",
             title=f"{row['workload']}: training under a hard cap (x: out of memory)", yscale="log")
    ticks = [0.9, 1.0, 1.05, 1.2, 1.5, 2.0, 3.0, 4.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.9, SLOWEST)
    axes.set_xticks(caps, [f"{cap:g}" for cap in caps])
    axes.legend(fontsize=9)
    save_figure(figure, target)


def address_over_time(workload: str, files: Sequence[tuple[str, Path]], target: Path) -> None:
    """One panel for each (allocator, recorded file): PyTorch's snapshots as they tell, dymem's traces replayed."""
    needs.require()
    from dymem.plotting.address import address_picture
    from dymem.plotting.layout import layout_of
    from dymem.plotting.replayed import replayed_layout
    from dymem.trace import load

    layouts = []
    for name, path in files:
        title = ALLOCATORS[name].title
        keys = getattr(ALLOCATORS[name], "keys", None)
        recording = load(path, layout=keys is None)[0]
        layouts.append(layout_of(recording, name=title) if keys is None
                       else replayed_layout(recording, name=title, config=keys))
    # By events: on a clock, building the model would fill the picture, and the steps a corner of it.
    address_picture(layouts, target, title=f"{workload}: who holds which addresses", x="event")


def replayed_addresses(recording_file: Path, target: Path, keys: Mapping[str, object] | None = None) -> None:
    """PyTorch's own layout as recorded, and below it dymem's from the replay, configured with `keys`."""
    needs.require()
    from dymem.plotting.address import address_picture
    from dymem.plotting.layout import layout_of
    from dymem.plotting.replayed import name_of_dymem, replayed_layout
    from dymem.trace import load

    recording = load(recording_file, layout=True)[0]
    keys = dict(keys or {})
    address_picture([layout_of(recording, name=f"{recording.name}, PyTorch"),
                     replayed_layout(recording, name=f"{recording.name}, {name_of_dymem(keys)}", config=keys)], target,
                    title=recording.name)
