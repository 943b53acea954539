"""Are losses under dymem equal to native's, bit for bit, with deterministic algorithms?

    python bench/equal_losses.py resnet50_b128 llama_varlen llama_fsdp2_ckpt --iterations 6 --json losses.json

Nothing is timed, so all workloads run at once: under native twice (a control: does the workload repeat itself at all?),
then under dymem. Exit 0: all equal; 1: some differ, or a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from checks import check_targets
from trainer import last_json

from dymem.compare.figures import losses_compared

HERE = Path(__file__).resolve().parent


def start(workload: str, allocator: str, iterations: int, port: int) -> subprocess.Popen:
    command = [sys.executable, str(HERE / "train.py"), workload, "--allocator", allocator, "--deterministic",
               "--iterations", str(iterations)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, MASTER_PORT=str(port)))


def run_all(workloads: list[str], allocator: str, iterations: int) -> dict[str, dict]:
    """Each workload's JSON line; a failed run's has `error` instead."""
    runs = {name: start(name, allocator, iterations, 29600 + i) for i, name in enumerate(workloads)}
    results = {}
    for name, run in runs.items():
        out, err = run.communicate()
        figures = last_json(out)
        results[name] = figures if run.returncode == 0 and figures else {"error": err.strip()[-500:]}
        # PyTorch names the operations that have no deterministic version: they, not an allocator, make losses differ.
        results[name]["warnings"] = sorted({line.strip()[:300] for line in err.splitlines() if "deterministic" in line})
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Losses under dymem against native's, with deterministic algorithms.")
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_targets(options.json)
    native, again, ours = (run_all(options.workloads, allocator, options.iterations)
                           for allocator in ("native", "native", "dymem"))
    rows, equal = {}, True
    for name in options.workloads:
        a, b = native[name], ours[name]
        error = a.get("error") or b.get("error")
        repeats = a.get("losses") == again[name].get("losses")
        judged = {} if error else losses_compared(a["losses"], b["losses"])
        same = bool(judged) and judged["losses_equal"] and judged["losses_compared"] == options.iterations
        equal &= same
        rows[name] = {"equal": same, "first_differing_loss": judged.get("first_differing_loss"),
                      "native_repeats_itself": repeats, "error": error, "native": a.get("losses"), "dymem": b.get("losses"),
                      "warnings": a.get("warnings"), "gpu": b.get("gpu"), "torch": b.get("torch"), "commit": b.get("commit")}
        print(f"{name}: " + (f"failed: {error}" if error else f"{options.iterations} losses "
                             + ("equal" if same else "DIFFER") + ("" if repeats else ", but native's own two runs differ")),
              flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
