"""Checks what driver calls cost here, from the cache; `calibrate` measures them."""

from __future__ import annotations

from typing import Callable

from dymem import calibration
from dymem.doctor.finding import Finding


def check_costs(cards: list[Finding], driver: Finding | None) -> list[Finding]:
    """One finding for each kind of card that is here and can be measured."""
    findings = []
    for name in dict.fromkeys(card.facts["name"] for card in cards if card.facts.get("vmm")):
        costs = calibration.load(name, release_of(driver))
        if costs is None:
            findings.append(Finding("costs", f"{name}: not measured with this driver", False, "dymem doctor --calibrate",
                                    needed=False, facts={"card": name}))
        else:
            findings.append(Finding("costs", f"{name}: {sentence(costs)}", True, needed=False, facts=costs))
    return findings


def sentence(costs: dict) -> str:
    """The costs of a 2 MiB granule and of events."""
    calls = ", ".join(f"{name} {costs['calls_us'][name]['2']:.3g}" for name in calibration.CALLS)
    events = ", ".join(f"{name} {costs['events_us'][name]:.2g}" for name in ("record", "query", "wait"))
    return f"2 MiB: {calls} µs; event: {events} µs (measured {costs['measured_at'][:10]})"


def calibrate(cards: list[Finding], driver: Finding | None, progress: Callable[[str, int, int], None]) -> list[str]:
    """Measures each kind of card once and keeps it; returns the names. Creates a context on the card."""
    from dymem import _core

    done: list[str] = []
    for card in cards:
        name = card.facts.get("name")
        if not card.facts.get("vmm") or name in done:
            continue
        device = _core.driver.make_cuda(card.facts["index"])
        calibration.save(calibration.measure(device, name, release_of(driver),
                                             progress=lambda at, of, name=name: progress(name, at, of)))
        done.append(name)
    return done


def release_of(driver: Finding | None) -> str:
    """What names the driver in the cache."""
    return str((driver.facts.get("release") or f"CUDA-{driver.facts.get('cuda')}") if driver else "none")
