"""Who lay where, and when: the one thing that pictures are drawn from.

A Layout places everything on one axis of *device memory*, in bytes: each extent (a segment that PyTorch's allocator took,
a granule of dymem's, the used part of a slab) has a place of its own there from when it was taken to when it was given
back, the lowest that is free. A block is one piece or several: a stitched one lies on several granules. So pictures of
different allocators have the same scale, and what no piece covers is memory held for nothing.

Times are indices of events: the state "after event k" has a block if born <= k < ended. A block is live until `freed`
and pending from there to `ended`.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

from dymem.errors import TraceError
from dymem.trace.snapshot import ALLOC, BLOCK_UNIT, FREE_COMPLETED, FREE_REQUESTED, MARK, SEGMENT_ALLOC, SEGMENT_FREE

if TYPE_CHECKING:
    import numpy as np

    from dymem.trace import Recording


def event_type():
    """Of numpy, for the events of a trace (trace/event.hpp)."""
    import numpy as np

    return np.dtype([("time", "<i8"), ("block", "<u8"), ("size", "<u8"), ("stream", "<u8"), ("kind", "u1"),
                     ("mobility", "u1"), ("phase", "<u2"), ("iteration", "<i4")])


def events_of(recording: Recording):
    """The events of a recording; a mark of the program's own holds for all that follow it and say nothing themselves."""
    import numpy as np

    events = np.frombuffer(recording.events, event_type())
    marks = np.flatnonzero(events["kind"] == MARK)
    if not len(marks):
        return events
    events = events.copy()
    last = np.searchsorted(marks, np.arange(len(events)), "right") - 1  # the mark before each event
    silent = (last >= 0) & ((events["iteration"] < 0) | (events["kind"] == MARK))
    mark = events[marks[last[silent]]]
    events["iteration"][silent] = mark["size"].astype(np.int64).clip(-1, np.iinfo(np.int32).max)
    events["phase"][silent] = mark["phase"]
    return events


@dataclasses.dataclass
class Layout:
    name: str
    trace: str              # the name of the recording
    source: str             # the file it comes from, and its device
    events: np.ndarray      # event_type()
    # blocks, in the order they were allocated
    born: np.ndarray        # index of the event
    freed: np.ndarray       # … len(events) where it never was
    ended: np.ndarray
    size: np.ndarray        # block bytes
    frame: np.ndarray       # 1 + an index into frames; 0 = not told
    frames: list[str]
    # pieces: where blocks lie
    piece_block: np.ndarray
    piece_low: np.ndarray   # bytes on the axis of device memory
    piece_high: np.ndarray
    # extents: what was held of the device
    extent_low: np.ndarray
    extent_high: np.ndarray
    extent_born: np.ndarray
    extent_ended: np.ndarray
    # after each event, bytes
    live: np.ndarray
    occupied: np.ndarray
    reserved: np.ndarray | None  # None: the trace does not tell
    stopped: int | None = None   # the event at which memory ran out

    def __len__(self) -> int:
        return len(self.events)

    @property
    def whole_name(self) -> str:
        """For a sentence that stands alone: the name of a panel may be an allocator's only."""
        told = self.name == self.trace or self.name.startswith(f"{self.trace}, ")
        return self.name if told else f"{self.trace}, {self.name}"

    @property
    def top(self) -> int:
        """The end of the axis of device memory."""
        return int(max(self.extent_high.max(initial=0), self.piece_high.max(initial=0), 1))


class Extents:
    """Memory of the device as it is taken and given back: ranges of addresses, each with a place on the axis."""

    def __init__(self) -> None:
        self.starts: list[int] = []  # addresses, sorted; what is held now
        self.at: dict[int, int] = {}  # start -> number
        self.low: list[int] = []
        self.size: list[int] = []
        self.born: list[int] = []
        self.ended: list[int] = []
        self._holes: list[tuple[int, int]] = []  # (low, size) below _top, sorted
        self._top = 0

    def take(self, event: int, address: int, size: int) -> int:
        """Now [address, address + size) is held, somewhere on the axis; its number."""
        number = len(self.low)
        self.low.append(self._place(size))
        self.size.append(size)
        self.born.append(event)
        self.ended.append(-1)
        bisect.insort(self.starts, address)
        self.at[address] = number
        return number

    def give_back(self, event: int, address: int, size: int) -> None:
        """[address, address + size) is held no longer; what is left of the ranges it cuts stays where it is."""
        for start, number in self.inside(address, size):
            whole, low = self.size[number], self.low[number]
            self.ended[number] = event
            del self.starts[bisect.bisect_left(self.starts, start)]
            del self.at[start]
            first, last = max(start, address), min(start + whole, address + size)
            self._free(low + first - start, last - first)
            for left, right in ((start, first), (last, start + whole)):
                if left < right:
                    self._keep(event, left, low + left - start, right - left)

    def inside(self, address: int, size: int) -> list[tuple[int, int]]:
        """The (start, number) of each held range that [address, address + size) meets."""
        first = max(bisect.bisect_right(self.starts, address) - 1, 0)
        found = []
        for start in self.starts[first:]:
            if start >= address + size:
                break
            if start + self.size[self.at[start]] > address:
                found.append((start, self.at[start]))
        return found

    def _keep(self, event: int, address: int, low: int, size: int) -> None:
        number = len(self.low)
        self.low.append(low)
        self.size.append(size)
        self.born.append(event)
        self.ended.append(-1)
        bisect.insort(self.starts, address)
        self.at[address] = number

    def _place(self, size: int) -> int:
        for index, (low, room) in enumerate(self._holes):
            if room >= size:
                if room > size:
                    self._holes[index] = (low + size, room - size)
                else:
                    del self._holes[index]
                return low
        if self._holes and sum(self._holes[-1]) == self._top:  # grow over the last hole
            low, _ = self._holes.pop()
        else:
            low = self._top
        self._top = low + size
        return low

    def _free(self, low: int, size: int) -> None:
        index = bisect.bisect_left(self._holes, (low, 0))
        if index < len(self._holes) and low + size == self._holes[index][0]:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == low:
            before, room = self._holes.pop(index - 1)
            low, size, index = before, room + size, index - 1
        self._holes.insert(index, (low, size))


