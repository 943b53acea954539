"""`dymem stress`: the fragmentation patterns under the pool's configurations on the emulated device, or under every
allocator on a GPU.

The work is in dymem.stress; here are its tables, its JSON and its progress. On a GPU the JSON is written again after
every pattern, so that what was measured is kept whatever happens later.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path

from rich.table import Table

from dymem import __version__
from dymem.cli.console import BROKEN, chosen, complain, files_before, out, progress, show, write_json
from dymem.cli.environment import replay_keys
from dymem.cli.stress_tables import card_stress_notes, card_stress_table, card_stress_words, card_time_table
from dymem.cli.tables import stress_table
from dymem.compare.card import gpu_count
from dymem.config import parse_bytes
from dymem.errors import InvalidArgument
from dymem.plotting import needs
from dymem.rivals.of_dymem import build_adapter
from dymem.writing import check_apart, check_writable, shown

SCALE_MIN = 256 << 20
SCALE, PRECISION = "4GiB", 0.005  # unless told otherwise
BUDGET_SECONDS = 300.0  # on a GPU, unless told otherwise


@dataclasses.dataclass(frozen=True)
class Asked:
    """What both machines are asked, checked."""

    patterns: list[str]
    scale_bytes: int
    seed: int
    precision: float
    json_file: Path | None
    picture: Path | None
    markdown: bool

    def report(self, driver: str, rows: list[dict], **more: object) -> None:
        write_json(self.json_file, {"kind": "stress", "driver": driver, "scale_bytes": self.scale_bytes,
                                    "seed": self.seed, "precision": self.precision, "patterns": rows, **more,
                                    "dymem": __version__})


def main(patterns: list[str] | None, *, driver: str | None, scale: str, seed: int, precision: float,
         settings: list[str] | None, allocators: list[str] | None, budget_seconds: float | None, json_file: Path | None,
         picture: Path | None, listed: bool, markdown: bool) -> int:
    from dymem.rivals import ALLOCATORS
    from dymem.stress import PATTERNS, SETTINGS

    if listed:
        if json_file or picture:
            raise InvalidArgument("--list runs nothing, so there is nothing to write; leave --json and --picture out.")
        given = {"--driver": driver, "--scale": scale != SCALE, "--seed": seed, "--precision": precision != PRECISION,
                 "--setting": settings, "--allocator": allocators, "--budget-seconds": budget_seconds is not None}
        if idle := [name for name, value in given.items() if value]:
            raise InvalidArgument(f"--list runs nothing, so {' and '.join(idle)} {'means' if len(idle) == 1 else 'mean'} nothing "
                                  f"beside it; leave {'it' if len(idle) == 1 else 'them'} out.")
        show(_listing(PATTERNS[name] for name in chosen(PATTERNS, patterns, "pattern")), markdown)
        return 0
    scale_bytes = parse_bytes(scale)
    if scale_bytes < SCALE_MIN:
        raise InvalidArgument("a scale below 256MiB leaves nothing to fragment; write for example --scale 4GiB.")
    if not 0.0005 <= precision <= 0.5:
        raise InvalidArgument("a precision is between 0.0005 and 0.5, as a share of the occupied peak.")
    if budget_seconds is not None and (not math.isfinite(budget_seconds) or budget_seconds <= 0):
        raise InvalidArgument("a budget is more than 0 seconds; write for example --budget-seconds 240.")
    asked = Asked(chosen(PATTERNS, patterns, "pattern"), scale_bytes, seed, precision, json_file, picture, markdown)
    wanted = {"emulated": chosen(SETTINGS, settings, "setting"), "cuda": chosen(ALLOCATORS, allocators, "allocator")}
    machine = _machine(driver, settings, allocators)
    if budget_seconds is not None and machine != "cuda":
        raise InvalidArgument("--budget-seconds is for a GPU: on the emulated driver every pattern is tried to its end; leave "
                              "it out.")
    if picture and picture.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidArgument(f"{shown(picture)} is no name for a picture; write .png, .svg or .pdf.")
    check_writable(json_file)
    check_writable(picture)
    check_apart([json_file, picture])
    if picture:
        needs.require()
    if machine == "cuda":
        return _on_card(asked, wanted["cuda"], BUDGET_SECONDS if budget_seconds is None else budget_seconds)
    return _emulated(asked, wanted["emulated"])


def _machine(driver: str | None, settings: list[str] | None, allocators: list[str] | None) -> str:
    if driver not in (None, "cuda", "emulated"):
        raise InvalidArgument(f"there is no driver '{driver}'; there are cuda and emulated.")
    if settings and allocators:
        raise InvalidArgument("--setting is of the emulated driver, --allocator of the GPU: use one of the two.")
    if driver == "cuda" and settings:
        raise InvalidArgument("--setting is of the emulated driver; on the GPU choose with --allocator.")
    if driver == "emulated" and allocators:
        raise InvalidArgument("--allocator is of the GPU; on the emulated driver choose with --setting.")
    if driver:
        machine = driver
    elif settings or allocators:
        machine = "emulated" if settings else "cuda"
    else:
        return "cuda" if gpu_count() > 0 else "emulated"
    if machine == "cuda" and gpu_count() == 0:
        raise InvalidArgument("there is no GPU here; --driver emulated needs none.")
    return machine


# --- emulated


def _emulated(asked: Asked, settings: list[str]) -> int:
    from dymem.stress import PATTERNS, smallest_limit

    keys, rows = replay_keys(), []
    with progress() as bar:
        task = bar.add_task("stress", total=len(asked.patterns) * len(settings))
        for name in asked.patterns:
            recording = PATTERNS[name].script(asked.scale_bytes, asked.seed).recording(name)
            row = {"pattern": name, "source": PATTERNS[name].source, "events": len(recording), "settings": {}}
            for setting in settings:
                bar.update(task, description=f"{name} under {setting}")
                survival = smallest_limit(recording, setting, precision=asked.precision, keys=keys)
                row["occupied_peak_bytes"] = survival.occupied_peak_bytes
                row["settings"][setting] = dataclasses.asdict(survival)
                bar.update(task, advance=1)
            rows.append(row)
    ratios = [[row["settings"][setting]["ratio"] for setting in settings] for row in rows]
    words = [["> 4x" if ratio is None else f"{ratio:.3f}" for ratio in line] for line in ratios]
    with files_before(lambda: show(stress_table(rows), asked.markdown)):
        asked.report("emulated", rows)
        _draw(asked, rows, settings, ratios, words, "Emulated device")
    return _judge(rows)


def _judge(rows: list[dict]) -> int:
    code = 0
    for row in rows:
        for setting, survival in row["settings"].items():
            for sentence in survival["unlimited"]["audit"]:
                complain(f"{row['pattern']} under {setting}: broken invariant, please report it: {sentence}")
                code = BROKEN
            if survival["ratio"] is None:
                code = max(code, 1)
    return code


# --- on a GPU


def _start_worker(allocator: str):
    from dymem import _paths
    from dymem.rivals import ALLOCATORS, child_environment
    from dymem.stress.on_workers import WorkerProcess, worker_command

    environment = child_environment(ALLOCATORS[allocator])
    package = str(_paths.PACKAGE.parent)  # the child finds the dymem that this process is, installed or not
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
    return WorkerProcess(worker_command(allocator), environment)


def _on_card(asked: Asked, allocators: list[str], budget_seconds: float) -> int:
    from dymem import _core
    from dymem.rivals import ALLOCATORS
    from dymem.stress import PATTERNS
    from dymem.stress.on_workers import Bench, Cell, Job, measure_all

    missing = {name: why for name in allocators if (why := ALLOCATORS[name].missing())}
    build_adapter(ALLOCATORS[name] for name in allocators if name not in missing)  # no worker's time, no pattern's either
    began = time.monotonic()
    jobs, rows = [], []
    for name in asked.patterns:
        recording = PATTERNS[name].script(asked.scale_bytes, asked.seed).recording(name)
        occupied = _core.trace.facts(recording.events)["occupied_peak_bytes"]
        jobs.append(Job(name, asked.scale_bytes, asked.seed, occupied, len(recording)))
        rows.append({"pattern": name, "source": PATTERNS[name].source, "events": len(recording),
                     "occupied_peak_bytes": occupied, "allocators": {}})
    by_name = {row["pattern"]: row for row in rows}
    machine: dict = {}

    def report() -> None:
        begun = [row for row in rows if row["allocators"]]
        asked.report("cuda", begun, machine=machine, budget_seconds=budget_seconds,
                     seconds=round(time.monotonic() - began, 1), commit=os.environ.get("DYMEM_COMMIT", ""))

    with Bench(_start_worker, missing, precision=asked.precision) as bench, progress() as bar:
        task = bar.add_task("stress: processes start", total=len(jobs) * len(allocators))
        bench.start_all(allocators)

        def tell(pattern: str, allocator: str, cell: Cell | None) -> None:
            if cell is None:
                bar.update(task, description=f"{pattern} under {allocator}")
                return
            by_name[pattern]["allocators"][allocator] = dataclasses.asdict(cell)
            bar.update(task, advance=1)
            machine.update(bench.facts)
            if len(by_name[pattern]["allocators"]) == len(allocators):
                report()

        measure_all(bench, jobs, allocators, budget_seconds - (time.monotonic() - began), tell)
    titles = {name: ALLOCATORS[name].title for name in allocators}
    where = machine.get("gpu", "GPU")

    def tell_all() -> None:
        show(card_stress_table(rows, where), asked.markdown)
        show(card_time_table(rows, where), asked.markdown)
        for note in card_stress_notes(rows, titles, {name: ALLOCATORS[name].note for name in allocators}):
            out.print(note, markup=False)

    ratios = [[None if cell["damaged"] else cell["ratio"] for cell in row["allocators"].values()] for row in rows]
    with files_before(tell_all):
        report()
        _draw(asked, rows, allocators, ratios, [card_stress_words(row) for row in rows], where)
    return _judge_card(rows)


def _judge_card(rows: list[dict]) -> int:
    """What rivals cannot do is a figure; what dymem cannot do, and what was not measured, is a failure."""
    code = 0
    unmeasured = 0
    for row in rows:
        for name, cell in row["allocators"].items():
            unmeasured += cell["status"] == "budget"
            if name.startswith("dymem") and (cell["damaged"] or cell["status"] in ("none", "crashed", "slow")):
                code = 1
            if cell["status"] in ("crashed", "slow"):
                complain(f"{row['pattern']} under {name}: {cell['detail']}")
    if unmeasured:
        complain(f"{unmeasured} of {sum(len(row['allocators']) for row in rows)} were not measured within the budget; "
                 "give more with --budget-seconds, or name patterns.")
        code = max(code, 1)
    return code


# --- both


def _draw(asked: Asked, rows: list[dict], columns: list[str], ratios: list[list[float | None]], words: list[list[str]],
          where: str) -> None:
    if asked.picture is None:
        return
    from dymem.stress.picture import draw

    draw(asked.picture, [row["pattern"] for row in rows], columns, ratios, words,
         f"Smallest limit under which each pattern survives, {where}")


def _listing(patterns) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("pattern", "what the program does", "from"):
        table.add_column(heading, justify="left")
    for each in patterns:
        table.add_row(each.name, each.story, each.source)
    return table
