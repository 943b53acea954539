"""What all commands share: where text goes, how progress looks, how an error is said.

Tables go to stdout; progress and complaints go to stderr, so that stdout can be kept. Whatever a command leaves in files
it writes before it prints, and it prints also where a file cannot be written (`files_before`): neither a reader that goes
away nor a full disk costs the whole result.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Callable, Iterator, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dymem.cli.fitting import as_lines, fitted
from dymem.errors import DymemError, InvalidArgument
from dymem.writing import write_bytes

BROKEN = 3  # exit code where the pool's own audit failed
GONE = 141  # … where the reader of stdout has gone, as a shell counts it (128 + SIGPIPE)
WIDE = 1000  # a table in a file or a pipe is as wide as it needs


def silence(descriptor: int) -> None:
    """What is left in a buffer would fail once more when the process ends, and change its exit code."""
    with contextlib.suppress(OSError):  # no descriptor is left: then so be it
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


class _Stdout(Console):
    """What cannot be written there ends the command: without a word where the reader has gone, else with a sentence."""

    def on_broken_pipe(self) -> NoReturn:
        silence(1)
        raise SystemExit(GONE)

    def print(self, *args, **kwargs) -> None:
        try:
            super().print(*args, **kwargs)
        except OSError as error:
            silence(1)
            raise InvalidArgument(f"stdout cannot be written: {error.strerror}.") from None


class _Stderr(Console):
    """What cannot be said there is not: the exit code tells."""

    def on_broken_pipe(self) -> None:
        silence(2)

    def print(self, *args, **kwargs) -> None:
        try:
            super().print(*args, **kwargs)
        except OSError:
            silence(2)


WIDTH = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDE
out = _Stdout(width=WIDTH, highlight=False)
err = _Stderr(stderr=True, highlight=False, soft_wrap=True)


def complain(sentence: object) -> None:
    err.print(f"dymem: {sentence}", markup=False)


def show(table: Table, markdown: bool = False) -> None:
    """On the screen as wide as that is, where all of it can be read; as Markdown a line for each row, whatever the width."""
    if not markdown:
        if (narrow := fitted(table, out.width)) is not None:
            out.print(narrow)
        else:
            out.print(as_lines(table), soft_wrap=True)
            out.print()
        return
    table.box, table.title, table.caption, table.show_edge, table.pad_edge = box.MARKDOWN, None, None, True, True
    wide = Console(width=10 * WIDE, color_system=None, highlight=False)
    with wide.capture() as text:
        wide.print(table)
    lines = [line.rstrip() for line in text.get().splitlines()]
    out.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)


@contextlib.contextmanager
def files_before(printing: Callable[[], None]) -> Iterator[None]:
    """Files are written in the block; then `printing` is called, whatever became of them. A file that could not be written is
    told of, whatever becomes of the printing."""
    failed = None
    try:
        yield
    except DymemError as error:
        failed = error
    except BaseException:
        printing()
        raise
    try:
        printing()
    finally:
        if failed is not None:
            raise failed


def one_sentence(command: Callable) -> Callable:
    """Whatever dymem raises on purpose ends the command with its sentence and exit code 2."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except DymemError as error:
            complain(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stop:
            complain("stopped.")
            raise typer.Exit(128 + getattr(stop, "number", signal.SIGINT)) from None  # as a shell counts it

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
