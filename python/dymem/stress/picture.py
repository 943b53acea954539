"""The smallest limits as a picture: a heat map, a row for each pattern, a column for each allocator or setting.

matplotlib is imported when a picture is asked for. Colours end at END: what needs more looks the same, its figure says
how much it is.
"""

from __future__ import annotations

from pathlib import Path

from dymem.plotting.files import save_figure

END = 1.5


def draw(path: Path, rows: list[str], columns: list[str], ratios: list[list[float | None]], words: list[list[str]],
         title: str) -> None:
    """`ratios[row][column]`, None where there is none; `words` is what stands in the cells. A .png, .svg or .pdf."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 + 1.15 * len(columns), max(3.0, 1.6 + 0.42 * len(rows))), layout="constrained")
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
    figure.colorbar(image, ax=axes, label=f"limit / occupied peak\n({END:g} and more look alike)")
    save_figure(figure, path)
