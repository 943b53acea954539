"""Step time and memory of two allocators side by side on one card: two processes, their steps taking turns (A B, B A, …).

    python bench/paired.py resnet50_b128 llama_varlen --pairs 3 --budget-seconds 300 --out bench/results

For each workload: first one deterministic pair, whose losses must be equal bit for bit; then timed pairs. The ratio of a
pair is (sum of its warm steps under B) / (the same steps under A); the figure is the median over pairs, with a bootstrap
95 % upper bound over the pairs (steps resampled within them). Writes OUT/paired-WORKLOAD.json after every pair, so that
a run cut short leaves what it measured. Where both do not fit on the card at once, `--apart` runs one process after the
other. Exit 0: everything ran; 1: a run failed or losses differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from checks import check_targets, stop
from train import ALLOCATORS, OTHER_END_GONE, Dymem
from trainer import Trainer

from dymem._core import driver
from dymem.compare.figures import Pair, losses_compared, median, overhead, pair_ratio, step_ratio, upper_bound

HERE = Path(__file__).resolve().parent


# --- figures (pure)


def summarise(runs: list[dict], check: dict[str, dict]) -> dict:
    """One workload's figures from its timed runs ({"a": …, "b": …} per pair) and its deterministic pair."""
    pairs: list[Pair] = []
    for run in runs:
        warm = run["a"]["warm_from"]
        pairs.append((run["a"]["step_seconds"][warm:], run["b"]["step_seconds"][warm:]))
    ratios = [pair_ratio(p) for p in pairs]
    summary: dict[str, object] = {"pairs": len(pairs), "ratios": [round(r, 5) for r in ratios]}
    if pairs:
        summary |= {"ratio_median": round(median(ratios), 5), "ratio_upper_95": round(upper_bound(pairs), 5),
                    "step_ratio_median": round(step_ratio(pairs), 5)}
        summary["smallest_occupied_peak_bytes"] = min(r[s]["occupied_peak_bytes"] for r in runs for s in "ab")
    for side in "ab":
        if not runs:
            break
        mine = [run[side] for run in runs]
        reserved, occupied = (max(r[key] for r in mine) for key in ("reserved_peak_bytes", "occupied_peak_bytes"))
        summary[side] = {"allocator": mine[0]["allocator"], "step_ms": round(median([r["step_ms"] for r in mine]), 4),
                         "live_peak_bytes": max(r["live_peak_bytes"] for r in mine), "occupied_peak_bytes": occupied,
                         "reserved_peak_bytes": reserved, "overhead": overhead(reserved, occupied),
                         "reserved_over_smallest_occupied": reserved / summary["smallest_occupied_peak_bytes"]}
    if check:
        summary |= losses_compared(check["a"]["losses"], check["b"]["losses"])
    return summary


# --- running


class Budget:
    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.longest = 0.0

    def allows(self, expected: float = 0.0) -> bool:
        return time.monotonic() + (expected or self.longest) < self.end

    def left(self) -> float:
        return max(5.0, self.end - time.monotonic())


def is_dymem(allocator: str) -> bool:
    return isinstance(ALLOCATORS[allocator], Dymem)


def train(workload: str, allocators: list[str], options: argparse.Namespace, budget: Budget,
          deterministic: bool = False) -> list[dict]:
    """Trains under all of `allocators` at once, steps taking turns; what each measured, in the order given."""
    more = ["--deterministic"] if deterministic else []
    if options.iterations:
        more += ["--iterations", str(options.iterations)]
    if options.shapes:
        more += ["--shapes", str(options.shapes)]
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        trainers = [stack.enter_context(Trainer(
            workload, allocator, *more, *(["--conf", options.conf] if options.conf and is_dymem(allocator) else []),
            seconds=budget.left())) for allocator in allocators]
        going = all([trainer.ready() for trainer in trainers])
        turns = trainers
        while going:
            going = all([trainer.step() for trainer in turns])
            turns = turns[::-1]
        results = [trainer.result() for trainer in trainers]
    budget.longest = max(budget.longest, time.monotonic() - start)
    return results


def show(sentence: str) -> None:
    print(sentence, flush=True)


