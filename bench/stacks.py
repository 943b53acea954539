"""Step time of users' stacks under PyTorch's allocator and dymem: two processes on one card whose steps take turns.

    python bench/stacks.py --budget-seconds 500 --json stacks.json            every stack whose libraries are here
    python bench/stacks.py trainer_llama generate_dynamic --pairs 3 --steps 60
    python bench/stacks.py ddp --control                                      what the ratio is where nothing differs

    python bench/stacks.py amp --cpu                                          what dymem's Python costs, without a GPU

The scripts are those of tests/gpu/stacks, in their larger size, unchanged under `dymem run`. As in paired.py, the ratio
of a pair is (sum of its warm steps under dymem) / (the same under PyTorch), the figure is the median over pairs, with a
bootstrap 95 % upper bound. The budget is shared out evenly; what a stack leaves goes to those after it. The JSON file is
written after every pair. Exit 0: everything ran; 1: a run failed; with --bound, also where an upper bound is above it;
2: nothing can run here, and no file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]

from checks import check_targets, require, stop  # noqa: E402

from dymem.compare.figures import Pair, median, ratio_figures  # noqa: E402
from dymem.compare.turns import Turns  # noqa: E402

SIDES = {"native": "native", "dymem": "dymem"}    # of a pair, and the allocator of each
CONTROL = {"native": "native", "control": "native"}
FIRST_SECONDS = 150.0


def load_catalogue():
    spec = importlib.util.spec_from_file_location("stacks_catalogue", ROOT / "tests" / "gpu" / "stacks" / "catalogue.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


catalogue = load_catalogue()


def run_pair(stack, gpus: int, cache: Path, options: argparse.Namespace, seconds: float, flipped: bool) -> dict[str, dict]:
    """What each process told; with `error` in it if it did not end well."""
    environment = stack.environment(gpus, cache, STACK_TIMED="1", STACK_STEPS=str(options.steps))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    sides = list(options.sides.items())
    with contextlib.ExitStack() as stop:
        turns = {side: stop.enter_context(Turns(stack.command(allocator, gpus), environment, seconds))
                 for side, allocator in (sides[::-1] if flipped else sides)}
        going = all([each.ready() for each in turns.values()])
        order = list(turns.values())
        while going:
            going = all([each.step() for each in order])
            order = order[::-1]
        return {side: each.result() for side, each in turns.items()}


def warm(told: dict, from_: int) -> list[float]:
    return told["step_seconds"][from_:]


def summary(pairs: list[dict[str, dict]], sides: dict[str, str], from_: int) -> dict:
    both: list[Pair] = [tuple(warm(pair[side], from_) for side in sides) for pair in pairs]
    figures: dict[str, object] = {"pairs": len(pairs), **ratio_figures(both)}
    for side in sides:
        told = [pair[side] for pair in pairs]
        figures[side] = {"step_ms": round(1e3 * median([median(warm(one, from_)) for one in told]), 4),
                         "max_memory_allocated": max(one["max_memory_allocated"] for one in told)}
    return figures


def measure(name: str, gpus: int, options: argparse.Namespace, seconds: float, left: float, save) -> dict:
    """One stack; calls save(row) after each pair. The first pair may take more than its share: compiling does."""
    stack, end, longest = catalogue.STACKS[name], time.monotonic() + seconds, 0.0
    first = min(left, max(seconds, FIRST_SECONDS))
    row: dict[str, object] = {"stack": name, "pairs": 0}
    pairs: list[dict[str, dict]] = []
    with tempfile.TemporaryDirectory(prefix="dymem-stacks-") as folder:
        for number in range(options.pairs):
            rest = end - time.monotonic()
            if number and rest < longest:
                break
            began = time.monotonic()
            pair = run_pair(stack, gpus, Path(folder), options, rest if number else max(first, 10.0), flipped=number % 2 == 1)
            longest = max(longest, time.monotonic() - began)
            failed = {side: told for side, told in pair.items() if "error" in told}
            if failed:
                row["errors"] = [f"{side}: {told['error']}" for side, told in failed.items()]
                row["stderr"] = {side: told.get("stderr", "") for side, told in failed.items()}
                break
            wrong = [side for side, told in pair.items() if {rank["backend"] for rank in told["ranks"]} != {options.sides[side]}]
            if wrong:
                row["errors"] = [f"{wrong[0]}: a process ran under another allocator"]
                break
            pairs.append(pair)
            row |= summary(pairs, options.sides, options.warm_from) | {
                "device": pair["native"]["device"], "torch": pair["native"]["torch"],
                "graphs": {side: told.get("graphs") for side, told in pair.items()}}
            row["step_seconds"] = [{side: told["step_seconds"] for side, told in each.items()} for each in pairs]
            save(row)
    return row


def line(row: dict) -> str:
    if not row["pairs"]:
        return f"{row['stack']:<24} {'; '.join(row.get('errors', ['nothing ran']))[:120]}"
    steps = "  ".join(f"{side} {row[side]['step_ms']:8.2f} ms" for side in (*SIDES, "control") if side in row)
    return (f"{row['stack']:<24} {steps}  ratio "
            f"{row['ratio']:.4f}  95 % upper bound {row['ratio_upper_95']:.4f}  pairs {row['pairs']}"
            + (f"  then {row['errors'][0][:80]}" if "errors" in row else ""))


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Users' stacks, their steps taking turns under two allocators.")
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=f"of {', '.join(catalogue.STACKS)}; default: all")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-from", type=int, default=8, help="steps before this one are not timed (default 8)")
    parser.add_argument("--budget-seconds", type=float, default=540.0, help="for all together")
    parser.add_argument("--bound", type=float, help="exit 1 where an upper bound is above it, for example 1.01")
    parser.add_argument("--control", action="store_true", help="PyTorch's allocator against itself: what chance alone gives")
    parser.add_argument("--cpu", action="store_true", help="where there is no GPU: both sides compute on the CPU, so the "
                        "ratios tell what dymem's Python costs, no more")
    parser.add_argument("--json", type=Path, default=Path("stacks.json"))
    options = parser.parse_args(argv)
    options.sides = CONTROL if options.control else SIDES
    for name in options.stacks:
        if name not in catalogue.STACKS:
            parser.error(f"there is no stack '{name}'; there are {', '.join(catalogue.STACKS)}")
    if options.pairs < 1 or not 0 <= options.warm_from < options.steps:
        parser.error("--pairs is at least 1, and --warm-from lies before --steps")
    return options


def main() -> int:
    options = parse_arguments()
    check_targets(options.json)
    require("torch")
    end = time.monotonic() + options.budget_seconds
    gpus = catalogue.gpu_count()
    if not gpus and not options.cpu:
        stop("there is no GPU here; --cpu lets both sides compute on the CPU, which tells what dymem's Python costs, no more.")
    rows: list[dict] = []
    wanted = []
    for name in options.stacks or catalogue.STACKS:
        if reason := catalogue.STACKS[name].missing():
            print(f"{name:<24} left out: it {reason}", flush=True)
        else:
            wanted.append(name)
    if not wanted:
        stop("none of these stacks can run here; install what they need.")

    def save(row: dict) -> None:
        done = rows + [row]
        options.json.write_text(json.dumps({"gpus": gpus, "steps": options.steps, "warm_from": options.warm_from,
                                            "commit": os.environ.get("DYMEM_COMMIT", ""), "stacks": done}, indent=1) + "\n")

    for position, name in enumerate(wanted):
        left = end - time.monotonic()
        row = measure(name, gpus, options, left / (len(wanted) - position), left, save)
        save(row)
        rows.append(row)
        print(line(row), flush=True)
    bad = [row for row in rows if "errors" in row or not row["pairs"]]
    above = [row for row in rows if options.bound and row.get("ratio_upper_95", 0) > options.bound]
    return 1 if bad or above else 0


if __name__ == "__main__":
    sys.exit(main())
