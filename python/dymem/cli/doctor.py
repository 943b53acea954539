"""`dymem doctor`: all checks of dymem.doctor in one table, and the exit code: 0 = dymem can serve PyTorch here.

Only what training needs decides the exit code: the replay commands work without any of it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from dymem import __version__
from dymem.cli.console import complain, files_before, out, progress, show, write_json
from dymem.doctor import adapters, cards, costs, software
from dymem.doctor.finding import Finding
from dymem.errors import DymemError, InvalidArgument
from dymem.writing import check_writable


def main(json_file: Path | None = None, calibrate: bool = False) -> int:
    check_writable(json_file)
    torch = software.check_torch()
    findings = [software.check_core(), software.check_config(), torch, software.check_compiler(),
                *software.check_headers(), adapters.check_cache()]
    machine = cards.check_driver()
    findings += machine
    if torch.ok:
        findings.append(adapters.check_adapter())
    driver = next((finding for finding in machine if finding.what == "driver"), None)
    gpus = [finding for finding in machine if "index" in finding.facts]
    if calibrate:
        _calibrate(gpus, driver)
    findings += costs.check_costs(gpus, driver) + software.check_optional()
    ready = not any(finding.missing for finding in findings)
    with files_before(lambda: _tell(findings, ready)):
        write_json(json_file, {"dymem": __version__, "host": platform.node(), "python": platform.python_version(),
                               "ready": ready, "findings": [_json(finding) for finding in findings]})
    return 0 if ready else 1


def _tell(findings: list[Finding], ready: bool) -> None:
    show(_table(findings))
    out.print("dymem can serve PyTorch here." if ready else
              "dymem cannot serve PyTorch here yet (replay, compare, stress and plot work without a GPU).")


def _calibrate(gpus: list[Finding], driver: Finding | None) -> None:
    if not any(card.facts.get("vmm") for card in gpus):
        raise InvalidArgument("--calibrate measures the driver of a GPU with virtual memory management, and none is here.")
    try:
        with progress() as bar:
            tasks: dict = {}

            def step(name: str, at: int, of: int) -> None:
                if name not in tasks:
                    tasks[name] = bar.add_task(f"measuring {name}", total=of)
                bar.update(tasks[name], completed=at)

            costs.calibrate(gpus, driver, step)
    except DymemError as error:  # the other findings are worth as much as before
        complain(error)


def _json(finding: Finding) -> dict:
    return {"what": finding.what, "state": finding.state, "ok": finding.ok, "needed": finding.needed,
            "advice": finding.advice, "facts": finding.facts}


def _table(findings: list[Finding]) -> Table:
    title = Text(f"dymem on {platform.node()}, Python {platform.python_version()} ({sys.executable})")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    widths = _widths(findings)
    for name, width in zip(("", "what", "found", "what to do"), (2, None, *(widths or (None, None)))):
        table.add_column(name, overflow="fold", width=width, no_wrap=name == "what")
    for finding in findings:
        sign = "[green]ok[/green]" if finding.ok else "[red]no[/red]" if finding.needed else "[yellow]--[/yellow]"
        texts = finding.state, finding.advice
        if widths is not None:
            texts = (at_slashes(text, width) for text, width in zip(texts, widths))
        table.add_row(sign, finding.what, *map(Text, texts))  # text from elsewhere is no markup
    return table


def _widths(findings: list[Finding]) -> tuple[int, int] | None:
    """Columns for what was found and what to do: as wide as needed, or what the screen has, shared out; None if it has too
    little for either."""
    room = out.width - 2 - max(len(finding.what) for finding in findings) - 13  # 13: what lies between columns
    if room < 24:
        return None
    found, advice = (max(len(text) for text in texts) for texts in zip(*((f.state, f.advice) for f in findings)))
    advice = min(max(advice, 10), max(room - found, room * 2 // 5))
    return min(found, room - advice), advice


def at_slashes(text: str, width: int) -> str:
    """With line breaks in words that are longer than `width`: a path is broken behind a slash, not within a name."""
    words = []
    for word in text.split(" "):
        lines, rest = [], word
        while len(rest) > width and (at := rest.rfind("/", 1, width)) > 0:
            lines.append(rest[:at + 1])
            rest = rest[at + 1:]
        words.append("\n".join([*lines, rest]))
    return " ".join(words)
