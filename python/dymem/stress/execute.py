"""Runs a program on a device and says how long it took, whether memory sufficed and whether every block kept its bytes.

Each block gets bytes of its own, spread over all of it, so that its memory is really used; some are read again just
before the block is freed, or by the other stream that uses it, as late as it may. What was read is compared at the end:
a block that was handed out twice, or whose pages were taken away too early, is found out.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Protocol

from dymem.stress.program import DONE, FREE, MAKE, USE, Program

READ_EVERY = 4  # of the blocks that one stream uses, so many are read one time; of the others each


class Device(Protocol):
    """What a program needs of a machine. `token` is whatever it likes to know a block by."""

    def make(self, size: int, stream: int) -> Any: ...                      # raises what `exhausted` knows
    def fill(self, token: Any, value: int) -> None: ...                     # on the stream that made it
    def read(self, token: Any, share: float) -> int: ...                    # the byte that lies at that share of it, later
    def use(self, token: Any, stream: int, ms: float, share: float) -> int: ...  # that stream works, then reads
    def done(self, reading: int) -> None: ...                               # waits until that was read
    def wait(self) -> None: ...                                             # for everything
    def results(self, count: int) -> list[int]: ...                         # of the first readings, after wait()
    def begin(self) -> None: ...                                            # a run begins: readings count from 0 again
    def exhausted(self, error: BaseException) -> bool: ...


@dataclasses.dataclass
class Outcome:
    seconds: float        # of the host's clock, the device having finished
    calls: int            # of the allocator
    oom: str | None       # the first line of what it said
    oom_operation: int | None
    damaged: int          # blocks that had lost their bytes
    readings: int


def value_of(block: int) -> int:
    return (block * 151 + 17) % 251 + 1  # neighbours differ, none is 0


def run(program: Program, device: Device, *, touch: bool = True, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    tokens: list[Any] = [None] * program.blocks
    expected: list[int] = []
    reading_of: dict[int, int] = {}
    calls, oom, failed_at = 0, None, None
    device.begin()
    device.wait()
    began = clock()
    for number, (kind, block, amount, more) in enumerate(program.operations):
        if kind == MAKE:
            try:
                tokens[block] = device.make(amount, int(more))
            except Exception as error:
                if not device.exhausted(error):
                    raise
                oom, failed_at = (str(error).strip() or type(error).__name__).splitlines()[0], number
                del error
                break
            calls += 1
            if touch:
                device.fill(tokens[block], value_of(block))
        elif kind == FREE:
            if touch and block % READ_EVERY == 0 and block not in reading_of:
                device.read(tokens[block], _share(block))
                expected.append(value_of(block))
            tokens[block] = None
            calls += 1
        elif kind == USE:
            reading_of[block] = device.use(tokens[block], amount, more, _share(block))
            expected.append(value_of(block) if touch else -1)
        elif kind == DONE:
            device.done(reading_of[block])
        else:
            device.wait()
    tokens.clear()
    device.wait()
    seconds = clock() - began
    found = device.results(len(expected))
    damaged = sum(1 for wanted, got in zip(expected, found) if wanted >= 0 and wanted != got)
    return Outcome(seconds, calls, oom, failed_at, damaged, len(expected))


def _share(block: int) -> float:
    return (block * 0.6180339887498949) % 1.0
