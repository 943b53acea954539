"""A program of allocations as a pattern tells it, written as the raw events that `_core.replay` takes.

The clock goes on by itself, a little with every call (a training loop calls its allocator about a hundred thousand
times a second), and by `wait`. Sizes are bytes, times ns. Events are those of dymem.trace.snapshot.EVENT.
"""

from __future__ import annotations

from dymem.trace import Recording
from dymem.trace.snapshot import ALLOC, EVENT, FREE_COMPLETED, FREE_REQUESTED, RECORD_STREAM

MIB = 1 << 20
CALL_NS = 10_000


class Script:
    def __init__(self) -> None:
        self._events = bytearray()
        self._blocks: list[tuple[int, int]] = []  # size, stream; by number
        self._held: set[int] = set()
        self._completions: list[tuple[int, int]] = []  # time, block
        self._now = 0
        self.iteration = -1

    def wait(self, ms: float) -> None:
        """Time goes by without a call."""
        self._now += round(ms * 1e6)

    def alloc(self, size: int, stream: int = 0) -> int:
        """A block of `size` bytes; its number."""
        block = len(self._blocks)
        self._blocks.append((max(1, int(size)), stream))
        self._held.add(block)
        self._emit(ALLOC, block)
        return block

    def use_on(self, block: int, stream: int) -> None:
        """record_stream: another stream works with the block too."""
        self._emit(RECORD_STREAM, block, stream)

    def free(self, block: int, done_after_ms: float | None = None) -> None:
        """Frees; with `done_after_ms`, other streams' work with it goes on for so long."""
        self._held.remove(block)
        self._emit(FREE_REQUESTED, block)
        if done_after_ms is not None:
            self._completions.append((self._now + round(done_after_ms * 1e6), block))

    def free_all(self, blocks: list[int]) -> None:
        for block in blocks:
            self.free(block)

    def recording(self, name: str) -> Recording:
        """Everything so far as a recording; blocks still held stay so."""
        self._complete_until(None)
        return Recording(name, name, 0, bytes(self._events))

    def _emit(self, kind: int, block: int, stream: int | None = None) -> None:
        self._now += CALL_NS
        self._complete_until(self._now)
        self._pack(self._now, kind, block, stream)

    def _pack(self, time: int, kind: int, block: int, stream: int | None = None) -> None:
        size, own = self._blocks[block]
        self._events += EVENT.pack(time, block, size, own if stream is None else stream, kind, 0, 0, self.iteration)

    def _complete_until(self, time: int | None) -> None:
        self._completions.sort()
        while self._completions and (time is None or self._completions[0][0] <= time):
            at, block = self._completions.pop(0)
            self._pack(at, FREE_COMPLETED, block)
