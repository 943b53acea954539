"""`dymem compare` with a GPU: bundled workloads, a user's script, and both questions of memory: how much, how little.

The measuring is in dymem.compare; here are the choice of names, the tables, pictures, page and JSON. Whatever fails under
one allocator is said in its row, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator

from rich.table import Table

from dymem import __version__
from dymem.cli.compare_tables import cap_table, failures, notes, side_by_side_table
from dymem.cli.console import chosen, complain, files_before, progress, show, write_json
from dymem.cli.page import Part, write_page
from dymem.compare import capped, card, pictures, script, training
from dymem.errors import DymemError, InvalidArgument
from dymem.rivals import ALLOCATORS
from dymem.rivals.of_dymem import Dymem, build_adapter
from dymem.writing import make_folder


ITERATIONS, SHAPES, SECONDS = 24, 8, 1800.0  # unless told otherwise
Record = Callable[[str, str, Path], "str | None"]  # workload, allocator, file to write; why it could not


@dataclasses.dataclass
class Asked:
    """What the user asked for; None where nothing was said."""

    json_file: Path | None = None
    html_file: Path | None = None
    folder: Path | None = None
    only: list[str] | None = None
    every: bool = False
    allocators: list[str] | None = None
    repeats: int | None = None
    iterations: int | None = None
    shapes: int | None = None
    seconds: float | None = None
    caps: list[float] | None = None
    markdown: bool = False


def chosen_allocators(text: str | None) -> list[str] | None:
    """"native,dymem" as names that exist, in the order of the list; None for all."""
    if text is None:
        return None
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    if not wanted:
        raise InvalidArgument(f"--allocators names none; there are {', '.join(ALLOCATORS)}.")
    return chosen(ALLOCATORS, wanted, "allocator")


def split_by_presence(names: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """Those that can run here, and why each of the others cannot."""
    missing = {name: reason for name in names or ALLOCATORS if (reason := ALLOCATORS[name].missing())}
    return [name for name in names or ALLOCATORS if name not in missing], missing


def compare_training(asked: Asked) -> int:
    """The bundled workloads, with or without caps."""
    known = _workloads("--list-all")
    workloads = known if asked.every else chosen(known, asked.only or _workloads("--list"), "workload")
    names, missing = _prepared(asked.allocators)
    rows, shortest = [], 0.0
    with _saying(len(workloads)) as say:
        session = training.Session(card.total_bytes(), _or(asked.seconds, SECONDS), _or(asked.iterations, ITERATIONS),
                                   _or(asked.shapes, SHAPES), say)
        for position, workload in enumerate(workloads):
            share = session.share(len(workloads) - position)
            began = time.monotonic()
            if not session.allows_another(shortest):
                row = training.left_out(workload, names, **{"caps": []} if asked.caps else {})
            elif asked.caps:
                row = capped.measure(training.Bundled(workload, share), names, asked.caps, asked.repeats or 1)
            else:
                row = training.measure(workload, names, asked.repeats or 3, share)
            if "error" not in row:
                shortest = min(shortest or math.inf, time.monotonic() - began)
            rows.append(_with_missing(row, missing))
            say("")
            write_json(asked.json_file, _content(asked, rows, missing))  # what was measured stays if the rest is cut off
    return _finish(asked, rows, names, missing, functools.partial(training.record_history, session=session))


def compare_script(program: list[str], asked: Asked) -> int:
    """A user's own script, with or without caps."""
    if not os.path.isfile(program[0]):
        raise InvalidArgument(f"there is no script {program[0]}.")
    if asked.only or asked.every:
        raise InvalidArgument("--only and --all choose bundled workloads; leave them out beside a script.")
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument("torch is not installed, so there is nothing to compare; run `pip install torch`.")
    names, missing = _prepared(asked.allocators)
    seconds = _or(asked.seconds, SECONDS)
    with _saying(0) as say:
        if asked.caps:
            row = capped.measure(script.Script(program, seconds, say), names, asked.caps, asked.repeats or 1)
        else:
            row = script.measure(program, names, asked.repeats or 3, seconds, say)
    return _finish(asked, [_with_missing(row, missing)], names, missing,
                   lambda _, name, target: script.record_history(program, name, target, seconds))


def _or(value, default):
    return default if value is None else value


def _workloads(option: str) -> list[str]:
    listing = subprocess.run([sys.executable, str(training.TRAIN), option], capture_output=True, text=True)
    if listing.returncode != 0:
        lines = (listing.stderr or listing.stdout).strip().splitlines() or [f"it ended with code {listing.returncode}"]
        raise InvalidArgument(f"bench/train.py cannot list its workloads: {lines[-1]}")
    return listing.stdout.split()


def _prepared(wanted: list[str] | None) -> tuple[list[str], dict[str, str]]:
    names, missing = split_by_presence(wanted)
    if not names:
        raise InvalidArgument(" ".join(dict.fromkeys(missing.values())))
    build_adapter(ALLOCATORS[name] for name in names)
    return names, missing


