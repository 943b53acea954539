"""`dymem stress`: the fragmentation patterns under the pool's configurations, on the emulated device.

The work is in dymem.stress; here are its table, its JSON and its progress.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.table import Table

from dymem import __version__
from dymem.cli.console import BROKEN, check_writable, chosen, complain, progress, show, write_json
from dymem.cli.tables import stress_table
from dymem.config import parse_bytes
from dymem.errors import InvalidArgument

SCALE_MIN = 256 << 20


def main(patterns: list[str] | None, *, scale: str, seed: int, precision: float, settings: list[str] | None,
         json_file: Path | None, listed: bool, markdown: bool) -> int:
    from dymem.stress import PATTERNS, SETTINGS, smallest_limit

    if listed:
        show(_listing(PATTERNS.values()), markdown)
        return 0
    names = chosen(PATTERNS, patterns, "pattern")
    wanted = chosen(SETTINGS, settings, "setting")
    scale_bytes = parse_bytes(scale)
    if scale_bytes < SCALE_MIN:
        raise InvalidArgument("a scale below 256MiB leaves nothing to fragment; write for example --scale 4GiB.")
    if not 0.0005 <= precision <= 0.5:
        raise InvalidArgument("a precision is between 0.0005 and 0.5, as a share of the occupied peak.")
    check_writable(json_file)
    rows = []
    with progress() as bar:
        task = bar.add_task("stress", total=len(names) * len(wanted))
        for name in names:
            recording = PATTERNS[name].script(scale_bytes, seed).recording(name)
            row = {"pattern": name, "source": PATTERNS[name].source, "events": len(recording), "settings": {}}
            for setting in wanted:
                bar.update(task, description=f"{name} under {setting}")
                survival = smallest_limit(recording, setting, precision=precision)
                row["occupied_peak_bytes"] = survival.occupied_peak_bytes
                row["settings"][setting] = dataclasses.asdict(survival)
                bar.update(task, advance=1)
            rows.append(row)
    show(stress_table(rows), markdown)
    write_json(json_file, {"kind": "stress", "driver": "emulated", "scale_bytes": scale_bytes, "seed": seed,
                           "precision": precision, "patterns": rows, "dymem": __version__})
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


def _listing(patterns) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("pattern", "what the program does", "from"):
        table.add_column(heading, justify="left")
    for each in patterns:
        table.add_row(each.name, each.story, each.source)
    return table
