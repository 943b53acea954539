"""Where a step's time goes on the GPU: per stream, how long kernels and copies ran and how long it stood idle.

    python bench/timeline.py resnet152_torchtune_once --allocator dymem --conf wait:off --steps 2

Warms up as bench/train.py does, then records a few steps with torch.profiler (CUPTI). `step_ms` is a step's time on the
host, `span_ms` from its first to its last GPU activity; of each stream `busy_ms` (kernels and copies, overlaps counted
once), `idle_ms` = span - busy, and by kind the number, the milliseconds and, of copies, GB/s. Comparing two allocators'
lines tells whether a slower step computes slower, copies slower, or waits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from checks import check_targets, require, stop
from train import ALLOCATORS, build_step, find_workload, install, prepare_environment


def union_ms(intervals: list[tuple[float, float]]) -> float:
    """Total length of the union of [start, end) intervals in µs, as ms."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e3


def kind_of(event: dict) -> str:
    if event["cat"] == "kernel":
        return "kernel"
    for kind in ("HtoD", "DtoH", "DtoD"):
        if kind in event["name"]:
            return kind
    return event["cat"]


def streams_of(events: list[dict], steps: int) -> tuple[float, dict[str, dict]]:
    """Of a Chrome trace's GPU events: the span of a step in ms, and each stream's figures per step."""
    gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e]
    if not gpu:
        return 0.0, {}
    span = (max(e["ts"] + e["dur"] for e in gpu) - min(e["ts"] for e in gpu)) / 1e3 / steps
    streams: dict[str, list[dict]] = defaultdict(list)
    for event in gpu:
        streams[str(event.get("args", {}).get("stream", event.get("tid")))].append(event)
    figures = {}
    for stream, mine in streams.items():
        busy = union_ms([(e["ts"], e["ts"] + e["dur"]) for e in mine]) / steps
        kinds: dict[str, dict] = {}
        for event in mine:
            kind = kinds.setdefault(kind_of(event), {"count": 0, "ms": 0.0, "bytes": 0})
            kind["count"] += 1
            kind["ms"] += event["dur"] / 1e3
            kind["bytes"] += event.get("args", {}).get("bytes", 0)
        for kind in kinds.values():
            size = kind.pop("bytes")
            if size and kind["ms"]:
                kind["gb_per_s"] = round(size / kind["ms"] / 1e6, 2)
            kind["count"] = round(kind["count"] / steps, 1)
            kind["ms"] = round(kind["ms"] / steps, 3)
        figures[stream] = {"busy_ms": round(busy, 3), "idle_ms": round(span - busy, 3), "kinds": kinds}
    return round(span, 3), figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Where a step's time goes on the GPU, stream by stream.")
    parser.add_argument("workload")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="native")
    parser.add_argument("--conf", default=None, help="dymem's configuration, key:value,…")
    parser.add_argument("--warm", type=int, default=6, help="steps before the recorded ones")
    parser.add_argument("--steps", type=int, default=2, help="steps recorded")
    parser.add_argument("--trace", type=Path, help="keep the Chrome trace here (chrome://tracing, ui.perfetto.dev)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.warm < 0:
        parser.error("--steps must be 1 or more, --warm 0 or more")
    check_targets(arguments.json, arguments.trace)
    require("torch")
    allocator = ALLOCATORS[arguments.allocator]
    prepare_environment(allocator, conf=arguments.conf)
    import torch

    workload = find_workload(arguments.workload)
    if not torch.cuda.is_available():
        stop("torch sees no GPU here")
    install(allocator)
    step = build_step(workload)
    for i in range(arguments.warm):
        step(i)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        start = time.perf_counter()
        for i in range(arguments.steps):
            step(arguments.warm + i)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.trace or Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    span, streams = streams_of(events, arguments.steps)
    text = json.dumps({"workload": arguments.workload, "allocator": arguments.allocator, "conf": arguments.conf,
                       "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": arguments.steps,
                       "step_ms": round(1e3 * seconds / arguments.steps, 3), "span_ms": span, "streams": streams})
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
