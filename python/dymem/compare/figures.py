"""Step times of several allocators to figures: medians, ratios to a reference, bootstrap bounds. Pure.

A *pair* is one repeat of the same work under two allocators: two lists of warm step times, step i the same work in both.
"""

from __future__ import annotations

import random
from typing import Mapping, Sequence

RESAMPLES = 4000
LEVEL = 0.95

Pair = tuple[list[float], list[float]]  # under the reference and under the other


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def pair_ratio(pair: Pair) -> float:
    base, other = pair
    return sum(other) / sum(base)


def step_ratio(pairs: Sequence[Pair]) -> float:
    """Median over pairs and steps of other / reference: what a typical step sees, blind to rare slow ones."""
    return median([b / a for base, other in pairs for a, b in zip(base, other)])


def bounds(pairs: Sequence[Pair], level: float = LEVEL, seed: int = 0) -> tuple[float, float]:
    """Bootstrap: pairs are drawn with replacement, steps within each too; (1 - level) and level quantiles of the median
    ratio, each a one-sided bound."""
    rng = random.Random(seed)
    medians = []
    for _ in range(RESAMPLES):
        ratios = []
        for _ in pairs:
            base, other = rng.choice(pairs)
            steps = [rng.randrange(len(base)) for _ in base]
            ratios.append(sum(other[i] for i in steps) / sum(base[i] for i in steps))
        medians.append(median(ratios))
    return quantile(medians, 1 - level), quantile(medians, level)


def upper_bound(pairs: Sequence[Pair], level: float = LEVEL, seed: int = 0) -> float:
    return bounds(pairs, level, seed)[1]


def ratio_figures(pairs: Sequence[Pair]) -> dict[str, float]:
    """The JSON figures of one allocator against the reference; {} without pairs."""
    pairs = [pair for pair in pairs if pair[0] and len(pair[0]) == len(pair[1])]
    if not pairs:
        return {}
    lower, upper = bounds(pairs)
    return {"ratio": round(median([pair_ratio(pair) for pair in pairs]), 5), "ratio_lower_95": round(lower, 5),
            "ratio_upper_95": round(upper, 5), "step_ratio_median": round(step_ratio(pairs), 5)}


def overhead(reserved: int | None, occupied: int | None) -> float | None:
    """Reserved peak over occupied peak - 1."""
    return reserved / occupied - 1 if occupied and reserved is not None else None


def fastest(step_ms: Mapping[str, float | None], rivals: Sequence[str]) -> str | None:
    """The fastest of `rivals` that trained; of all, if none of those did."""
    timed = {name: ms for name, ms in step_ms.items() if ms}
    among = [name for name in timed if name in rivals] or list(timed)
    return min(among, key=timed.__getitem__) if among else None


PEAKS = ("live_peak_bytes", "occupied_peak_bytes", "reserved_peak_bytes", "requested_peak_bytes")


def losses_compared(a: Sequence[float], b: Sequence[float]) -> dict[str, object]:
    """Are the losses of two runs equal, bit for bit, and if not, which differs first? Unequal numbers of them differ."""
    differing = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
    return {"losses_equal": list(a) == list(b), "losses_compared": min(len(a), len(b)),
            "first_differing_loss": differing[0] if differing else None}


def largest(results: Sequence[Mapping], key: str) -> int | None:
    """Over several runs, of a figure that some may not have."""
    return max((result[key] for result in results if result.get(key) is not None), default=None)
