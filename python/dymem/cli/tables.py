"""The tables and sentences of replay and compare. Pure: from the JSON objects to rich's renderables and text."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from dymem.config import format_bytes


def percent(ratio: float) -> str:
    return f"{100 * ratio:+.1f} %"


def with_overhead(reserved: int | None, occupied: int) -> str:
    if reserved is None:
        return "-"
    return f"{format_bytes(reserved)} ({percent(reserved / occupied - 1) if occupied else '-'})"


def warm_driver(result: dict) -> str:
    """Driver calls in warm iterations, and their share of the time: "0", or "1,204 (0.41 %)"."""
    calls, span = result["driver_calls_warm"], result["trace_time_warm_us"]
    if not calls:
        return "0"
    return f"{calls:,} ({100 * result['driver_time_warm_us'] / span:.2f} %)" if span else f"{calls:,}"


def new_table(title: str, names: list[str], caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
    return table


def _name(text: str) -> Text:
    """As it is: in a name of somebody else's, brackets are no markup."""
    return Text(text)


def replay_table(results: list[dict]) -> Table:
    limited = any(result["limit_bytes"] for result in results)
    names = ["trace", "live peak", "occupied peak", "recorded reserved", "dymem reserved", "warm driver calls",
             "malloc / free"]
    table = new_table("Replayed through dymem's pool", names + (["limit", "fits"] if limited else []))
    for r in results:
        ours = r["reserved_peak_bytes"]
        row = [_name(r["name"]), format_bytes(r["live_peak_bytes"]), format_bytes(r["occupied_peak_bytes"]),
               with_overhead(r["native_reserved_peak_bytes"], r["occupied_peak_bytes"]),
               # Cut short by its limit, it never came to its peak: a ratio to that would be no overhead.
               format_bytes(ours) if r["oom"] else with_overhead(ours, r["occupied_peak_bytes"]), warm_driver(r),
               f"{r['malloc_ns_median']:.0f} / {r['free_ns_median']:.0f} ns"]
        if limited:
            row += [format_bytes(r["limit_bytes"]), "[red]no[/red]" if r["oom"] else "yes"]
        table.add_row(*row)
    return table


def oom_sentence(result: dict) -> str:
    oom = result["oom"]
    where = f"into {format_bytes(result['limit_bytes'])}" if result["limit_bytes"] else "on the emulated device"
    return (f"dymem: {result['name']} does not fit {where}: at event "
            f"{oom['event']:,} of {result['events']:,} it asked for {format_bytes(oom['requested_bytes'])} with "
            f"{format_bytes(oom['live_bytes'])} live, {format_bytes(oom['pending_bytes'])} pending and "
            f"{format_bytes(oom['reserved_bytes'])} reserved; its occupied peak is "
            f"{format_bytes(result['occupied_peak_bytes'])}.")


def compare_table(results: list[dict], lag_ms: float) -> Table:
    table = new_table("Recorded training runs: PyTorch's allocator on the card, dymem's pool replaying the same calls",
                   ["recording", "occupied peak", "PyTorch reserved", "dymem reserved", "saved", "warm driver calls"],
                   caption=f"In brackets: over the occupied peak; driver time of warm iterations. Lag {lag_ms:g} ms.")
    for r in results:
        native, ours = r["native_reserved_peak_bytes"], r["reserved_peak_bytes"]
        table.add_row(_name(r["name"]), format_bytes(r["occupied_peak_bytes"]),
                      with_overhead(native, r["occupied_peak_bytes"]), with_overhead(ours, r["occupied_peak_bytes"]),
                      "-" if native is None else format_bytes(native - ours), warm_driver(r))
    return table


def stress_table(rows: list[dict]) -> Table:
    """Smallest limits of `dymem stress`, a row for each pattern and a column for each setting."""
    settings = list(rows[0]["settings"]) if rows else []
    table = new_table("Smallest limit under which each pattern survives, as a multiple of its occupied peak",
                   ["pattern", "occupied peak", *settings, "from"],
                   caption="Emulated device. In brackets: driver calls of the whole run at that limit.")
    for row in rows:
        table.add_row(row["pattern"], format_bytes(row["occupied_peak_bytes"]),
                      *(_survival(row["settings"][setting]) for setting in settings), _name(row["source"]))
    return table


def _survival(survival: dict) -> str:
    if survival["ratio"] is None:
        return "[red]not even 4x[/red]"
    return f"{survival['ratio']:.3f}x ({survival['at_limit']['driver_calls']:,})"
