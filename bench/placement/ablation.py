"""What grouping by mobility is worth: all recordings, every placement in one slab, and granules with and without classes.

    python bench/placement/ablation.py --json placement.json --pictures placement/     the bundled recordings, half a minute
    python bench/placement/ablation.py run.dymem another.pickle.xz --mistaken 0.2

Nothing here needs a GPU. A recording that carries classes in its events is replayed with those, any other with those of
hindsight (a perfect rule). Excess: the high-water mark over the live peak; untagged best fit in one range (CNMeM) is what
the rest is measured against. U_f is that of the recording's largest request when it comes, in a pool of one size for all
(the JSON has it at the moment of the high-water mark, too). Failures: the pool has what iteration `--first` needed plus
beta, and a later iteration needs more (HPDC 2020, table 2). Exit 0; 2: bad input, which one line names.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "python")]

import pictures  # noqa: E402
from rows import ablation, summary  # noqa: E402

from dymem import __version__  # noqa: E402
from dymem._paths import traces_dir  # noqa: E402
from dymem.cli.console import complain, out, progress  # noqa: E402
from dymem.cli.tables import new_table  # noqa: E402
from dymem.errors import DymemError, InvalidArgument  # noqa: E402
from dymem.replaying import PLACEMENTS  # noqa: E402
from dymem.trace import load  # noqa: E402
from dymem.writing import check_folder, check_writable, write_bytes  # noqa: E402

STEPS_OF = "resnet32_nobn_cifar_b100"  # figure 15's network
TITLES = {"best_fit": "best fit", "two_ends": "two ends", "by_size": "by size", "grouped": "grouped",
          "vmm": "granules", "vmm_tagged": "granules, tagged"}


def rows_of(path: str, mistaken: float, first: int) -> list[dict]:
    """Of one file; in a process of its own, since a replay keeps one core busy."""
    return [ablation(recording, mistaken=mistaken, first=first) for recording in load(path)]


def measure(paths: list[Path], mistaken: float, first: int, jobs: int) -> tuple[list[dict], list[str]]:
    rows: list[dict] = []
    refused: list[str] = []
    with progress() as bar, concurrent.futures.ProcessPoolExecutor(jobs) as workers:
        task = bar.add_task("replaying", total=len(paths))
        futures = {workers.submit(rows_of, str(path), mistaken, first): path for path in paths}
        for future in concurrent.futures.as_completed(futures):
            try:
                rows += future.result()
            except DymemError as error:
                refused.append(str(error))
            bar.update(task, advance=1, description=futures[future].name)
    return sorted(rows, key=lambda row: row["name"]), refused


def points(share: float) -> str:
    return f"{100 * share:.2f}"


def excess_table(rows: list[dict]):
    table = new_table("High-water mark over the live peak, %",
                      ["recording", "classes", "live, MiB", *(TITLES[name] for name in (*PLACEMENTS, "vmm", "vmm_tagged"))])
    for row in rows:
        table.add_row(row["name"], row["classes"], f"{row['live_peak_bytes'] / 2**20:,.0f}",
                      *(points(row["placements"][name]["excess"]) for name in (*PLACEMENTS, "vmm", "vmm_tagged")))
    return table


def unusable_table(rows: list[dict]):
    table = new_table("U_f when the largest request comes, in a pool of the same size for all",
                      ["recording", "largest, MiB", *(TITLES[name] for name in PLACEMENTS)], caption="-: does not fit that pool, "
                      "or no such request after the first iterations")
    for row in rows:
        shares = [row["placements"][name]["unusable_at_largest"] for name in PLACEMENTS]
        table.add_row(row["name"], f"{row['largest_request'] / 2**20:,.0f}",
                      *("-" if share is None else f"{share:.3f}" for share in shares))
    return table


def summary_table(rows: list[dict]):
    table = new_table("Over all recordings, against untagged best fit",
                      ["placement", "median, %", "sum of points", "… of best fit's", "sum, MiB", "… of best fit's",
                       "most worse, points"])
    for name in PLACEMENTS:
        s = summary(rows, name)
        table.add_row(TITLES[name], points(s["median"]), points(s["sum"]), f"{s['of_best_fit']:.2f}", f"{s['bytes'] / 2**20:,.0f}",
                      f"{s['bytes_of_best_fit']:.2f}", f"{points(s['most_worse'])} ({s['most_worse_on']})")
    return table


def failure_table(rows: list[dict]):
    rates = {name: pictures.mean_rates(rows, name) for name in PLACEMENTS}
    betas = list(next(iter(rates.values()), {}))
    table = new_table("Iterations that do not fit what the first needed plus beta, %",
                      ["placement", *(f"beta {int(beta) // 10**6} MB" for beta in betas)],
                      caption="In brackets: where each failure is followed by a pool with another beta.")
    for name, by_beta in rates.items():
        again = pictures.mean_rates(rows, name, restarts=True)
        table.add_row(TITLES[name], *(f"{100 * by_beta[beta]:.1f} ({100 * again[beta]:.1f})" for beta in betas))
    return table


def rounded(value):
    """Floats to six digits after the point: a file that can be read, and compared."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def draw(rows: list[dict], paths: list[Path], folder: Path) -> None:
    pictures.pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    pictures.draw_failures(rows, folder / "failures_by_beta.png")
    for path in paths:
        if path.name.startswith(STEPS_OF):
            (recording,) = load(path)
            pictures.draw_steps(recording.name, pictures.steps(recording), folder / f"steps_{recording.name}.png")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="recordings; the bundled ones if none is named")
    parser.add_argument("--json", type=Path, help="all figures, to this file")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="figure 15 and table 2 as PNG, into this folder")
    parser.add_argument("--mistaken", type=float, default=0.0, metavar="SHARE", help="of classes, by size: half swapped, half untagged")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="the iteration that sizes the pool; in 0 the "
                        "optimizer has no state (default 1)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="replays at a time")
    options = parser.parse_args(arguments)
    try:
        if not 0 <= options.mistaken <= 1:
            raise InvalidArgument("--mistaken is a share of the classes, from 0 to 1.")
        if options.first < 0:
            raise InvalidArgument("--first is the number of an iteration, 0 or more.")
        check_writable(options.json)
        check_folder(options.pictures, "--pictures")
        if options.pictures:
            pictures.pyplot()
        paths = options.traces or sorted(traces_dir().glob("*.xz"))
        rows, refused = measure(paths, options.mistaken, options.first, max(1, options.jobs))
        for sentence in refused:
            complain(sentence)
        if not rows:
            return 2
        for table in (excess_table(rows), summary_table(rows), unusable_table(rows), failure_table(rows)):
            out.print(table)
        if options.json:
            told = {"dymem": __version__, "mistaken": options.mistaken, "first": options.first, "rows": rows,
                    "summary": {name: summary(rows, name) for name in PLACEMENTS},
                    "failure_rates": {name: pictures.mean_rates(rows, name) for name in PLACEMENTS}}
            write_bytes(options.json, json.dumps(rounded(told), indent=1).encode())
        if options.pictures:
            draw(rows, paths, options.pictures)
    except DymemError as error:
        complain(error)
        return 2
    return 2 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
