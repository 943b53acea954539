"""Tables on whatever screen: a figure is never cut, nor broken within a number and its unit.

As wide as the table wants to be where that fits; else its cells are folded between words; and where not even the
longest words fit beside each other, a line for each cell. Pure: from rich's tables to rich's tables and text.
"""

from __future__ import annotations

import copy
import dataclasses
import re

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_ENDLESS = 100_000
# A word, and the unit or the mark behind it.
_WORD = re.compile(r"\S+(?: (?:[KMGT]?i?B|%|ns|µs|ms|s|!)[),;]*(?=\s|$))*")


def fitted(table: Table, width: int) -> Table | None:
    """The table in so many columns of a terminal; None if that cannot be without losing something."""
    columns = [(_text(column.header), [_text(cell) for cell in column.cells], column) for column in table.columns]
    natural = [_width_of(header, cells, column, _longest_line) for header, cells, column in columns]
    least = [_width_of(header, cells, column, _longest_line if column.no_wrap else _longest_word)
             for header, cells, column in columns]
    if sum(natural) + _between(table, natural) <= width:
        return table
    narrow = copy.copy(table)
    if table.collapse_padding or sum(least) + _between(narrow, natural) > width:
        narrow.collapse_padding, narrow.pad_edge = True, False  # with both, rich cuts a character of the first column
    room = width - _between(narrow, natural)
    if sum(least) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:  # from whichever is the widest of those that can be narrower
        widths[max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])] -= 1
    narrow.columns = [dataclasses.replace(column, header=_folded(header, wide), width=wide,
                                          _cells=[_folded(cell, wide) for cell in cells])
                      for (header, cells, column), wide in zip(columns, widths)]
    return narrow


def _between(table: Table, natural: list[int]) -> int:
    """What lies between the columns and beside them."""
    bare = copy.copy(table)
    bare.title = bare.caption = None  # these may be wider than the columns
    endless = Console(width=_ENDLESS)
    return Measurement.get(endless, endless.options, bare).maximum - sum(natural)


def as_lines(table: Table) -> Text:
    """Title, rows and caption: of a row its first cell, and below it "heading: cell" for each of the others that says
    something. What has no heading stands before the next cell."""
    blocks = [_text(table.title)] if table.title else []
    for row in zip(*(column.cells for column in table.columns)):
        lines: list[Text] = []
        before = Text()
        for column, cell in zip(table.columns, map(_text, row)):
            heading = _text(column.header).plain
            if not heading:
                before = cell + Text(" ")
            elif cell.plain:
                named = before + (cell if before else Text(f"{heading}: ") + cell)
                lines.append(Text("  ") + named if lines else named)
                before = Text()
        blocks.append(Text("\n").join(lines))
    blocks += [_text(table.caption)] if table.caption else []
    return Text("\n\n").join(blocks)


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def _width_of(header: Text, cells: list[Text], column: Column, longest) -> int:
    return column.width if column.width is not None else max(map(longest, [header, *cells]))


def _longest_line(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _longest_word(text: Text) -> int:
    return max((cell_len(word) for word in _WORD.findall(text.plain)), default=0)


def _folded(text: Text, width: int) -> Text:
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        start = end = 0
        for word in _WORD.finditer(line.plain):
            if end > start and cell_len(line.plain[start:word.end()]) > width:
                lines.append(line[start:end])
                start = word.start()
            end = word.end()
        lines.append(line[start:end])
    return Text("\n", justify=text.justify).join(lines)
