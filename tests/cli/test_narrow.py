"""Tables where the terminal is narrow: every figure and every status of the wide table is in the narrow one, whole."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dymem.cli import compare_tables, console, doctor, stress_tables, tables
from dymem.doctor.finding import Finding

GIB = 1 << 30
FIGURE = re.compile(r"(?<![\w.])[+≤]?\d[\d.,]*x?(?: (?:[KMGT]iB|B|%|ns|ms)(?!\w))?")

REPLAYED = {"name": "resnet152_offload_ckpt", "live_peak_bytes": 23 * GIB, "occupied_peak_bytes": 24 * GIB, "oom": None,
            "native_reserved_peak_bytes": 63 * GIB, "reserved_peak_bytes": 25 * GIB, "limit_bytes": 26 * GIB,
            "driver_calls_warm": 12345, "trace_time_warm_us": 1e6, "driver_time_warm_us": 6421, "malloc_ns_median": 88.2,
            "free_ns_median": 70.4}
CELL = {"ratio": 1.137, "status": "done", "damaged": 0, "seconds": 0.0123, "near_seconds": 0.0345, "detail": ""}
NAMES = ["native", "expandable", "async", "dymem"]
SIDE = {"title": "PyTorch, expandable segments", "live_peak_bytes": 23 * GIB, "occupied_peak_bytes": 24 * GIB, "overhead": 0.104,
        "reserved_peak_bytes": 27 * GIB, "over_smallest_occupied": 0.123, "step_ms": 1234.5, "ratio": 1.012,
        "ratio_upper_95": 1.034, "calls_per_step": 4321, "call_ns": 567, "device_allocations": 89, "device_frees": 9}


def of_doctor(width, monkeypatch):
    monkeypatch.setattr(doctor.out, "_width", width)
    return doctor._table([Finding("core", "dymem 0.1.0, /usr/lib/python3.11/site-packages/dymem/libdymem.so", True),
                          Finding("Python headers", "Python.h is not there", False, "apt-get install python3-dev"),
                          Finding("adapter", "built for torch 2.14.1", False, "Nothing.", needed=False)])


TABLES = {
    "replay": lambda *_: tables.replay_table([REPLAYED, {**REPLAYED, "name": "kmeans", "oom": {}}]),
    "compare": lambda *_: tables.compare_table([REPLAYED], 10.0),
    "stress": lambda *_: tables.stress_table([{
        "pattern": "cross_stream_pending", "occupied_peak_bytes": 4 * GIB, "source": "pytorch#35901", "settings": {
            "vmm": {"ratio": 1.002, "at_limit": {"driver_calls": 1234}}, "contiguous": {"ratio": None}}}]),
    "smallest": lambda *_: stress_tables.card_stress_table([{
        "pattern": "checkerboard", "occupied_peak_bytes": 4 * GIB,
        "allocators": {name: {**CELL, "damaged": name == "async"} for name in NAMES}}], "NVIDIA H200"),
    "times": lambda *_: stress_tables.card_time_table([{
        "pattern": "checkerboard", "allocators": {name: CELL for name in NAMES}}], "NVIDIA H200"),
    "side by side": lambda *_: compare_tables.side_by_side_table({
        "workload": "resnet50_b128", "fastest_rival": "native", "smallest_occupied_peak_bytes": 24 * GIB, "allocators": NAMES,
        **{name: SIDE for name in NAMES[1:]}, "native": {**SIDE, "error": "it died"}}),
    "caps": lambda *_: compare_tables.cap_table({
        "workload": "resnet50_b128", "live_peak_bytes": 23 * GIB, "warm": "", "allocators": ["native", "dymem"], "caps": [
            {"cap": cap, "native": {"trains": False}, "dymem": {"trains": True, "ratio": 1.25, "ratio_upper_95": 1.375}}
            for cap in (1.0, 1.02, 1.05, 1.1, 1.2, 1.5)]}),
    "doctor": of_doctor,
}


def printed(table, width, monkeypatch) -> str:
    text = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=text, width=width, color_system=None, highlight=False))
    console.show(table)
    return text.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120])
@pytest.mark.parametrize("name", TABLES)
def test_no_figure_and_no_status_is_lost(name, width, monkeypatch):
    wide = TABLES[name](1000, monkeypatch)
    cells = [cell.plain if isinstance(cell, Text) else Text.from_markup(cell).plain for column in wide.columns
             for cell in column.cells]
    narrow = printed(TABLES[name](width, monkeypatch), width, monkeypatch)
    figures = {figure for cell in cells for figure in FIGURE.findall(cell)}
    assert figures and "…" not in narrow
    for figure in figures:
        assert re.search(rf"(?<![\w.,]){re.escape(figure)}(?!\w)", narrow), f"{figure} is not in\n{narrow}"
    for status in {"ok", "no", "--", "failed", "yes"} & set(cells):
        assert re.search(rf"(?<!\w){status}(?!\w)", narrow), f"{status} is not in\n{narrow}"


def test_a_table_that_fits_is_as_ever(monkeypatch):
    table = TABLES["compare"]()
    text = io.StringIO()
    Console(file=text, width=150, color_system=None, highlight=False).print(table)
    assert printed(table, 150, monkeypatch) == text.getvalue()


def test_where_it_just_does_not_fit_cells_are_folded_between_words(monkeypatch):
    lines = printed(TABLES["compare"](), 80, monkeypatch).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("63.0 GiB" in line and "(+162.5 %)" not in line for line in lines)
    assert any("(+162.5 %)" in line for line in lines)


def test_where_nothing_fits_each_cell_is_a_line(monkeypatch):
    table = Table("", "what", "found", title="[b]Title[/b]")
    table.add_row("[red]no[/red]", "x" * 20, "y" * 30)
    table.add_row("ok", "core", "")
    assert printed(table, 40, monkeypatch) == f"Title\n\nno {'x' * 20}\n  found: {'y' * 30}\n\nok core\n\n"


def test_doctor_keeps_its_signs_on_a_narrow_screen(dymem_command):
    for width in (40, 50, 60):
        run = dymem_command("doctor", env={"COLUMNS": str(width)})
        assert re.search(r"^ *ok +core", run.stdout, re.MULTILINE) and "…" not in run.stdout, run.stdout
