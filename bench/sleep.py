"""dymem.sleep() and dymem.wake() on a card: seconds and bandwidth, beside plain pinned copies in the same process.

    python bench/sleep.py --gib 20 --json bench/results/sleep.json          # a card with 22 GiB free; 40 GiB of host memory
    python bench/sleep.py --driver emulated --gib 0.25                      # a dry run without one: times mean nothing

Weights of the sizes of a large language model (--gib in all) and a KV cache a fifth as large. The link is measured
first: one cudaMemcpyAsync each way of 1 GiB pinned memory, the best of several. Then five rounds: the first sleep pins
the host's slabs, later ones reuse them; every weight is checked after every wake, a captured graph is replayed, and what the
device has free is asked of the driver. Last: level 1 (cache dropped), level 2 (all tagged dropped), and a wake by tags.
The requirement: from the second sleep on, and in every wake, at least 80 % of the link's bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from checks import check_targets, require, stop

GIB = 1 << 30
LINK_ROUNDS, LINK_BYTES = 5, GIB


def weight_sizes(total: int) -> list[int]:
    """Bytes of the tensors of decoder layers as wide as a 7B model's, bf16, until `total` is reached."""
    hidden, inner = 4096, 11008
    layer = [2 * n for n in (hidden * hidden,) * 4 + (hidden * inner,) * 3 + (hidden, hidden)]
    sizes, left = [2 * 32000 * hidden] if total >= 4 * GIB else [], total
    left -= sum(sizes)
    while left > 0:
        for size in layer:
            sizes.append(min(size, max(512, left)))
            left -= sizes[-1]
            if left <= 0:
                break
    return sizes


