"""Records what a workload asks of dymem, with the class of each allocation and the facts that it follows from.

    python bench/record_facts.py resnet50_b128 --out recordings
    python bench/record_facts.py llama_ckpt_varlen --out recordings --iterations 8 --profile 2 --rule paper

Needs a GPU. Writes into the folder --out
    NAME.dymem        a trace (dymem replay, dymem plot) whose events have iteration, phase and class. Classes are those that
                      a run has in earnest: made of the profiled iteration, and carried over to the ones after it by the
                      order of allocations and frees (dymem.mobility.tagging); --own: each iteration's by its own facts
    NAME.facts.json   the facts of the profiled iteration (dymem.mobility.Facts.load), with --own of the first of them
and prints one line of JSON: what was held for what, how many bytes have a class, and what profiling cost. Exit 0: recorded;
1: ran out of memory or failed; 2: cannot run here (the reason is the last line on stderr).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

from checks import check_targets, require, stop
from train import build_step, find_workload, prepare_environment, with_trace

from dymem.errors import DymemError, TraceError
from dymem.mobility import RULES, Facts, Profile, classes
from dymem.mobility.tagging import carried, shares, stamped, tagged
from dymem.rivals import ALLOCATORS, exhausted
from dymem.rivals.history import History

WARM = 2  # iterations before the first that is profiled: libraries choose their algorithms, optimizers make their state


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record a workload under dymem with classes and facts.")
    parser.add_argument("workload", help="a name from `python bench/train.py --list-all`")
    parser.add_argument("--out", type=Path, default=Path("recordings"), help="folder for the trace and the facts")
    parser.add_argument("--iterations", type=int, help="default: the workload's own number")
    parser.add_argument("--profile", type=int, default=WARM, metavar="N",
                        help="the iteration to profile (default: %(default)s)")
    parser.add_argument("--own", action="store_true", help="profile every iteration from --profile on")
    parser.add_argument("--rule", choices=RULES, default="lifetime", help="from facts to classes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conf", default=None, help="dymem's configuration, key:value,… (default: DYMEM_CONF)")
    arguments = parser.parse_args(argv)
    if arguments.iterations is not None and arguments.iterations <= arguments.profile:
        parser.error("--iterations must be more than --profile, or nothing is profiled")
    if arguments.profile < 0:
        parser.error("--profile must be 0 or more")
    return arguments


def run(step: Callable[[int], float], iterations: int, first: int, own: bool, history: History,
        synchronize: Callable[[], None]) -> tuple[dict[int, Facts], list[float], list[str]]:
    """The facts of each profiled iteration; seconds of every one; losses as hex floats."""
    profiles: dict[int, Profile] = {}
    seconds, losses = [], []
    for i in range(iterations):
        history.iteration = i
        history.phase("S")
        profiles_this = i >= first if own else i == first
        synchronize()
        began = time.perf_counter()
        with (Profile() if profiles_this else contextlib.nullcontext()) as profile:
            losses.append(float(step(i)).hex())
        synchronize()
        seconds.append(time.perf_counter() - began)
        if profiles_this:
            profiles[i] = profile
    return {i: profile.facts for i, profile in profiles.items()}, seconds, losses


def with_classes(events: bytes, facts: dict[int, Facts], rule: str, own: bool) -> tuple[bytearray, dict[str, object]]:
    """The events with classes, and how far these went."""
    numbered = {i: {a.number: tag for a, tag in zip(f.allocations, classes(f, rule)) if a.number is not None and not a.device}
                for i, f in facts.items()}
    events = stamped(events)
    if own:
        events = tagged(events, {number: tag for tags in numbered.values() for number, tag in tags.items()})
        return events, {}
    ((profiled, tags),) = numbered.items()
    try:
        events, coverage = carried(events, profiled, tags)
    except TraceError as error:  # profiled last, or nothing was allocated
        return events, {"note": str(error)}
    return events, {"tagged_share": round(coverage.share, 5), "iterations_after": coverage.iterations}


def profile_cost(seconds: list[float], profiled: list[int]) -> float | None:
    """The profiled iterations' time over the median of the others after the warm ones; None if there are none."""
    others = [s for i, s in enumerate(seconds) if i >= WARM and i not in profiled]
    return round(statistics.median(seconds[i] for i in profiled) / statistics.median(others), 3) if others else None


def main() -> int:
    arguments = parse_arguments()
    allocator = ALLOCATORS["dymem"]
    try:
        arguments.conf = with_trace(arguments.conf if arguments.conf is not None else os.environ.get("DYMEM_CONF", ""))
        prepare_environment(allocator, 0, arguments.conf)
    except DymemError as error:
        stop(str(error))
    require("torch")
    import torch

    workload = find_workload(arguments.workload)
    if not torch.cuda.is_available():
        stop("torch sees no GPU here")
    from dymem import _core

    check_targets(folder=arguments.out)
    try:
        allocator.install(None)
    except DymemError as error:
        stop(str(error))
    torch.cuda.init()
    history = History(allocator)
    step = build_step(workload, arguments.seed, history.phase)
    iterations = arguments.iterations or max(workload.iterations, arguments.profile + 1)
    try:
        facts, seconds, losses = run(step, iterations, arguments.profile, arguments.own, history, torch.cuda.synchronize)
    except Exception as error:
        if not exhausted(error):
            raise
        print(f"record_facts: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    recorder = _core.abi.recorder(0)
    events, told = with_classes(recorder.events(), facts, arguments.rule, arguments.own)
    arguments.out.mkdir(parents=True, exist_ok=True)
    trace = arguments.out / f"{arguments.workload}.dymem"
    _core.trace.write(str(trace), events, device=0, dropped=recorder.dropped())
    first = facts[min(facts)]
    first.save(arguments.out / f"{arguments.workload}.facts.json")
    print(json.dumps({
        "workload": arguments.workload, "iterations": iterations, "profiled": sorted(facts), "rule": arguments.rule,
        "own": arguments.own, "trace": str(trace), "allocations": len(first.allocations), "nodes": len(first.nodes),
        "bytes_by_role": first.bytes_by_role(), "bytes_by_class": shares(events), **told, "complete": first.complete,
        "notes": first.notes, "profile_cost": profile_cost(seconds, sorted(facts)),
        "step_seconds": [round(s, 5) for s in seconds], "losses": losses, "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__, "commit": os.environ.get("DYMEM_COMMIT", "")}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
