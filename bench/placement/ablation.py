"""What grouping by mobility is worth: all recordings, every placement in one slab, and granules with and without classes.

    python bench/placement/ablation.py --json placement.json --pictures placement/     ten seconds
    python bench/placement/ablation.py run.dymem another.pickle.xz --mistaken 0.2
    python bench/placement/ablation.py --facts bench/placement/recordings/unet_b16.facts.json.xz

Nothing here needs a GPU. Without names: the recordings with facts beside this file (bench/placement/recordings, real
classes), and the bundled ones without (hindsight: a perfect rule). Where NAME.facts.json lies beside NAME.dymem there are two
rows: with classes as late as the recording has them, and with those of a run that follows the facts of an earlier one.
With --facts there is one: of a run that follows these, though they be another program's.
Excess: the high-water mark over the live peak; untagged best fit in one range (CNMeM) is what the rest is measured against.
U_f is that of the recording's largest request when it comes, in a pool of one size for all (the JSON has it at the moment
of the high-water mark, too). Failures: the pool has what iteration `--first` needed plus beta, and a later iteration needs
more (HPDC 2020, table 2). Exit 0; 2: bad input, which one line names.
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
from rows import RULES, ablations, facts_beside, summary  # noqa: E402

from dymem import __version__  # noqa: E402
from dymem._paths import traces_dir  # noqa: E402
from dymem.cli.console import complain, out, progress  # noqa: E402
from dymem.cli.tables import new_table  # noqa: E402
from dymem.errors import DymemError, InvalidArgument  # noqa: E402
from dymem.mobility import Facts  # noqa: E402
from dymem.replaying import PLACEMENTS  # noqa: E402
from dymem.trace import load  # noqa: E402
from dymem.writing import check_writable, make_folder, write_bytes  # noqa: E402

RECORDINGS = HERE / "recordings"
STEPS_OF = "resnet32_nobn_cifar_b100"  # figure 15's network
TITLES = {"best_fit": "best fit", "two_ends": "two ends", "by_size": "by size", "grouped": "grouped",
          "vmm": "granules", "vmm_tagged": "granules, tagged"}


def rows_of(path: str, foreign: Facts | None, mistaken: float, first: int) -> list[dict]:
    """Of one file; in a process of its own, since a replay keeps one core busy."""
    facts = facts_beside(path)
    return [row for recording in load(path)
            for row in ablations(recording, facts=facts, foreign=foreign, mistaken=mistaken, first=first)]


def measure(paths: list[Path], foreign: Facts | None, mistaken: float, first: int,
            jobs: int) -> tuple[list[dict], list[str]]:
    rows: list[dict] = []
    refused: list[str] = []
    with progress() as bar, concurrent.futures.ProcessPoolExecutor(jobs) as workers:
        task = bar.add_task("replaying", total=len(paths))
        futures = {workers.submit(rows_of, str(path), foreign, mistaken, first): path for path in paths}
        for future in concurrent.futures.as_completed(futures):
            try:
                rows += future.result()
            except DymemError as error:
                refused.append(str(error))
            bar.update(task, advance=1, description=futures[future].name)
    return sorted(rows, key=lambda row: (row["name"], row["classes"])), refused


def by_source(rows: list[dict]) -> dict[str, list[dict]]:
    """The rows of each source of classes: they are of the same programs, and must not be added up."""
    return {source: [row for row in rows if row["classes"] == source] for source in sorted({row["classes"] for row in rows})}


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
                      ["recording", "classes", "largest, MiB", *(TITLES[name] for name in PLACEMENTS)],
                      caption="-: does not fit that pool, or no such request after the first iterations")
    for row in rows:
        shares = [row["placements"][name]["unusable_at_largest"] for name in PLACEMENTS]
        table.add_row(row["name"], row["classes"], f"{row['largest_request'] / 2**20:,.0f}",
                      *("-" if share is None else f"{share:.3f}" for share in shares))
    return table


def summary_table(rows: list[dict]):
    table = new_table("Over all recordings, against untagged best fit",
                      ["classes", "placement", "median, %", "sum of points", "… of best fit's", "sum, MiB", "… of best fit's",
                       "most worse, points"])
    for source, some in by_source(rows).items():
        for name in PLACEMENTS:
            s = summary(some, name)
            table.add_row(source, TITLES[name], points(s["median"]), points(s["sum"]), f"{s['of_best_fit']:.2f}",
                          f"{s['bytes'] / 2**20:,.0f}", f"{s['bytes_of_best_fit']:.2f}",
                          f"{points(s['most_worse'])} ({s['most_worse_on']})")
    return table


def rules_table(rows: list[dict]):
    """None if no recording has facts."""
    rows = [row for row in rows if "rules" in row]
    if not rows:
        return None
    table = new_table("Grouped, by the rule that the known classes are of: over the live peak, %",
                      ["recording", "best fit, untagged", *RULES], caption="hindsight: of the very recording")
    for row in rows:
        table.add_row(row["name"], points(row["placements"]["best_fit"]["excess"]), *(points(row["rules"][r]) for r in RULES))
    table.add_row("sum", points(sum(row["placements"]["best_fit"]["excess"] for row in rows)),
                  *(points(sum(row["rules"][r] for row in rows)) for r in RULES))
    return table


def failure_table(rows: list[dict]):
    rates = {(source, name): pictures.mean_rates(some, name) for source, some in by_source(rows).items() for name in PLACEMENTS}
    betas = list(next(iter(rates.values()), {}))
    table = new_table("Iterations that do not fit what the first needed plus beta, %",
                      ["classes", "placement", *(f"beta {int(beta) // 10**6} MB" for beta in betas)],
                      caption="In brackets: where each failure is followed by a pool with another beta.")
    for (source, name), by_beta in rates.items():
        again = pictures.mean_rates(by_source(rows)[source], name, restarts=True)
        table.add_row(source, TITLES[name], *(f"{100 * by_beta[beta]:.1f} ({100 * again[beta]:.1f})" for beta in betas))
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
    some = by_source(rows)
    pictures.draw_failures(some.get("known") or next(iter(some.values())), folder / "failures_by_beta.png")
    for path in [path for path in paths if path.name.startswith(STEPS_OF)][:1]:
        (recording,) = load(path)
        pictures.draw_steps(recording.name, pictures.steps(recording, facts_beside(path)), folder / f"steps_{recording.name}.png")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="recordings; if none is named, those "
                        "with facts and the bundled ones")
    parser.add_argument("--json", type=Path, help="all figures, to this file")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="figure 15 and table 2 as PNG, into this folder")
    parser.add_argument("--facts", type=Path, metavar="FILE", help="follow these facts, instead of those beside each recording")
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
        make_folder(options.pictures, "--pictures")
        if options.pictures:
            pictures.pyplot()
        paths = options.traces or [*sorted(RECORDINGS.glob("*.dymem.xz")), *sorted(traces_dir().glob("*.xz"))]
        foreign = Facts.load(options.facts) if options.facts else None
        rows, refused = measure(paths, foreign, options.mistaken, options.first, max(1, options.jobs))
        for sentence in refused:
            complain(sentence)
        if not rows:
            return 2
        for table in (excess_table(rows), summary_table(rows), rules_table(rows), unusable_table(rows), failure_table(rows)):
            if table is not None:
                out.print(table)
        if options.json:
            told = {"dymem": __version__, "facts": options.facts and options.facts.name, "mistaken": options.mistaken,
                    "first": options.first, "rows": rows,
                    "summary": {source: {name: summary(some, name) for name in PLACEMENTS}
                                for source, some in by_source(rows).items()},
                    "failure_rates": {source: {name: pictures.mean_rates(some, name) for name in PLACEMENTS}
                                      for source, some in by_source(rows).items()}}
            write_bytes(options.json, json.dumps(rounded(told), indent=1).encode())
        if options.pictures:
            draw(rows, paths, options.pictures)
    except DymemError as error:
        complain(error)
        return 2
    return 2 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
