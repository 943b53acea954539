"""How large a contiguous pool must be (HPDC 2020, section 3.3.3 and table 2). Pure: numbers in, numbers out; no torch.

The first iteration runs in a pool that is large enough. The smallest distance that its two ends ever had, the squeeze gap,
was not needed, so the pool for the iterations after it has `initial - squeeze_gap + beta` bytes; beta is for iterations that
need more than the first. One that fails is run again with another beta (Sizing.failed says which). `dymem replay --backing
contiguous --json` has what each iteration needed, and so its squeeze gap, in `needed_by_iteration`.
"""

from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

from dymem.errors import InvalidArgument

MB = 10**6  # the paper's table is in MB
BETAS = (100 * MB, 300 * MB, 500 * MB)  # table 2
GRANULE = 2 << 20  # slabs are multiples of it


def pool_size(initial: int, squeeze_gap: int, beta: int = 0) -> int:
    """Bytes of the pool after the first iteration, rounded up to 2 MiB: at most `initial` + `beta`, so rounded.

    `initial`: bytes of the pool in which the first iteration ran; `squeeze_gap`: the smallest distance between its ends then.
    """
    if not 0 <= squeeze_gap <= initial:
        raise InvalidArgument(f"a squeeze gap of {squeeze_gap} bytes is not of a pool of {initial}; take both from one run.")
    if beta < 0:
        raise InvalidArgument("beta is room for iterations that need more than the first; it is not negative.")
    return -(-(initial - squeeze_gap + beta) // GRANULE) * GRANULE


@dataclasses.dataclass(frozen=True)
class Sizing:
    """The pool of one run: made with the first iteration's figures, then asked again after each failure.

    Bytes throughout. `betas` are tried in order; past the last one it doubles.
    """

    initial: int
    squeeze_gap: int
    betas: Sequence[int] = BETAS
    failures: int = 0

    def __post_init__(self):
        if not self.betas or any(b < 0 for b in self.betas) or list(self.betas) != sorted(self.betas):
            raise InvalidArgument("betas are one or more sizes, smallest first; the paper's are 100, 300 and 500 MB.")
        pool_size(self.initial, self.squeeze_gap, self.betas[0])

    @property
    def beta(self) -> int:
        last = len(self.betas) - 1
        if self.failures <= last:
            return self.betas[self.failures]
        return max(self.betas[last], GRANULE) << (self.failures - last)

    @property
    def size(self) -> int:
        return pool_size(self.initial, self.squeeze_gap, self.beta)

    def failed(self, missing: int = 0) -> "Sizing":
        """The sizing with which the iteration runs again: the first further beta that adds at least `missing` bytes.

        `missing`: by how much the pool was too small where it failed; 0 if that is not known."""
        after = dataclasses.replace(self, failures=self.failures + 1)
        while after.size < self.size + missing:
            after = dataclasses.replace(after, failures=after.failures + 1)
        return after


def needs(needed_by_iteration: Mapping[str, int], first: int) -> tuple[int, list[int]]:
    """What iteration `first` needed and what those after it did, from the figures of a replay. What came before the first
    iteration lies in the pool too: its need counts in `first`'s."""
    by_number = {int(number): needed for number, needed in needed_by_iteration.items()}
    if first not in by_number:
        raise InvalidArgument(f"the recording has no iteration {first}; it has {sorted(by_number)}.")
    return (max(needed for number, needed in by_number.items() if number <= first),
            [by_number[number] for number in sorted(by_number) if number > first])


def failure_rate(needed: Sequence[int], size: int) -> float:
    """The share of iterations that do not fit a pool of `size` bytes; 0 if there are none."""
    return sum(n > size for n in needed) / len(needed) if needed else 0.0


def failures_with_restarts(needed: Sequence[int], sizing: Sizing) -> tuple[int, Sizing]:
    """How often a run of these iterations fails when each failure is followed by another beta, and the sizing at its end."""
    failures = 0
    for n in needed:
        while n > sizing.size:
            failures += 1
            sizing = sizing.failed(n - sizing.size)
    return failures, sizing
