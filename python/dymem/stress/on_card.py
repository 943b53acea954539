"""The device of execute.py that is a card, its blocks tensors of PyTorch's current allocator.

Nothing but the blocks is allocated on it: readings go to pinned memory of the host, fills write through views. A view
of POINTS bytes, evenly spread, touches every granule of a block with one small kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

POINTS = 4096
READINGS = 1 << 16
_CYCLES_PER_MS = 1_500_000  # torch.cuda._sleep counts cycles; about 1.5 to 2 GHz


class Card:
    def __init__(self, device: int = 0) -> None:
        import torch

        self._torch = torch
        torch.cuda.set_device(device)
        self._streams = {0: torch.cuda.default_stream(device)}
        self._current = 0
        self._ledger = torch.zeros(READINGS, dtype=torch.uint8, pin_memory=True)
        self._count = 0
        self._events: dict[int, torch.cuda.Event] = {}

    def _on(self, stream: int) -> None:
        if stream != self._current:
            self._torch.cuda.set_stream(self._stream(stream))
            self._current = stream

    def _stream(self, number: int) -> torch.cuda.Stream:
        if number not in self._streams:
            self._streams[number] = self._torch.cuda.Stream()
        return self._streams[number]

    def begin(self) -> None:
        self._on(0)
        self._count = 0
        self._events.clear()

    def make(self, size: int, stream: int):
        self._on(stream)
        return self._torch.empty(size, dtype=self._torch.uint8, device="cuda"), stream

    def fill(self, token, value: int) -> None:
        block, stream = token
        self._on(stream)
        _points(block).fill_(value)

    def read(self, token, share: float) -> int:
        block, stream = token
        self._on(stream)
        points = _points(block)
        at = int(share * len(points))
        number = self._count
        self._ledger[number:number + 1].copy_(points[at:at + 1], non_blocking=True)
        self._count += 1
        return number

    def use(self, token, stream: int, ms: float, share: float) -> int:
        block, own = token
        other = self._stream(stream)
        other.wait_stream(self._stream(own))
        block.record_stream(other)
        self._on(stream)
        if ms > 0:
            self._torch.cuda._sleep(int(ms * _CYCLES_PER_MS))
        number = self.read((block, stream), share)
        self._events[number] = other.record_event()
        return number

    def done(self, reading: int) -> None:
        self._events.pop(reading).synchronize()

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def results(self, count: int) -> list[int]:
        return self._ledger[:count].tolist()

    def exhausted(self, error: BaseException) -> bool:
        from dymem.rivals import exhausted

        return exhausted(error)


def _points(block: torch.Tensor) -> torch.Tensor:
    size = block.numel()
    return block if size <= POINTS else block.as_strided((POINTS,), (size // POINTS,))
