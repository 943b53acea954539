"""The smallest limits as a picture: a heat map, a row for each pattern, a column for each allocator or setting.

matplotlib is imported when a picture is asked for. Colours end at END: what needs more looks the same, its figure says
how much it is.
"""

from __future__ import annotations

from pathlib import Path

from dymem.errors import InvalidArgument

END = 1.5


def draw(path: Path, rows: list[str], columns: list[str], ratios: list[list[float | None]], words: list[list[str]],
         title: str) -> None:
    """`ratios[row][column]`, None where there is none; `words` is what stands in the cells."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 + 1.15 * len(columns), 1.6 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = [[float("nan") if ratio is None else min(ratio, END) for ratio in line] for line in ratios]
    image = axes.imshow(shown, cmap="YlOrRd", vmin=1.0, vmax=END, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    for y, line in enumerate(ratios):
        best = min((ratio for ratio in line if ratio is not None), default=None)
        for x, ratio in enumerate(line):
            axes.text(x, y, words[y][x], ha="center", va="center", fontsize=8,
                      fontweight="bold" if ratio is not None and ratio == best else "normal",
                      color="white" if ratio is not None and ratio > 1 + 0.7 * (END - 1) else "black")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label=f"smallest limit / occupied peak ({END:g} and more look alike)")
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # a suffix that is no kind of picture
        raise InvalidArgument(f"{path} is no name for a picture: {str(error).splitlines()[0]}; write .png, .svg or .pdf."
                              ) from None
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}.") from None
