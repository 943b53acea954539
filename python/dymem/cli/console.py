"""What all commands share: where text goes, how progress looks, how an error is said.

Tables go to stdout; progress and complaints go to stderr, so that stdout can be kept.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Callable

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dymem.errors import DymemError, InvalidArgument
from dymem.writing import write_bytes

WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 128  # a table in a file is not cut to 80 columns
out = Console(width=WIDTH, highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)


BROKEN = 3  # exit code where the pool's own audit failed


def complain(sentence: object) -> None:
    err.print(f"dymem: {sentence}", markup=False)


def show(table: Table, markdown: bool) -> None:
    if markdown:
        table.box, table.title, table.caption, table.show_edge = box.MARKDOWN, None, None, True
    out.print(table)


def one_sentence(command: Callable) -> Callable:
    """Whatever dymem raises on purpose ends the command with its sentence and exit code 2."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except DymemError as error:
            complain(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            complain("stopped.")
            raise typer.Exit(130) from None

    return wrapped


def chosen(known, wanted: list[str] | None, what: str = "") -> list[str]:
    """Those of `known` that are wanted, in the order of `known`; all if none is named. `what` one of them is called."""
    for name in wanted or []:
        if name not in known:
            named = f"{what} '{name}'" if what else f"'{name}'"
            raise InvalidArgument(f"there is no {named}; there are {', '.join(known)}.")
    return [name for name in known if not wanted or name in wanted]


def progress() -> Progress:
    return Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                    console=err, transient=True, disable=not sys.stderr.isatty())


def write_json(path: Path | None, content: dict) -> None:
    """As dymem.writing.write_bytes does."""
    if path is not None:
        write_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