class Card:
    """The process under PyTorch on a GPU."""

    def __init__(self) -> None:
        import dymem

        dymem.install()
        import torch

        self.torch = torch
        self.device = torch.cuda.get_device_name(0)
        self.versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        self.graph = None

    def tensor(self, size: int, number: int):
        return self.torch.full((size // 4,), number, dtype=self.torch.int32, device="cuda")

    def intact(self, tensor, number: int) -> bool:
        return bool((tensor == number).all())

    def free_bytes(self) -> int:
        return self.torch.cuda.mem_get_info()[0]

    def link(self) -> dict:
        """GB/s of one plain pinned copy each way, the best of several; the buffers are gone afterwards."""
        torch = self.torch
        host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda")
        rates = {}
        for name, (to, source) in {"to_host": (host, there), "to_device": (there, host)}.items():
            best = 0.0
            for _ in range(LINK_ROUNDS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                to.copy_(source, non_blocking=True)
                end.record()
                end.synchronize()
                best = max(best, LINK_BYTES / (start.elapsed_time(end) * 1e-3) / 1e9)
            rates[name] = best
        return rates

    def capture(self, weights) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
        from graphs import Captured

        torch = self.torch
        self.x = torch.ones(4096, dtype=torch.int32, device="cuda")
        self.y = torch.empty(4096, dtype=torch.int32, device="cuda")
        large = [weight for weight in weights if len(weight) >= 4096]
        first, last = large[0][:4096], large[-1][:4096]
        self.wanted = first + last + self.x

        def step():
            torch.add(first, last, out=self.y)
            torch.add(self.y, self.x, out=self.y)

        step()
        self.graph = Captured(step)

    def replays(self) -> bool:
        self.y.zero_()
        self.graph.launch()
        self.torch.cuda.synchronize()
        return bool(self.torch.equal(self.y, self.wanted))


class Emulated:
    """The same calls over the emulated device, without torch."""

    def __init__(self, capacity: int) -> None:
        from dymem import _core

        _core.abi.configure(f"driver:emulated,emulated_capacity:{capacity}")
        self.pool = _core.abi.pool(0)
        self.driver = _core.abi.driver(0)
        self.device, self.versions = "emulated", {}

    def tensor(self, size: int, number: int):
        address = self.pool.malloc(size)
        self.driver.write(address, number.to_bytes(4, "little") * (size // 4))
        return address, size

    def intact(self, tensor, number: int) -> bool:
        return self.driver.read(*tensor)[1] == number.to_bytes(4, "little") * (tensor[1] // 4)

    def free_bytes(self) -> int:
        return self.driver.memory()[0]

    def link(self) -> dict:
        return {"to_host": 0.0, "to_device": 0.0}

    def capture(self, weights) -> None:
        pass

    def replays(self) -> bool:
        return True


def described(report, link: float, **more) -> dict:
    import dataclasses

    seconds = report.seconds - report.host_seconds
    whole = report.copied_bytes / seconds / 1e9 if seconds > 0 else 0.0
    return {**dataclasses.asdict(report), "copy_gb_per_s": report.gb_per_s, "gb_per_s_without_pinning": whole,
            "of_link": whole / link if link else None, **more}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=20.0, help="bytes of weights, in GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget-seconds", type=float, default=240.0, help="no new round is begun after that")
    parser.add_argument("--driver", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_targets(options.json)
    from dymem._core import driver

    if options.driver == "cuda" and not driver.cuda_device_count():
        stop("there is no GPU here; --driver emulated tries all but the copies' speed without one.")
    if options.driver == "cuda":
        require("torch")
    began = time.perf_counter()
    sizes = weight_sizes(int(options.gib * GIB))
    host = Card() if options.driver == "cuda" else Emulated(int(options.gib * 2 * GIB) + GIB)

    import dymem

    link = host.link()
    print(f"{host.device}: the link does {link['to_host']:.1f} GB/s to the host, {link['to_device']:.1f} back", flush=True)
    dymem.empty_cache()
    free_before = host.free_bytes()
    with dymem.tagged("weights"):
        weights = [host.tensor(size, i + 1) for i, size in enumerate(sizes)]
    with dymem.tagged("kv_cache"):
        cache = [host.tensor(sum(sizes) // 20 // 512 * 512, 7) for _ in range(4)]
    host.capture(weights)
    result = {"device": host.device, **host.versions, "weights_bytes": sum(sizes), "tensors": len(sizes), "link_gb_per_s": link,
              "granules": dymem.memory_stats()["segment.all.current"], "rounds": [], "failed": []}

    def nap(name: str, woken: bool = True, **how) -> dict:
        before = host.free_bytes()
        slept = dymem.sleep(**how)
        entry = {"name": name, "sleep": described(slept, link["to_host"], device_free_grew=host.free_bytes() - before)}
        # Page tables of the addresses that are kept stay the driver's: 0.2 % on an H200.
        if entry["sleep"]["device_free_grew"] < slept.memory_bytes * 99 // 100:
            result["failed"].append(f"{name}: the driver got {entry['sleep']['device_free_grew']} bytes, not {slept.memory_bytes}")
        entry["free_asleep_against_before"] = host.free_bytes() - free_before
        print(slept, flush=True)
        if woken:
            back = dymem.wake()
            entry["wake"] = described(back, link["to_device"])
            print(back, flush=True)
        return entry

    def check(name: str, tensors=weights) -> None:
        wrong = sum(not host.intact(tensor, i + 1) for i, tensor in enumerate(tensors))
        if wrong:
            result["failed"].append(f"{name}: {wrong} weights lost their values")
        if not host.replays():
            result["failed"].append(f"{name}: the captured graph gave another result")

    for i in range(options.rounds):
        if time.perf_counter() - began > options.budget_seconds:
            break
        result["rounds"].append(nap(f"round {i + 1}"))
        check(f"round {i + 1}")
    result["level1"] = nap("level 1", keep=("weights",), woken=False)
    tags = dymem.wake(tags=("weights",))
    check("level 1, weights only")
    rest = dymem.wake(tags=("kv_cache",))
    result["level1"]["wake_weights"] = described(tags, link["to_device"])
    result["level1"]["wake_cache"] = described(rest, link["to_device"])
    print(tags, rest, sep="\n", flush=True)
    result["cache_only"] = nap("cache only", tags=("kv_cache",), keep="drop")
    check("cache only")
    result["level2"] = nap("level 2", keep=())
    result["failed"] += [f"audit: {said}" for said in _audit()]
    warm = [r[way]["of_link"] for r in result["rounds"][1:] for way in ("sleep", "wake") if r[way]["of_link"] is not None]
    result["worst_of_link_warm"] = min(warm, default=None)
    result["seconds"] = time.perf_counter() - began
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    said = result["worst_of_link_warm"]
    print(f"worst warm sleep or wake: {f'{said:.0%} of the link' if said else 'not measured'}; "
          f"{'; '.join(result['failed']) or 'values, graph and freed memory are right'}")
    del cache
    return bool(result["failed"])


def _audit() -> list[str]:
    from dymem import _core

    return _core.abi.pool(0).audit()


if __name__ == "__main__":
    sys.exit(main())
