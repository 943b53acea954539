"""The tables of `dymem compare` on a GPU. Pure: from the JSON objects of dymem.compare to rich's tables."""

from __future__ import annotations

from typing import Mapping

from rich.table import Table
from rich.text import Text

from dymem.cli.tables import new_table, percent
from dymem.config import format_bytes
from dymem.rivals import ALLOCATORS

NOTHING = "-"


def _bytes(value: int | None) -> str:
    return NOTHING if value is None else format_bytes(value)


def _number(value: float | None, form: str = ",.0f") -> str:
    return NOTHING if value is None else format(value, form)


def _share(value: float | None) -> str:
    return NOTHING if value is None else percent(value)


def _bounded(cell: Mapping) -> str:
    return f"{cell['ratio']:.3f} ≤{cell['ratio_upper_95']:.3f}" if cell.get("ratio") else NOTHING


def _reserved(cell: Mapping) -> str:
    share = "" if cell["overhead"] is None else f" ({percent(cell['overhead'])})"
    return _bytes(cell["reserved_peak_bytes"]) + share


def _failed(cell: Mapping) -> Text:
    if cell.get("missing"):
        return Text("not here", "yellow")
    return Text("out of memory" if "out_of_memory" in cell else "failed", "red")


def _driver_calls(cell: Mapping) -> str:
    made, freed = cell["device_allocations"], cell["device_frees"]
    return NOTHING if made is None else f"{made + (freed or 0):,}"


def side_by_side_table(row: Mapping) -> Table:
    """A row for each allocator; one that failed says why where its step time would stand."""
    fastest = row["fastest_rival"]
    rival = ALLOCATORS[fastest].title if fastest else "the fastest"
    table = new_table(f"{row['workload']}: each allocator in a process of its own", [
        "allocator", "live", "occupied", "reserved", "excess", "step ms", "ratio", "calls", "ns/call", "driver"],
        caption=f"Peaks; in brackets reserved over the own occupied peak; excess: over the smallest occupied peak of all "
                f"({_bytes(row['smallest_occupied_peak_bytes'])}). Ratio: step time to that of {rival}, and its upper 95 % "
                f"bound. Calls of the allocator in a step, its calls of the driver in the whole run. {NOTHING}: it cannot "
                "tell.")
    table.collapse_padding = True
    for name in row["allocators"]:
        cell = row[name]
        step = _failed(cell) if "error" in cell else _number(cell["step_ms"], ",.1f")
        table.add_row(Text(cell["title"]), _bytes(cell["live_peak_bytes"]), _bytes(cell["occupied_peak_bytes"]),
                      _reserved(cell), _share(cell["over_smallest_occupied"]), step, _bounded(cell),
                      _number(cell["calls_per_step"]), _number(cell["call_ns"]), _driver_calls(cell))
    return table


def cap_table(row: Mapping) -> Table:
    """A row for each allocator and a column for each cap."""
    caps = row["caps"]
    table = new_table(f"{row['workload']} under a hard cap: step time over PyTorch's without one, and its upper 95 % bound",
                      ["allocator", *(f"{cell['cap']:.2f}x" for cell in caps)],
                      caption=f"Caps are multiples of PyTorch's live peak without a cap ({_bytes(row['live_peak_bytes'])}). "
                              f"{row['warm']}")
    for name in row["allocators"]:
        table.add_row(Text(ALLOCATORS[name].title), *(_under_cap(cell[name]) for cell in caps))
    return table


def _under_cap(cell: Mapping) -> Text | str:
    if cell["trains"] is False:
        return Text("out of memory", "red")
    if cell["trains"] is None:
        return _failed(cell)
    return _bounded(cell)


def failures(row: Mapping) -> list[str]:
    """One sentence for each allocator that failed, its last lines after it."""
    sentences = [f"{row['workload']}: {row['error']}"] if "error" in row else []
    for name in row["allocators"]:
        cells = [row[name]] if name in row else [cell[name] for cell in row.get("caps", [])]
        # Under a cap it is an answer to run out of memory; anything else is not.
        sentences += [f"{row['workload']} under {name}: {cell['error']}" + _tail(cell) for cell in cells
                      if "error" in cell and cell.get("trains") is not False and not cell.get("missing")]
    return sentences


def _tail(cell: Mapping) -> str:
    said = cell.get("stderr", "").strip().splitlines()
    return "".join(f"\n    {line}" for line in said[-6:]) if len(said) > 1 else ""


def notes(names: list[str]) -> list[str]:
    """What a reader must know of some rows, each sentence once."""
    told = [ALLOCATORS[name].note for name in names if ALLOCATORS[name].note]
    known = [f"{ALLOCATORS[name].title}: reserved is {ALLOCATORS[name].reserved_known_by}." for name in names
             if ALLOCATORS[name].reserved_known_by != "torch.cuda.memory_stats"]
    return list(dict.fromkeys(told + known))
