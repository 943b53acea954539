"""The same under hard caps: at which multiple of the live peak does some work train under which allocator, how slowly?

The live peak is that of PyTorch's own allocator without a cap, in the same steps with the same algorithms. A warm step is
compared with the same step of PyTorch's allocator without a cap, which runs once more beside the capped runs: for a bundled
workload steps take turns, and count from the second visit of their shape on (the first pays for loading kernels); a user's
script runs once after the other.
"""

from __future__ import annotations

import re
import time
from typing import Protocol, Sequence

from dymem.compare import figures
from dymem.compare.together import Run, comparable_seconds
from dymem.compare.training import SPENT
from dymem.errors import InvalidArgument

REFERENCE = "native"
LEAST, MOST = 0.1, 100.0


class Work(Protocol):
    """What is trained: a bundled workload (training.Bundled) or a user's script (script.Script)."""

    warm: str  # which steps count, a sentence

    @property
    def name(self) -> str: ...
    def say(self, sentence: str) -> None: ...
    def allows_another(self, longest: float) -> bool: ...  # is there time for what took so many seconds?
    def run(self, runs: Sequence[Run], flipped: bool = False) -> list[dict[tuple[str, int], dict]]: ...  # as run_together


def parse_caps(text: str) -> list[float]:
    """"1.00x,1.02x,1.5" as ascending multiples of the live peak."""
    caps = []
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)x?", word.strip().lower())
        value = float(match[1]) if match else 0.0
        if not LEAST <= value <= MOST:
            raise InvalidArgument(f"'{word.strip()[:40]}' is no cap; write multiples of the live peak, for example "
                                  "--cap 1.00x,1.02x,1.05x.")
        caps.append(value)
    return sorted(set(caps))


def measure(work: Work, names: Sequence[str], caps: Sequence[float], repeats: int) -> dict:
    """The row of some work: `caps` holds a cell for every cap and allocator. The caps go from wide to narrow, so that time
    that runs out is missed where least trains."""
    work.say(f"{work.name}, without a cap")
    free = work.run([Run(REFERENCE)])[0][REFERENCE, 0]
    row: dict[str, object] = {"workload": work.name, "allocators": list(names), "reference": REFERENCE, "warm": work.warm,
                              "caps": []}
    if "error" in free:
        return row | {"error": f"{REFERENCE} without a cap: {free['error']}"}
    live = free["live_peak_bytes"]
    if not live:
        return row | {"error": "it held no memory of the GPU, so there is nothing to multiply a cap with"}
    row |= {"live_peak_bytes": live, "uncapped": {key: free.get(key) for key in (*figures.PEAKS, "step_ms")}}
    reference = Run(REFERENCE, expected_bytes=free["reserved_peak_bytes"])
    longest = 0.0
    for cap in sorted(caps, reverse=True):
        limit = round(cap * live)
        runs = [reference] + [Run(name, limit, limit) for name in names]
        pairs: dict[str, list[figures.Pair]] = {name: [] for name in names}
        results: dict[str, dict] = {}
        for repeat in range(repeats):
            if not work.allows_another(longest):
                break
            work.say(f"{work.name}, {cap:.2f}x, repeat {repeat + 1}")
            began = time.monotonic()
            measured = work.run(runs, flipped=repeat % 2 == 1)
            longest = max(longest, time.monotonic() - began)
            seconds = comparable_seconds(measured, reference.key)
            for group in measured:
                for (name, under), result in group.items():
                    if under:
                        results.setdefault(name, result)
                        if (name, under) in seconds and reference.key in seconds:
                            both = seconds[reference.key], seconds[name, under]
                            steps = min(map(len, both))  # a script may stop by the clock or by its loss
                            pairs[name].append((both[0][:steps], both[1][:steps]))
            runs = [run for run in runs if not run.limit_bytes or "error" not in results[run.name]]
        cell = {"cap": cap, "limit_bytes": limit}
        cell |= {name: cell_of(name, results.get(name), pairs[name], limit) for name in names}
        row["caps"].insert(0, cell)
    return row


def cell_of(name: str, result: dict | None, pairs: Sequence[figures.Pair], limit_bytes: int) -> dict:
    """Does it train under that cap, and how slowly? `trains` is None where it was not tried or failed otherwise."""
    if result is None:
        return {"trains": None, "error": SPENT}
    cell: dict[str, object] = {"trains": True}
    if "error" in result:
        cell = {"trains": False if "out_of_memory" in result else None, "error": result["error"],
                "failed_at_step": result.get("failed_at_step")}
    cell |= {key: result.get(key) for key in (*figures.PEAKS, "step_ms")}
    reserved = result.get("reserved_peak_bytes")
    cell["kept_the_cap"] = None if reserved is None else reserved <= limit_bytes
    return cell | (figures.ratio_figures(pairs) if cell["trains"] else {})
