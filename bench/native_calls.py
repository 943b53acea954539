"""What one malloc and one free cost: recorded sequences through PyTorch's allocator and dymem's pool, in one process.

    python bench/native_calls.py                             # on a GPU: native and dymem, alternating
    python bench/native_calls.py --driver emulated           # without one: dymem alone, on the emulated driver
    python bench/native_calls.py --trace resnet50_b128 --rounds 5 --json calls.json
    python bench/native_calls.py --driver emulated --followed  # and with dymem.mobility.follow() on

The first pass through a sequence warms both; then timed passes alternate. Medians and 99th percentiles are over all
calls of all timed passes. For blocks of 64 MiB and more, the calls that asked nothing of the driver are also shown by
themselves. Exit 0: measured (whether or not a target is met); 1: the pool's audit found something; 2: cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_native  # noqa: E402
import checks  # noqa: E402

checks.require("numpy")
import numpy as np  # noqa: E402

ALLOC, FREE_REQUESTED = 0, 1  # dymem::TraceKind
LARGE = 64 << 20
TRACES = ("resnet50_b128", "llama_varlen", "bert_varlen", "unet_b16", "resnet50_varres", "resnet50_prefetch")
EVENT = np.dtype([("time_ns", "<i8"), ("block", "<u8"), ("size", "<u8"), ("stream", "<u8"), ("kind", "u1"),
                  ("mobility", "u1"), ("aux", "<u2"), ("iteration", "<i4")])


def columns(path: Path) -> dict[str, np.ndarray]:
    """The allocations and frees of a recording, as the four columns that native_calls.cpp takes."""
    from dymem.trace import load

    events = np.frombuffer(load(path)[0].events, EVENT)
    events = events[(events["kind"] == ALLOC) | (events["kind"] == FREE_REQUESTED)]
    return {"op": events["kind"].astype(np.int64), **{name: events[name].astype(np.int64)
                                                      for name in ("block", "size", "stream")}}


def patterns(path: Path) -> list[tuple[int, bytes, bytes, bytes]]:
    """What each stream did in the recording's iteration 2, with hindsight's classes, as native_calls.cpp takes it."""
    from dymem.mobility.tagging import patterns_by_stream
    from dymem.trace import load
    from dymem.trace.mobility import with_hindsight

    events = with_hindsight(load(path)[0].events)
    column = np.frombuffer(events, EVENT)
    column = column[column["kind"] == ALLOC]
    classes = dict(zip(column["block"].tolist(), column["mobility"].tolist()))
    return [(stream, *pattern.as_bytes()) for stream, pattern in patterns_by_stream(events, 2, classes).items()]


def peak_live_bytes(column: dict[str, np.ndarray]) -> int:
    size_of = np.zeros(int(column["block"].max()) + 1, np.int64)
    allocs = column["op"] == ALLOC
    size_of[column["block"][allocs]] = (column["size"][allocs] + 511) // 512 * 512
    signed = np.where(allocs, 1, -1) * size_of[column["block"]]
    return int(signed.cumsum().max())


def spread(ns: np.ndarray) -> dict[str, float]:
    if not len(ns):
        return {"calls": 0}
    return {"calls": len(ns), "median_ns": float(np.median(ns)), "p99_ns": float(np.percentile(ns, 99)),
            "p999_ns": float(np.percentile(ns, 99.9)), "mean_ns": float(ns.mean()), "max_ns": float(ns.max())}


def figures(column: dict[str, np.ndarray], passes: list[dict[str, np.ndarray]]) -> dict[str, object]:
    allocs = column["op"] == ALLOC
    ns = np.concatenate([p["ns"] for p in passes])
    is_alloc = np.concatenate([allocs] * len(passes))
    result: dict[str, object] = {"malloc": spread(ns[is_alloc]), "free": spread(ns[~is_alloc])}
    calls = np.concatenate([p["driver_calls"] for p in passes])
    if (calls >= 0).any():
        quiet = calls == 0
        result["large"] = {"calls": int((calls >= 0).sum()), "without_driver": int(quiet.sum()),
                           "malloc_without_driver": spread(ns[quiet & is_alloc]),
                           "free_without_driver": spread(ns[quiet & ~is_alloc])}
    return result


def compare(module, name: str, path: Path, options: argparse.Namespace, native: bool) -> dict[str, object]:
    column = columns(path)
    live = peak_live_bytes(column)
    calls = module.Calls(**column, driver=options.driver, emulated_capacity=max(64 << 30, 2 * live))
    apart = native and not both_fit(live)  # then each gives back before the other runs, and warms again

    def timed(run) -> dict[str, np.ndarray]:
        if apart:
            calls.trim()
            run()
        return run()

    dymem_pass = lambda: calls.dymem_pass(LARGE)  # noqa: E731
    if not apart:
        if native:
            calls.native_pass()
        calls.dymem_pass(LARGE)
    if options.followed:
        calls.follow(patterns(path))
        calls.followed_pass(LARGE)
    passes: dict[str, list[dict[str, np.ndarray]]] = {"native": [], "dymem": [], "followed": []}
    for _ in range(options.rounds):
        if native:
            passes["native"].append(timed(calls.native_pass))
        passes["dymem"].append(timed(dymem_pass))
        if options.followed:
            passes["followed"].append(timed(lambda: calls.followed_pass(LARGE)))
    row: dict[str, object] = {"name": name, "calls": len(column["op"]), "rounds": options.rounds, "streams": calls.streams,
                              "live_peak_bytes": live, "given_back_between": apart, "empty_measurement_ns": calls.empty_ns,
                              "dymem": figures(column, passes["dymem"]), "audit": calls.audit()}
    if options.followed:
        row["followed"] = figures(column, passes["followed"]) | {"tagged_share": calls.tagged_share}
    if native:
        row["native"] = figures(column, passes["native"])
        row["ratio"] = {f"{call}_{q}": row["dymem"][call][f"{q}_ns"] / row["native"][call][f"{q}_ns"]
                        for call in ("malloc", "free") for q in ("median", "p99")}
    calls.trim()
    return row


def both_fit(live: int) -> bool:
    import torch

    free, _ = torch.cuda.mem_get_info()
    return 1.6 * live + 1.03 * live + (1 << 30) < free


def line(row: dict) -> str:
    def pair(side: str) -> str:
        return "  ".join(f"{call} {row[side][call]['median_ns']:.0f} / {row[side][call]['p99_ns']:.0f} ns"
                         for call in ("malloc", "free"))

    text = f"{row['name']:<26} dymem  {pair('dymem')}"
    large = row["dymem"].get("large")
    if large and large["malloc_without_driver"]["calls"]:
        text += (f"   >= 64 MiB without driver: p99 {large['malloc_without_driver']['p99_ns']:.0f} / "
                 f"{large['free_without_driver'].get('p99_ns', 0):.0f} ns ({large['without_driver']} of {large['calls']})")
    if "followed" in row:
        text += f"\n{'':<26} followed {pair('followed')}   {row['followed']['tagged_share']:.1%} of the allocations tagged"
    if "native" in row:
        ratio = row["ratio"]
        text += (f"\n{'':<26} native {pair('native')}   dymem / native: malloc {ratio['malloc_median']:.2f}, p99 "
                 f"{ratio['malloc_p99']:.2f}; free {ratio['free_median']:.2f}, p99 {ratio['free_p99']:.2f}")
    return text


def machine(driver: str) -> dict[str, object]:
    from dymem._version import __version__

    facts: dict[str, object] = {"driver": driver, "dymem": __version__, "commit": os.environ.get("DYMEM_COMMIT", "")}
    if driver == "cuda":
        import torch

        facts |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return facts


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times single calls of PyTorch's allocator and dymem's pool.")
    parser.add_argument("--trace", action="append", help="a bundled recording's name or a file; may be repeated")
    parser.add_argument("--driver", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--followed", action="store_true", help="time the pool with its calls followed, too")
    parser.add_argument("--rounds", type=int, default=3, help="timed passes of each allocator")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def find_trace(name: str) -> Path:
    from dymem._paths import traces_dir

    for path in (Path(name), traces_dir() / f"{name}.pickle.xz"):
        if path.is_file():
            return path
    raise build_native.BuildError(f"there is no recording '{name}': give a file or the name of a bundled one")


def main() -> int:
    options = parse_arguments()
    native = options.driver == "cuda"
    checks.check_targets(options.json)
    if native:
        checks.require("torch")
    try:
        build_native.import_dymem()
        paths = [find_trace(name) for name in options.trace or TRACES]
        if native:
            import torch

            if not torch.cuda.is_available():
                raise build_native.BuildError("torch sees no GPU here; --driver emulated times dymem alone")
            torch.empty(1, device="cuda")  # starts CUDA and PyTorch's allocator
        module = build_native.extension("native_calls", with_torch=native)
    except build_native.BuildError as error:
        print(f"native_calls: {error}", file=sys.stderr)
        return 2
    rows = []
    for path in paths:
        rows.append(compare(module, path.name.removesuffix(".pickle.xz"), path, options, native))
        print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options.driver), "traces": rows}, indent=1) + "\n")
    broken = [sentence for row in rows for sentence in row["audit"]]
    for sentence in broken:
        print(f"native_calls: audit: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
