"""Two pictures of the paper from replays: memory step by step (figure 15), and failures against beta (table 2)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dymem.mobility import Facts
from dymem.plotting import needs
from dymem.replaying import replay_recording
from dymem.trace import Recording
from dymem.trace.snapshot import ALLOC, EVENT, FREE_COMPLETED, FREE_REQUESTED

from rows import SLAB, block_bytes, sources, untagged

MIB = 1 << 20
LABELS = {"best_fit": "best fit", "two_ends": "two ends, by class (GTBM)", "by_size": "two ends, by size",
          "grouped": "grouped (dymem)"}
AVERAGE_OVER = 9  # steps; the paper draws a moving average


def steps(recording: Recording, facts: Facts | None = None) -> dict[str, list[int]]:
    """Bytes after each allocation and free of the last whole iteration: live, and spanned under each placement. With the
    classes that `facts` give all of the run, if there are any."""
    *_, with_classes = sources(recording, facts).values()
    events = list(EVENT.iter_unpack(with_classes.events))
    last = max(event[7] for event in events)
    wanted = max(last - 1, 0)
    inside = [i for i, event in enumerate(events) if event[7] == wanted and event[4] in (ALLOC, FREE_REQUESTED, FREE_COMPLETED)]
    out: dict[str, list[int]] = {"live": []}
    live, held = 0, {}
    chosen = set(inside)
    for i, (_, block, size, _, kind, *_) in enumerate(events):
        if kind == ALLOC:
            held[block] = block_bytes(size)
            live += held[block]
        elif kind == FREE_REQUESTED:
            live -= held.pop(block, 0)
        if i in chosen:
            out["live"].append(live)
    plain = dataclasses.replace(recording, events=untagged(recording.events))
    for placement in LABELS:
        replayed = plain if placement == "best_fit" else with_classes
        spanned = memoryview(replay_recording(replayed, config=SLAB, placement=placement, layout=True)
                             ["layout"]["spanned"]).cast("Q")
        out[placement] = [spanned[i] for i in inside]
    return out


def moving_average(values: list[int], over: int = AVERAGE_OVER) -> list[float]:
    """Of each value and those around it, fewer at the ends."""
    half, out = over // 2, []
    for i in range(len(values)):
        window = values[max(0, i - half):i + half + 1]
        out.append(sum(window) / len(window))
    return out


def pyplot():
    needs.require()
    import matplotlib.pyplot as plt

    return plt


def draw_steps(name: str, by_step: dict[str, list[int]], target: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axes.fill_between(range(len(by_step["live"])), [n / MIB for n in moving_average(by_step["live"])], color="0.88", label="live")
    for placement, label in LABELS.items():
        style = {"best_fit": ("0.35", "--"), "two_ends": ("tab:orange", "-"), "by_size": ("tab:purple", ":"),
                 "grouped": ("tab:blue", "-")}[placement]
        axes.plot([n / MIB for n in moving_average(by_step[placement])], color=style[0], linestyle=style[1], label=label)
    axes.set_xlabel("step of one iteration (an allocation or a free)")
    axes.set_ylabel("used memory, MiB (moving average)")
    axes.set_title(f"{name}: from the ends of the pool to the last blocks in use", loc="left", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(target, dpi=130)
    plt.close(figure)


def draw_failures(rows: list[dict], target: Path) -> None:
    """Share of iterations that fail after the first, over all recordings whose shapes vary enough for one to fail."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for placement, label in LABELS.items():
        rates = mean_rates(rows, placement)
        axes.plot([int(beta) / 1e6 for beta in rates], [100 * rate for rate in rates.values()], marker="o", label=label)
    axes.set_xlabel("beta, MB")
    axes.set_ylabel("iterations that fail, %")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    axes.set_title("Failure rate against beta (table 2)", loc="left", fontsize=10)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def mean_rates(rows: list[dict], placement: str, restarts: bool = False) -> dict[str, float]:
    """beta -> failing iterations over all iterations of all recordings; `restarts`: with another beta after each failure."""
    failed: dict[str, float] = {}
    total = 0
    for row in rows:
        figures = row["placements"][placement]
        count = figures.get("iterations_after_first", 0)
        total += count
        for beta, rate in figures.get("failure_rates", {}).items():
            failed[beta] = failed.get(beta, 0.0) + (figures["failures_with_restarts"][beta] if restarts else rate * count)
    return {beta: n / total for beta, n in failed.items()} if total else {}
