"""Where dymem's pool would put a recording: a replay on the emulated device, as a Layout.

The replay tells the address of each allocation and each change of mappings; here each granule gets a place on the axis
of device memory, and each block the pieces of granules that lie under its address. A slab has no granules: what of it
was ever used is taken, since its high-water mark is what counts as reserved.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Callable, Mapping

from dymem.config import Config
from dymem.errors import InvalidArgument
from dymem.plotting.layout import BLOCK_UNIT, Extents, Layout, assemble, events_of, lay, layout_of
from dymem.replaying import replay_recording
from dymem.trace.snapshot import ALLOC

if TYPE_CHECKING:
    from dymem.trace import Recording

CREATE, DESTROY, MAP, UNMAP, SLAB_ALLOC, SLAB_FREE = range(6)  # LayoutKind in allocator/replay/layout_watch.hpp


def replayed_layout(recording: Recording, name: str | None = None, *, config: dict | None = None,
                    limit: int | float | None = None, lag_ms: float = 10.0,
                    progress: Callable[[int], None] | None = None) -> Layout:
    """`config`, `limit` and `lag_ms` as for dymem.replaying.replay_recording."""
    import numpy as np

    result = replay_recording(recording, limit=limit, lag_ms=lag_ms, config=config, progress=progress, layout=True)
    told = result["layout"]
    events = events_of(recording)
    addresses = np.frombuffer(told["addresses"], "<u8")
    done = len(addresses)  # fewer than events where memory ran out
    if done == 0:
        raise InvalidArgument(f"{recording.file}: not even its first allocation fits into that limit; nothing can be "
                              "drawn.")
    reserved = np.frombuffer(told["reserved"], "<u8").astype(np.int64)
    device, pieces = Device(), []
    changes = np.frombuffer(told["changes"], "<u8").reshape(-1, 5).tolist()
    kinds, sizes, places = events["kind"][:done].tolist(), events["size"][:done].tolist(), addresses.tolist()
    at = block = 0
    for k in range(done):
        while at < len(changes) and changes[at][0] <= k:
            device.change(*changes[at])
            at += 1
        if kinds[k] == ALLOC:
            size = -(-max(sizes[k], 1) // BLOCK_UNIT) * BLOCK_UNIT
            device.lay(k, places[k], size, block, pieces)
            block += 1
    return assemble(name or recording.name, recording, events[:done], device.extents, pieces, reserved,
                    stopped=result["oom"]["event"] if result["oom"] else None)


def layout_for(recording: Recording, name: str | None = None) -> Layout:
    """As recorded where the recording tells addresses, else as dymem's pool places it."""
    return layout_of(recording, name) if recording.addresses else replayed_layout(recording, name)


def name_of_dymem(keys: Mapping[str, object]) -> str:
    """What a panel of dymem configured with `keys` is called: with its form, where DYMEM_CONF chose another than usual.

    A picture outlives the line in the terminal that says so."""
    form = {key: keys[key] for key in ("backing", "alias") if key in keys}
    return ", ".join(filter(None, ("dymem", Config(**form).to_conf())))


class Device:
    """Granules, views and slabs while a replay goes on. Granules are extents at the address of their handle."""

    def __init__(self) -> None:
        self.extents = Extents()
        self.granules: dict[int, tuple[int, int]] = {}  # handle -> place on the axis, size
        self.views: dict[int, tuple[int, int]] = {}     # address -> size, handle
        self.view_starts: list[int] = []                # sorted
        self.count: dict[int, int] = {}                 # handle -> its views
        self.gone: set[int] = set()                     # destroyed, and mapped still
        self.slabs: dict[int, int] = {}                 # base -> size

    def change(self, event: int, kind: int, handle: int, address: int, size: int) -> None:
        if kind == CREATE:
            # Addresses of their own for the extents: handles are numbers, and granules never meet.
            number = self.extents.take(event, _granule_address(handle), size)
            self.granules[handle] = self.extents.low[number], size
            self.count[handle] = 0
        elif kind == DESTROY:
            self.gone.add(handle)
            self._end_if_unused(event, handle)
        elif kind == MAP:
            self.views[address] = size, handle
            bisect.insort(self.view_starts, address)
            self.count[handle] += 1
        elif kind == UNMAP:
            for start in self._starts(address, size):
                _, mapped = self.views.pop(start)
                del self.view_starts[bisect.bisect_left(self.view_starts, start)]
                self.count[mapped] -= 1
                self._end_if_unused(event, mapped)
        elif kind == SLAB_ALLOC:
            self.slabs[address] = size
        elif kind == SLAB_FREE:
            self.extents.give_back(event, address, self.slabs.pop(address))

    def lay(self, event: int, address: int, size: int, block: int, pieces: list) -> None:
        """The pieces of a block that is allocated now."""
        if any(base <= address < base + length for base, length in self.slabs.items()):
            lay(self.extents, event, address, size, block, pieces)  # takes what was never used before
            return
        for start in self._starts(address, size):
            length, handle = self.views[start]
            first, last = max(start, address), min(start + length, address + size)
            low = self.granules[handle][0] + first - start
            pieces.append((block, low, low + last - first))

    def _starts(self, address: int, size: int) -> list[int]:
        """The views that [address, address + size) meets."""
        first = max(bisect.bisect_right(self.view_starts, address) - 1, 0)
        last = bisect.bisect_left(self.view_starts, address + size)
        return [start for start in self.view_starts[first:last] if start + self.views[start][0] > address]

    def _end_if_unused(self, event: int, handle: int) -> None:
        if handle in self.gone and self.count[handle] == 0:
            self.gone.discard(handle)
            self.extents.give_back(event, _granule_address(handle), self.granules.pop(handle)[1])


def _granule_address(handle: int) -> int:
    return handle << 64