def layout_of(recording: Recording, name: str | None = None) -> Layout:
    """As recorded: from the addresses in a PyTorch snapshot. TraceError if the recording has none."""
    import numpy as np

    if len(recording) == 0:
        raise TraceError(f"{recording.file}: it holds no events; there is nothing to draw.")
    if not recording.addresses:
        raise TraceError(f"{recording.file}: a trace of dymem's own holds no addresses; draw it with --replay.")
    events = events_of(recording)
    addresses = np.frombuffer(recording.addresses, "<u8").tolist()
    kinds, sizes = events["kind"].tolist(), events["size"].tolist()
    extents, pieces, block = Extents(), [], 0
    for k, kind in enumerate(kinds):
        if kind == ALLOC:
            size = -(-max(sizes[k], 1) // BLOCK_UNIT) * BLOCK_UNIT
            lay(extents, k, addresses[k], size, block, pieces)
            block += 1
        elif kind == SEGMENT_ALLOC and sizes[k]:
            extents.take(k, addresses[k], sizes[k])
        elif kind == SEGMENT_FREE:
            extents.give_back(k, addresses[k], sizes[k])
    return assemble(name or recording.name, recording, events, extents, pieces, native_reserved(events))


def lay(extents: Extents, event: int, address: int, size: int, block: int, pieces: list) -> None:
    """The pieces of a block; where nothing is known to be held (older than the recording), it is taken now."""
    at = address
    for start, number in [*extents.inside(address, size), (address + size, -1)]:
        if at < start:
            fresh = extents.take(event, at, start - at)
            pieces.append((block, extents.low[fresh], extents.low[fresh] + start - at))
        if number >= 0:
            first, last = max(start, address), min(start + extents.size[number], address + size)
            low = extents.low[number] + first - start
            pieces.append((block, low, low + last - first))
            at = last


def assemble(name: str, recording: Recording, events, extents: Extents, pieces: list, reserved,
             stopped: int | None = None) -> Layout:
    """A Layout from what was found out: sorts everything into arrays and counts what the events say."""
    import numpy as np

    n = len(events)
    kinds, size, blocks = events["kind"], block_bytes(events["size"]), events["block"]
    alloc, request, complete = (np.flatnonzero(kinds == k) for k in (ALLOC, FREE_REQUESTED, FREE_COMPLETED))
    order = np.argsort(blocks[alloc], kind="stable")
    numbers = blocks[alloc][order]

    def slots(of):
        return order[np.searchsorted(numbers, blocks[of])]

    freed = np.full(len(alloc), n)
    freed[slots(request)] = request
    ended = freed.copy()
    ended[slots(complete)] = complete
    own = size[alloc]
    piece = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    end = np.array(extents.ended, dtype=np.int64)
    low = np.array(extents.low, dtype=np.int64)
    frame = np.frombuffer(recording.frame_of, "<u4")[alloc] if recording.frame_of else np.zeros(len(alloc), np.uint32)
    return Layout(
        name=name, trace=recording.name, source=f"{recording.file}:{recording.device}", events=events,
        born=alloc, freed=freed, ended=ended, size=own, frame=frame, frames=recording.frames,
        piece_block=piece[:, 0], piece_low=piece[:, 1], piece_high=piece[:, 2],
        extent_low=low, extent_high=low + np.array(extents.size, dtype=np.int64),
        extent_born=np.array(extents.born, dtype=np.int64), extent_ended=np.where(end < 0, n, end),
        live=_held(n, alloc, freed, own), occupied=_held(n, alloc, ended, own), reserved=reserved, stopped=stopped)


def block_bytes(size):
    """What a block of so many requested bytes takes: a multiple of BLOCK_UNIT, at least one."""
    import numpy as np

    size = np.maximum(size.astype(np.int64), 1)
    return (size + BLOCK_UNIT - 1) // BLOCK_UNIT * BLOCK_UNIT


def native_reserved(events):
    """Bytes that the recorded allocator held after each event; None if the trace has no segment events."""
    import numpy as np

    kinds = events["kind"]
    taken, given = kinds == SEGMENT_ALLOC, kinds == SEGMENT_FREE
    if not taken.any():
        return None
    change = np.where(taken, events["size"].astype(np.int64), 0) - np.where(given, events["size"].astype(np.int64), 0)
    return np.maximum(np.cumsum(change), 0)


def _held(n: int, born, ended, size):
    import numpy as np

    change = np.zeros(n + 1, np.int64)
    np.add.at(change, born, size)
    np.add.at(change, ended, -size)
    return np.cumsum(change[:n])
