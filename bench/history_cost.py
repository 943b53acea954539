"""What memory history costs a malloc and a free: before it was ever on, while it is on, and after. Off again must be as it was.

    python bench/history_cost.py                     # emulated driver, no GPU needed
    python bench/history_cost.py --driver cuda       # the card

Each process times pairs of calls in runs of 20,000, twenty times before and after, and the best run of all processes counts:
one process alone may meet a slow core for either. Exit 0: after is at most a tenth and 10 ns above before; 1: it is more;
2: cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import checks

ONE = """
import json, sys, time, torch, dymem
dymem.install(driver=sys.argv[1])
from dymem import _torch
if sys.argv[1] == "cuda":
    torch.ones(1, device="cuda")
def best(runs, calls):
    alloc, free, found = _torch.raw_alloc, _torch.raw_delete, []
    for _ in range(runs):
        began = time.perf_counter()
        for _ in range(calls):
            free(alloc(4096))
        found.append((time.perf_counter() - began) / calls * 1e9)
    return min(found)
best(5, 20_000)
before = best(20, 20_000)
_torch.record_history(True)
on = best(3, 5_000)
_torch.record_history(False)
print(json.dumps({"before_ns": before, "on_ns": on, "after_ns": best(20, 20_000)}))
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What memory history costs a malloc and a free, and what is left of it.")
    parser.add_argument("--driver", choices=("emulated", "cuda"), default="emulated")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error("--processes must be positive")
    checks.check_targets(options.json)
    path = os.pathsep.join(filter(None, (str(Path(checks.__file__).resolve().parent.parent / "python"),
                                         os.environ.get("PYTHONPATH"))))
    found = []
    for _ in range(options.processes):
        run = subprocess.run([sys.executable, "-c", ONE, options.driver], capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": path})
        if run.returncode != 0:
            checks.stop(run.stderr.strip().splitlines()[-1])
        found.append(json.loads(run.stdout))
    best = {name: min(each[name] for each in found) for name in found[0]}
    print("a malloc and a free, best of all runs: " + ", ".join(f"{name.removesuffix('_ns')} {ns:.0f} ns"
                                                                for name, ns in best.items()))
    if options.json:
        options.json.write_text(json.dumps({"driver": options.driver, "best": best, "processes": found}, indent=1) + "\n")
    return 0 if best["after_ns"] < best["before_ns"] * 1.1 + 10 else 1


if __name__ == "__main__":
    sys.exit(main())
