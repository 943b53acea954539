"""One self-contained HTML page from what a command shows: its tables, sentences and PNGs, embedded. It loads nothing."""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path
from typing import Sequence

from rich.table import Table
from rich.text import Text

from dymem import __version__
from dymem.writing import write_bytes

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; } img { width: 100%; height: auto; }
table { border-collapse: collapse; margin: .6em 0; } th, td { padding: .25em .8em; text-align: right; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; } th:first-child, td:first-child { text-align: left; }
p.small, footer { color: #666; font-size: .9em; } footer { margin-top: 3em; } pre { background: #f4f4f4; padding: .6em; }
"""

Part = Table | Path | str  # a table, a PNG file, a sentence


def write_page(target: Path | None, title: str, parts: Sequence[Part]) -> None:
    """Whole or not at all; InvalidArgument if it cannot be written."""
    if target is not None:
        write_bytes(target, page(title, parts).encode("utf-8", "replace"))


def page(title: str, parts: Sequence[Part]) -> str:
    body = "\n".join(_part(part) for part in parts)
    return (f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
            f"<style>{_STYLE}</style>\n<h1>{_text(title)}</h1>\n{body}\n"
            f"<footer>Made by dymem {__version__}.</footer>\n</html>\n")


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Path):
        picture = base64.b64encode(part.read_bytes()).decode()
        name = _text(os.fsencode(part.name).decode("utf-8", "replace"))
        return f'<img alt="{name}" src="data:image/png;base64,{picture}">'
    return f"<p>{_text(part)}</p>"


def _table(table: Table) -> str:
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    lines = [f"<h2>{_text(_plain(table.title))}</h2>"] if table.title else []
    lines += ["<table>", "<tr>" + "".join(f"<th>{_text(_plain(column.header))}</th>" for column in table.columns) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in zip(*cells)]
    lines.append("</table>")
    if table.caption:
        lines.append(f'<p class="small">{_text(_plain(table.caption))}</p>')
    return "\n".join(lines)


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def _text(text: str) -> str:
    return html.escape(text)
