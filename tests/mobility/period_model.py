"""How many steps an iteration has, as allocator/pool/period.hpp says it (P1..P3), written down once more without regard to cost."""

from __future__ import annotations

import collections

CONTEXT = 15
NEVER = 1 << 60


def gaps(steps: list[int]) -> tuple[list[int], list[bool], list[bool]]:
    """Of each place: how far back its context was met last, and whether it is steady, and fresh."""
    met: dict[tuple[int, ...], int] = {}
    gap, steady, fresh = [NEVER] * len(steps), [False] * len(steps), [False] * len(steps)
    for place in range(CONTEXT - 1, len(steps)):
        context = tuple(steps[place + 1 - CONTEXT:place + 1])
        if context in met:
            before = met[context]
            gap[place] = place - before
            fresh[place] = gap[before] == NEVER
            steady[place] = not fresh[place] and abs(gap[place] - gap[before]) <= max(gap[place], gap[before]) / 4
        met[context] = place
    return gap, steady, fresh


def repeats(gap: list[int], period: int) -> int:
    count = 0
    while (count + 1) * period <= len(gap):
        run = gap[len(gap) - (count + 1) * period:len(gap) - count * period]
        if sum(g > 1.25 * period for g in run) > period / 4:
            break
        count += 1
    return count


def since_fewest(steps: list[int], period: int) -> int:
    """Steps since the fewest blocks were held, the first time that it was so."""
    held = [0]
    for step in steps[len(steps) - period:]:
        held.append(held[-1] + (1 if step <= 0 else -1))
    return period - held.index(min(held))


def find(steps: list[int]) -> dict[str, int] | None:
    gap, steady, fresh = gaps(steps)
    n = len(steps)
    tops = sorted({g for g in gap if g <= n // 2}, reverse=True)
    while tops:
        top = tops[0]
        tops = [g for g in tops if g < 0.8 * top]
        group = collections.Counter(gap[i] for i in range(n - 2 * top, n)
                                    if (steady[i] or fresh[i]) and 0.8 * top <= gap[i] <= top)
        if not group:
            continue
        period = max(group, key=lambda g: (group[g], g))
        last = range(n - 2 * period, n)
        near = [i for i in last if abs(gap[i] - period) <= period / 4]
        enough = max(2 * sum(gap[i] > 1.25 * period for i in last), min(period, 2 * CONTEXT))
        if sum(steady[i] for i in near) >= enough and 3 * period <= n:
            count = repeats(gap, period)
            if count < 2 or count * period < n / 4:
                return None
            return {"steps": period, "repeats": count, "since": since_fewest(steps, period)}
        if sum(steady[i] or fresh[i] for i in near) >= enough:
            return None
    return None
