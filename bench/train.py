"""Trains one workload under one allocator in this process and prints one JSON line.

    python bench/train.py resnet50_b128 --allocator dymem
    python bench/train.py --list

Allocators are those of dymem.rivals: PyTorch's three, RMM's two and dymem's three forms. Steps are timed one by one on
the host, the device synchronised before and after. Losses are given as hex floats, so that equality means equality.
With --history the run also writes who held what (a snapshot, or dymem's trace), which slows it. Exit 0: trained; 1: ran
out of memory or failed; 2: cannot run here (the reason is the last line on stderr).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checks import check_targets, missing, require, stop  # noqa: E402

from dymem.compare.figures import median  # noqa: E402
from dymem.errors import DymemError  # noqa: E402
from dymem.rivals import ALLOCATORS, Allocator, child_environment, exhausted  # noqa: E402
from dymem.rivals.call_cost import call_ns  # noqa: E402
from dymem.rivals.history import History  # noqa: E402
from dymem.rivals.of_dymem import Dymem  # noqa: E402

OTHER_END_GONE = "the other end of --lockstep has gone"
WARM_FROM = 3  # iterations before this one warm caches, clocks and allocators


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one workload under one allocator; prints one JSON line.")
    parser.add_argument("workload", nargs="?", help="a name from --list or --list-all")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="native")
    parser.add_argument("--iterations", type=int, help="default: the workload's own number")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms, to compare losses")
    parser.add_argument("--lockstep", action="store_true",
                        help="say `ready` when built; then one step and one `step` for each line on stdin (trainer.py)")
    parser.add_argument("--shapes", type=int, default=0, metavar="N",
                        help="only N shapes, again and again: steps count as warm from the second visit of each on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conf", default=None, help="dymem's configuration, key:value,… (default: DYMEM_CONF)")
    parser.add_argument("--limit-bytes", type=int, default=0, help="hard cap on reserved memory; 0: none")
    parser.add_argument("--history", type=Path, help="record who held what, and write it there for dymem plot")
    parser.add_argument("--call-cost", action="store_true", help="time the allocator's calls after the last step")
    parser.add_argument("--json", type=Path, help="write the JSON to this file too")
    parser.add_argument("--list", action="store_true", help="name the workloads `dymem compare` trains")
    parser.add_argument("--list-all", action="store_true", help="name every workload")
    arguments = parser.parse_args(argv)
    if arguments.iterations is not None and arguments.iterations < 1:
        parser.error("--iterations must be 1 or more")
    if arguments.shapes < 0:
        parser.error("--shapes must be 1 or more")
    if arguments.limit_bytes < 0:
        parser.error("--limit-bytes must be 0 or more")
    if not arguments.workload and not (arguments.list or arguments.list_all):
        parser.error("name a workload; --list-all shows them")
    return arguments


def prepare_environment(allocator: Allocator, limit_bytes: int = 0, conf: str | None = None,
                        deterministic: bool = False) -> None:
    """What must be set before torch starts CUDA; of an allocator's settings only its own stay."""
    if conf is not None:
        os.environ["DYMEM_CONF"] = conf
    wanted = child_environment(allocator, limit_bytes or None)
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def install(allocator: Allocator, limit_bytes: int = 0) -> str:
    """Makes it PyTorch's allocator; what DYMEM_CONF says, if it is one of dymem's."""
    try:
        allocator.install(limit_bytes or None)
    except DymemError as error:
        stop(str(error))
    return os.environ.get("DYMEM_CONF", "") if isinstance(allocator, Dymem) else ""


def use_deterministic_algorithms() -> None:
    import torch

    # Strictly: with `warn_only` flash attention's backward stays the faster one that sums in any order.
    torch.use_deterministic_algorithms(True)
    # Of the fused attentions only flash has a deterministic backward.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = False


def dymem_figures() -> dict[str, object]:
    """The pool's own statistics, by dymem's names."""
    from dymem import _core

    names = ("num_stitches", "num_stitch_reuses", "num_sticky_hits", "num_stream_waits", "views_max", "va_bytes_max")
    stats = _core.abi.stats(0)
    return {name: stats[name] for name in names if name in stats}


def take_turn() -> bool:
    """In lockstep: waits for the line that lets the next step go. False when there is none any more."""
    return bool(sys.stdin.readline())


def find_workload(name: str):
    """The workload of that name; stops where it is unknown or cannot run here."""
    from workloads import WORKLOADS

    if name not in WORKLOADS:
        stop(f"there is no workload '{name}'; there are {', '.join(WORKLOADS)}")
    if packages := missing(WORKLOADS[name].needs):
        stop(f"{name} needs {', '.join(packages)}: pip install {' '.join(packages)}")
    return WORKLOADS[name]


