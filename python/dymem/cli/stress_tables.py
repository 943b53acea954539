"""The tables and notes of `dymem stress` on a GPU. Pure: from rows whose "allocators" are the cells of
dymem.stress.on_workers, by allocator, to rich's renderables and text."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from dymem.cli.tables import new_table
from dymem.config import format_bytes

_WITHOUT = {"budget": "-", "missing": "absent", "crashed": "crashed", "slow": "no answer", "none": "> 4x"}


def card_stress_words(row: dict) -> list[str]:
    """What a pattern's cells say: "1.137", "<= 1.2" where time ran out, "1.000 !" where bytes were lost, or why none."""
    words = []
    for cell in row["allocators"].values():
        if cell["ratio"] is None:
            words.append(_WITHOUT.get(cell["status"], cell["status"]))
            continue
        roughly = "<= " if cell["status"] == "roughly" else ""
        words.append(f"{roughly}{cell['ratio']:.3f}{' !' if cell['damaged'] else ''}")
    return words


def _sound(cell: dict, key: str) -> float | None:
    return None if cell["damaged"] or cell["ratio"] is None else cell[key]


def _best(row: dict, key: str) -> float | None:
    return min((value for cell in row["allocators"].values() if (value := _sound(cell, key)) is not None), default=None)


def _highlighted(word: str, best: bool, bad: bool) -> Text:
    return Text(word, style="bold green" if best else "red" if bad else "")


def _allocators(rows: list[dict]) -> list[str]:
    return list(rows[0]["allocators"]) if rows else []


def _headings(rows: list[dict]) -> list[str]:
    return [name.replace("_", " ") for name in _allocators(rows)]  # these break where the table is narrow


def card_stress_table(rows: list[dict], where: str) -> Table:
    """Smallest limits by pattern and allocator; the best of a row, to the precision shown, is highlighted."""
    table = new_table(f"Smallest limit under which each pattern survives, as a multiple of its occupied peak ({where})",
                   ["pattern", "occupied", *_headings(rows)])
    for row in rows:
        best = _best(row, "ratio")
        words = [_highlighted(word, (ratio := _sound(cell, "ratio")) is not None and round(ratio, 3) <= round(best, 3),
                              bool(cell["damaged"]) or cell["status"] in ("crashed", "slow", "none"))
                 for word, cell in zip(card_stress_words(row), row["allocators"].values())]
        table.add_row(Text(row["pattern"]), format_bytes(row["occupied_peak_bytes"]), *words)
    return table


def card_time_table(rows: list[dict], where: str) -> Table:
    """Times relative to the fastest of a row: without a limit, and near the smallest limit."""
    table = new_table(f"Time of the whole pattern over the fastest allocator's: without a limit / near its smallest ({where})",
                   ["pattern", "fastest", *_headings(rows)],
                   caption="Medians of the runs after the first; near: the allocator's own smallest limit + 1 % of the "
                           "occupied peak. Blocks are written and read.")
    for row in rows:
        fastest = _best(row, "seconds")
        words = []
        for cell in row["allocators"].values():
            word = "/".join("-" if cell[key] is None or not fastest else f"{cell[key] / fastest:.{digits}f}"
                            for key, digits in (("seconds", 2), ("near_seconds", 1)))
            words.append(_highlighted(word, cell["seconds"] is not None and cell["seconds"] == fastest, False))
        table.add_row(Text(row["pattern"]), f"{1e3 * fastest:.1f} ms" if fastest else "-", *words)
    return table


def card_stress_notes(rows: list[dict], titles: dict[str, str], notes: dict[str, str]) -> list[str]:
    """What a reader of the two tables must know, a line each."""
    lines = []
    for name in _allocators(rows):
        cells = {row["pattern"]: row["allocators"][name] for row in rows}
        absent = next((cell["detail"] for cell in cells.values() if cell["status"] == "missing"), None)
        if absent:
            lines.append(f"{name}: {absent}")
            continue
        damaged = [pattern for pattern, cell in cells.items() if cell["damaged"]]
        if damaged:
            lines.append(f"! {name} ({titles[name]}): blocks lost their bytes in {', '.join(damaged)}.")
        if notes.get(name):
            lines.append(f"{name}: {notes[name]}")
    return lines