@contextlib.contextmanager
def _saying(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar; the empty sentence means that one more is done."""
    with progress() as bar:
        task = bar.add_task("comparing", total=total or None)

        def say(sentence: str) -> None:
            bar.update(task, description=sentence) if sentence else bar.update(task, advance=1)

        yield say


def _with_missing(row: dict, missing: dict[str, str]) -> dict:
    """With a row for each allocator that is not here, which says how to get it."""
    for name, reason in missing.items():
        cells = row["caps"] if "caps" in row else [row]
        for cell in cells:
            cell[name] = ({"trains": None} if "caps" in row else training.cell_of(name, [])) | {
                "error": reason, "missing": True}
        if "caps" not in row:
            row[name]["over_smallest_occupied"] = None
    row["allocators"] = [name for name in ALLOCATORS if name in row["allocators"] or name in missing]
    return row


def _content(asked: Asked, rows: list[dict], missing: dict[str, str]) -> dict:
    first = next((run for row in rows for name in row["allocators"] if isinstance(row.get(name), dict)
                  for run in row[name].get("runs", [])), {})
    return {"kind": "capped" if asked.caps else "training", "workloads": rows,
            "allocators": {name: {"title": allocator.title, "note": allocator.note, "missing": missing.get(name),
                                  "reserved_known_by": allocator.reserved_known_by}
                           for name, allocator in ALLOCATORS.items() if any(name in row["allocators"] for row in rows)},
            "errors": [sentence.splitlines()[0] for row in rows for sentence in failures(row)],
            "gpu": first.get("gpu"), "torch": first.get("torch"), "commit": os.environ.get("DYMEM_COMMIT", ""),
            "dymem": __version__}


def _finish(asked: Asked, rows: list[dict], names: list[str], missing: dict[str, str], record: Record) -> int:
    """JSON, pictures, page and tables; the exit code."""
    shown = [row for row in rows if "error" not in row]
    parts: list[Part] = [_table_of(asked, row) for row in shown]
    failed = [sentence for row in rows for sentence in failures(row)]
    told = notes(names) + list(dict.fromkeys(missing.values()))

    def tell() -> None:
        for row in shown:
            show(_table_of(asked, row), asked.markdown)
        for sentence in told + failed:
            complain(sentence)

    with files_before(tell):
        write_json(asked.json_file, _content(asked, rows, missing))
        with pictures_in(asked) as folder:
            if folder is not None:
                parts = _with_pictures(asked, shown, parts, names, folder, record)
            write_page(asked.html_file, "dymem compare", [*parts, *told, *failed])
    return 1 if failed else 0


def _table_of(asked: Asked, row: dict) -> Table:
    return cap_table(row) if asked.caps else side_by_side_table(row)


@contextlib.contextmanager
def pictures_in(asked: Asked) -> Iterator[Path | None]:
    """The folder that the user named, which is made if it is not there, or one for as long as the page is made; None: no pictures."""
    if asked.folder is not None:
        make_folder(asked.folder, "--pictures")
        yield asked.folder
    elif asked.html_file is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield None


def _with_pictures(asked: Asked, rows: list[dict], tables: list[Part], names: list[str], folder: Path,
                   record: Record) -> list[Part]:
    """The tables of the rows, each followed by its picture. A picture that cannot be made costs a sentence, no more."""
    parts: list[Part] = []
    for row, table in zip(rows, tables):
        parts.append(table)
        try:
            parts += _caps_drawn(row, folder) if asked.caps else _addresses_drawn(row, names, folder, record)
        except DymemError as error:
            complain(error)
            parts.append(str(error))  # who reads the page only is told too
    return parts


def _caps_drawn(row: dict, folder: Path) -> list[Part]:
    target = folder / f"caps-{row['workload']}.png"
    pictures.cap_curve(row, target)
    return [target]


def _addresses_drawn(row: dict, names: list[str], folder: Path, record: Record) -> list[Part]:
    """One extra short run for each allocator with a history."""
    files, told = [], []
    with tempfile.TemporaryDirectory() as scratch, _saying(0) as say:
        for name in names:
            allocator = ALLOCATORS[name]
            if not (allocator.history or isinstance(allocator, Dymem)):
                told.append(f"{allocator.title} has no history, and so no picture of addresses.")
            elif "error" not in row[name]:
                say(f"{row['workload']} under {name}, recording addresses")
                file = Path(scratch) / f"{name}.{'dymem' if isinstance(allocator, Dymem) else 'pickle'}"
                failed = record(row["workload"], name, file)
                told += [failed] if failed else []
                files += [] if failed else [(name, file)]
        target = folder / f"addresses-{row['workload']}.png"
        if files:
            pictures.address_over_time(row["workload"], files, target)
    return [*([target] if files else []), *told]