def build_step(workload, seed: int = 0, phase: Callable[[str], None] = lambda phase: None):
    """The workload's model, built from that seed; the function that runs one of its steps.

    `phase` is told where forward (F), backward (B) and optimizer (O) begin.
    """
    import torch

    torch.manual_seed(seed)
    torch.backends.cudnn.allow_tf32 = workload.tf32
    step = workload.build(phase)
    gc.collect()
    gc.freeze()  # else Python looks through the whole model now and then: 0.1 s in whichever step it happens
    return step


def calls_per_step(calls: list[int | None], warm_from: int) -> float | None:
    """Mallocs and frees of a warm step, on average; `calls` are the totals after each step."""
    warm = calls[max(warm_from - 1, 0):]
    if len(warm) < 2 or None in warm:
        return None
    return round((warm[-1] - warm[0]) / (len(warm) - 1), 1)


def run(arguments: argparse.Namespace, workload, allocator: Allocator) -> dict[str, object]:
    import torch
    from workloads import Shapes

    iterations = arguments.iterations or workload.iterations
    if arguments.deterministic:
        use_deterministic_algorithms()
    torch.cuda.init()
    allocator.limit(arguments.limit_bytes or None)
    history = History(allocator) if arguments.history else None
    ours = isinstance(allocator, Dymem)

    if arguments.shapes:
        Shapes.repeat = arguments.shapes
    warm_from = min(max(WARM_FROM, arguments.shapes), iterations - 1)
    result: dict[str, object] = {
        "workload": arguments.workload, "allocator": arguments.allocator, "iterations": iterations,
        "warm_from": warm_from, "shapes": arguments.shapes, "seed": arguments.seed,
        "deterministic": arguments.deterministic, "limit_bytes": arguments.limit_bytes,
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "python": sys.version.split()[0], "commit": os.environ.get("DYMEM_COMMIT", ""),
        "backend": torch.cuda.memory.get_allocator_backend(),
    }
    seconds, losses, calls, reserved, device_allocations, pool = [], [], [], [], [], []
    began = time.perf_counter()
    try:
        step = build_step(workload, arguments.seed, *([history.phase] if history else []))
        if arguments.lockstep:
            print("ready", flush=True)
        for i in range(iterations):
            if arguments.lockstep and not take_turn():
                raise RuntimeError(OTHER_END_GONE)
            if history:
                history.iteration = i
                history.phase("S")
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = step(i)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            losses.append(float(loss).hex())
            usage = allocator.usage()
            calls.append(usage["calls"])
            reserved.append(usage["reserved_bytes"])
            device_allocations.append(usage["device_allocations"])
            if ours:
                pool.append(dymem_figures())
            if arguments.lockstep:
                print("step", flush=True)
        if arguments.lockstep:
            take_turn()  # the other one's last step is not over yet: leave the card in peace until it is
    except Exception as error:
        if not exhausted(error):
            raise
        result["out_of_memory"] = str(error).splitlines()[0] if str(error) else type(error).__name__
        result["failed_at_step"] = len(seconds)
    result["run_seconds"] = round(time.perf_counter() - began, 3)
    result["step_seconds"] = [round(s, 7) for s in seconds]
    warm = seconds[warm_from:]
    result["step_ms"] = round(1e3 * median(warm), 4) if warm else None
    result["losses"] = losses
    result["reserved_after_step_bytes"] = reserved
    result["device_allocations_after_step"] = device_allocations
    result.update(allocator.usage())
    result["calls_per_step"] = calls_per_step(calls, warm_from)
    if ours:
        result["dymem"] = dymem_figures()
        result["dymem_after_step"] = {name: [figures[name] for figures in pool] for name in result["dymem"]}
    if history:
        result["history"] = history.save(arguments.history)
    if arguments.call_cost and "out_of_memory" not in result:
        result["call_ns"] = call_ns()  # last: it changes the peaks
    return result


def with_trace(conf: str) -> str:
    from dymem.config import Config

    return dataclasses.replace(Config.from_conf(conf), trace=True).to_conf()


def main() -> int:
    arguments = parse_arguments()
    check_targets(arguments.json, arguments.history)
    require("torch")
    allocator = ALLOCATORS[arguments.allocator]
    if arguments.history and isinstance(allocator, Dymem):
        arguments.conf = with_trace(arguments.conf if arguments.conf is not None else os.environ.get("DYMEM_CONF", ""))
    try:
        prepare_environment(allocator, arguments.limit_bytes, arguments.conf, arguments.deterministic)
    except DymemError as error:
        stop(str(error))
    from workloads import SHOWN, WORKLOADS

    if arguments.list or arguments.list_all:
        names = WORKLOADS if arguments.list_all else SHOWN
        print("\n".join(name for name in names if not missing(WORKLOADS[name].needs)))
        return 0
    workload = find_workload(arguments.workload)
    import torch

    if reason := allocator.missing():
        stop(reason)
    if not torch.cuda.is_available():
        stop("torch sees no GPU here")
    conf = install(allocator, arguments.limit_bytes)
    result = run(arguments, workload, allocator)
    result["conf"] = conf
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text, flush=True)
    return 1 if "out_of_memory" in result else 0


if __name__ == "__main__":
    sys.exit(main())