def measure(workload: str, options: argparse.Namespace, budget: Budget) -> bool:
    """Runs one workload's pairs; returns whether all went well. Writes the JSON as it goes."""
    names = dict(zip("ab", options.allocators))
    runs: list[dict] = []
    errors: list[str] = []
    check: dict[str, dict] = {}

    def save() -> dict:
        summary = summarise(runs, check)
        report = {"workload": workload, "allocators": options.allocators, "commit": os.environ.get("DYMEM_COMMIT", ""),
                  "conf": options.conf, "apart": options.apart, "shapes": options.shapes,
                  "summary": summary, "errors": errors, "deterministic": check, "runs": runs}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"paired-{workload}{options.suffix}.json").write_text(json.dumps(report, indent=1) + "\n")
        return summary

    def one_pair(deterministic: bool, flipped: bool) -> dict[str, dict] | None:
        sides = "ba" if flipped else "ab"
        groups = list(sides) if options.apart else [sides]
        pair = {}
        for group in groups:
            pair |= zip(group, train(workload, [names[side] for side in group], options, budget, deterministic))
        for side in sides:
            # The sound half of a pair ends with the other; that is no error of its own.
            if "error" in pair[side] and OTHER_END_GONE not in pair[side]["error"]:
                errors.append(f"{names[side]}: {pair[side]['error']}")
                show(f"  {workload} under {names[side]}: {pair[side]['error']}")
                if pair[side].get("stderr"):
                    show(pair[side]["stderr"])
        return None if any("error" in pair[side] for side in sides) else pair

    if not options.no_losses:
        check = one_pair(deterministic=True, flipped=False) or {}
        if check:
            show(f"  {workload}: losses {'equal' if summarise([], check)['losses_equal'] else 'DIFFER'}")
    for k in range(options.pairs):
        if k and not budget.allows((2 if options.apart else 1) * budget.longest):
            show(f"  {workload}: stopped after {k} pairs, the budget is spent")
            break
        pair = one_pair(deterministic=False, flipped=k % 2 == 1)
        if pair is None:
            break
        runs.append(pair)
        show(f"  {workload}: pair {k + 1}: {names['a']} {pair['a']['step_ms']:.2f} ms, {names['b']} "
             f"{pair['b']['step_ms']:.2f} ms, ratio {pair_ratio(tuple(_warm(pair))):.4f}")
        save()
    summary = save()
    if runs:
        for side in "ab":
            figures = summary[side]
            show(f"  {workload}: {figures['allocator']:<10} reserved {figures['reserved_peak_bytes'] / 2**20:,.0f} MiB, "
                 f"occupied {figures['occupied_peak_bytes'] / 2**20:,.0f} MiB, overhead {figures['overhead']:.2%}, "
                 f"reserved / smallest occupied {figures['reserved_over_smallest_occupied']:.3f}")
        show(f"  {workload}: step time ratio {summary['ratio_median']:.4f}, 95 % upper bound "
             f"{summary['ratio_upper_95']:.4f}, typical step {summary['step_ratio_median']:.4f}")
    return not errors and summary.get("losses_equal", True) and bool(runs)


def _warm(pair: dict[str, dict]) -> tuple[list[float], list[float]]:
    warm = pair["a"]["warm_from"]
    return pair["a"]["step_seconds"][warm:], pair["b"]["step_seconds"][warm:]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two allocators side by side, their steps taking turns on one card.")
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--allocators", default="native,dymem", help="A,B: B is compared with A (default native,dymem)")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="one process after the other: for a card too small for both")
    parser.add_argument("--iterations", type=int, help="default: each workload's own number")
    parser.add_argument("--shapes", type=int, default=0, metavar="N",
                        help="only N shapes, again and again; steps from the second visit of each on are timed")
    parser.add_argument("--budget-seconds", type=float, default=540.0, help="for all workloads; shared out evenly")
    parser.add_argument("--conf", default=None, help="dymem's configuration, key:value,…")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--suffix", default="", help="added to the names of the files written")
    parser.add_argument("--no-losses", action="store_true", help="leave out the deterministic pair")
    options = parser.parse_args(argv)
    options.allocators = options.allocators.split(",")
    for name in options.allocators:
        if name not in ALLOCATORS:
            parser.error(f"there is no allocator '{name}'; there are {', '.join(ALLOCATORS)}")
    if len(options.allocators) != 2 or options.pairs < 1:
        parser.error("--allocators takes two names, --pairs at least 1")
    return options


def main() -> int:
    options = parse_arguments()
    if not driver.cuda_device_count():
        stop("there is no GPU here, and training needs one.")
    check_targets(folder=options.out)
    end = time.monotonic() + options.budget_seconds
    well = True
    for position, workload in enumerate(options.workloads):
        share = (end - time.monotonic()) / (len(options.workloads) - position)
        show(f"{workload}: at most {share:.0f} s")
        well &= measure(workload, options, Budget(share))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
