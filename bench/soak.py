"""Ten thousand iterations of random lengths through the pool: call time, addresses, views and host memory stay flat.

    python bench/soak.py                                     # emulated driver (accounting), no GPU needed
    python bench/soak.py --driver cuda --scale 0.05          # the same on the card, small
    python bench/soak.py --iterations 2000 --json soak.json

Flat means: in the last window, compared with the second (the first warms), medians of malloc and free are at most a
quarter plus 20 ns longer, resident host memory at most 5 % + 8 MiB larger, and views and mapped addresses at most a
tenth (plus 64 views, 1 GiB) more. Exit 0: flat and sound; 1: something grew, or the audit found something; 2: cannot
run here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_native  # noqa: E402
import checks  # noqa: E402

# What may grow, by which factor, plus how much.
ALLOWED = {"malloc_ns_median": (1.25, 20), "free_ns_median": (1.25, 20), "rss_bytes": (1.05, 8 << 20),
           "views": (1.10, 64), "va_bytes": (1.10, 1 << 30)}


def growth(windows: list[dict]) -> dict[str, dict[str, float]]:
    """For each figure that must stay flat: the second window's, the last one's, and whether that is flat."""
    base, last = windows[min(1, len(windows) - 1)], windows[-1]
    return {name: {"base": base[name], "last": last[name], "flat": last[name] <= base[name] * factor + more}
            for name, (factor, more) in ALLOWED.items()}


def show(window: dict) -> None:
    print(f"  {window['iterations']:>6} iterations  malloc {window['malloc_ns_median']:.0f} / "
          f"{window['malloc_ns_p99']:.0f} ns  free {window['free_ns_median']:.0f} / {window['free_ns_p99']:.0f} ns  "
          f"host {window['rss_bytes'] / 2**20:.1f} MiB  views {window['views']}  addresses "
          f"{window['va_bytes'] / 2**30:.1f} GiB  overhead {window['overhead']:.2%}  driver "
          f"{window['driver_time_us'] / 1e3:.1f} ms", flush=True)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Iterations of random lengths through the pool: does anything grow?")
    parser.add_argument("--driver", choices=("emulated", "cuda"), default="emulated")
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=1_000)
    parser.add_argument("--scale", type=float, default=1.0, help="1 = about 20 GiB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-bytes", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.iterations < 1 or options.window < 1 or not 0 < options.scale < math.inf:
        parser.error("--iterations, --window and --scale must be positive")
    return options


def main() -> int:
    options = parse_arguments()
    checks.check_targets(options.json)
    try:
        program = build_native.program("soak")
    except build_native.BuildError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    command = [str(program), options.driver, str(options.iterations), str(options.window), str(options.scale),
               str(options.seed), str(options.limit_bytes)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for text in running.stdout:
            lines.append(json.loads(text))
            if "iterations" in lines[-1]:
                show(lines[-1])
    if running.returncode != 0:
        return running.returncode
    windows, end = lines[:-1], lines[-1]
    flat = growth(windows)
    reserved, occupied = (max(w[name] for w in windows) for name in ("reserved_peak_bytes", "occupied_peak_bytes"))
    print(f"  over the whole run: reserved {reserved / 2**20:,.0f} MiB, occupied {occupied / 2**20:,.0f} MiB, overhead "
          f"{reserved / occupied - 1:.2%}")
    if options.json:
        report = {"driver": options.driver, "scale": options.scale, "seed": options.seed, "windows": windows, "end": end,
                  "growth": flat, "overhead": reserved / occupied - 1, "commit": os.environ.get("DYMEM_COMMIT", "")}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    well = end["audit_findings"] == 0
    if not well:
        print(f"soak: audit: {end['audit']}", file=sys.stderr)
    for name, figure in flat.items():
        if not figure["flat"]:
            well = False
            print(f"soak: {name} grew from {figure['base']:.0f} to {figure['last']:.0f}", file=sys.stderr)
    print("soak: flat, audit sound" if well else "soak: NOT flat or not sound")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
