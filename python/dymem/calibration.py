"""What driver calls cost on this machine: measured once for each card and driver, and kept in the user's cache.

Policies that weigh a driver call against memory ask `load`; who finds nothing there measures (`dymem doctor --calibrate`,
some seconds). Costs are medians, in microseconds, of one call on a handle of so many MiB, on an idle device and in a tight
loop; in a training process the same calls take two to three times as long (docs/decisions/0001).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from dymem._adapter_build import cache_folder
from dymem.errors import DriverError, InstallError, InvalidArgument

if TYPE_CHECKING:
    from dymem._core.driver import Driver

MIB = 1 << 20
SIZES_MIB = (2, 16, 64, 256)
CALLS = ("create", "map", "access", "unmap", "release")
EVENTS = ("create", "record", "query", "wait", "destroy")
_SCHEMA = 1


def path_of(card: str, driver: str) -> Path:
    """The file for a card and a driver release."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{card}-{driver}").strip("-.") or "card"
    return cache_folder().parent / "costs" / f"{words[:120]}.json"


def load(card: str, driver: str) -> dict | None:
    """What `save` kept for this card and driver; None if nothing whole is there."""
    try:
        costs = json.loads(path_of(card, driver).read_text())
        whole = costs["schema"] == _SCHEMA and all(costs["fit"][call]["base_us"] >= 0 for call in CALLS)
        return costs if whole and set(EVENTS) <= set(costs["events_us"]) else None
    except (OSError, ValueError, KeyError, TypeError, InstallError):  # the last: there is no folder to keep them in
        return None


def save(costs: dict) -> Path:
    """Keeps what `measure` found; InvalidArgument if it cannot be written."""
    path = path_of(costs["card"], costs["driver"])
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(costs, indent=1) + "\n")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidArgument(f"the costs cannot be kept in {path.parent} ({error.strerror}): set DYMEM_CACHE to a folder "
                              "that this user may write to.") from None
    return path


def measure(driver: Driver, card: str, release: str, repetitions: int = 30,
            progress: Callable[[int, int], None] | None = None) -> dict:
    """Costs on this device; holds at most one handle of SIZES_MIB[-1] MiB at a time. DriverError if a call fails."""
    if not driver.has_vmm:
        raise InvalidArgument(f"{card} has no virtual memory management: there are no calls to measure.")
    calls: dict[str, dict[str, float]] = {name: {} for name in CALLS}
    for done, mib in enumerate(SIZES_MIB):
        for name, us in _one_size(driver, mib * MIB, repetitions if mib < 256 else max(repetitions // 3, 3)).items():
            calls[name][str(mib)] = round(us, 3)
        if progress:
            progress(done + 1, len(SIZES_MIB))
    return {"schema": _SCHEMA, "card": card, "driver": release,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "granularity_bytes": driver.granularity,
            "calls_us": calls, "fit": {name: _fit(calls[name]) for name in CALLS},
            "events_us": _events(driver, repetitions)}


def _one_size(driver: Driver, size: int, repetitions: int) -> dict[str, float]:
    """The median of each call, in microseconds, as the driver seam counts it."""
    taken: dict[str, list[int]] = {name: [] for name in CALLS}
    base, handle = _answer(driver.reserve(size), "reserving addresses"), 0
    try:
        for _ in range(repetitions):
            handle = _timed(driver, taken["create"], lambda: _answer(driver.create(size), f"creating {size >> 20} MiB"))
            _timed(driver, taken["map"], lambda: _ok(driver.map(base, size, handle), "mapping"))
            _timed(driver, taken["access"], lambda: _ok(driver.set_access(base, size), "giving access"))
            _timed(driver, taken["unmap"], lambda: _ok(driver.unmap(base, size), "unmapping"))
            _timed(driver, taken["release"], lambda: _ok(driver.destroy(handle), "releasing"))
            handle = 0
    finally:
        if handle:  # a call failed half-way
            driver.unmap(base, size)
            driver.destroy(handle)
        driver.release_addresses(base, size)
    return {name: statistics.median(values) / 1000 for name, values in taken.items()}


def _timed(driver: Driver, into: list[int], call: Callable):
    before = driver.counters()["memory_time_ns"]
    result = call()
    into.append(driver.counters()["memory_time_ns"] - before)
    return result


def _answer(answer: tuple, what: str):
    _ok(answer[0], what)
    return answer[1]


def _ok(code, what: str) -> None:
    if code.name != "ok":
        raise DriverError(f"the costs cannot be measured: {what} failed ({code.name}); is the device in use by others?")


def _fit(by_mib: dict[str, float]) -> dict[str, float]:
    """base_us + us_per_mib × MiB, by least squares; neither below 0."""
    xs, ys = [float(mib) for mib in by_mib], list(by_mib.values())
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    slope = max(sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs), 0.0)
    return {"base_us": round(max(y - slope * x, 0.0), 4), "us_per_mib": round(slope, 6)}


def _events(driver: Driver, repetitions: int) -> dict[str, float]:
    """Medians of the calls on events; what a call from Python costs by itself is taken off."""
    taken: dict[str, list[int]] = {name: [] for name in EVENTS}
    idle: list[int] = []
    for _ in range(max(10 * repetitions, 50)):
        _clocked(idle, driver.now)
        event = _answer(_clocked(taken["create"], driver.event_create), "creating an event")
        _ok(_clocked(taken["record"], lambda: driver.event_record(event, 0)), "recording an event")
        _clocked(taken["query"], lambda: driver.event_query(event))
        _ok(_clocked(taken["wait"], lambda: driver.stream_wait(0, event)), "waiting for an event")
        _ok(_clocked(taken["destroy"], lambda: driver.event_destroy(event)), "destroying an event")
    itself = statistics.median(idle)
    return {name: round(max(statistics.median(values) - itself, 0) / 1000, 3) for name, values in taken.items()}


def _clocked(into: list[int], call: Callable):
    start = time.perf_counter_ns()
    result = call()
    into.append(time.perf_counter_ns() - start)
    return result
