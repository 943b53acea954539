"""What must hold of a pool, said a second time and independently: a dictionary of intervals, streams as finish times.

The model knows nothing of granules, views or arenas. It checks through BYTES: every block is filled with a pattern that
names its allocation, through the address the pool gave, and read back later. Two blocks that share a byte of physical
memory, however many addresses lead to it, destroy each other's pattern. What a fresh block is found to contain names
the allocation that had those bytes before, so the stream rule is checked on physical memory as well. A `sampled` model,
for loops that run one script hundreds of times, writes and reads of a large block both ends and, between them, the unit
at every multiple of EDGE: views begin at multiples of the granule, so that all blocks over a physical unit agree on it.

Units: nanoseconds of the emulated device's clock, which stands still unless advanced.
"""

from __future__ import annotations

import dataclasses
import functools
import struct

UNIT = 512
PAGE = 4096
EDGE = 64 << 10
MIB = 1 << 20
MAGIC = 0xD1  # top byte of every word of a pattern; then the allocation's number (24 bits) and a place (32 bits)


def block_bytes(requested: int) -> int:
    return max(1, -(-requested // UNIT)) * UNIT


@functools.lru_cache(maxsize=64)
def pattern(number: int, size: int) -> bytes:
    """64-bit words that name their allocation; the first of every page names its place too."""
    word = MAGIC << 56 | number << 32
    rest = struct.pack("<Q", word) * (PAGE // 8 - 1)
    return b"".join(struct.pack("<Q", word | place) + rest for place in range(-(-size // PAGE)))[:size]


def numbers_in(data: bytes) -> set[int]:
    """The allocations whose patterns occur in `data`, looking once in every unit; memory never written names none."""
    words = memoryview(data).cast("Q")[:: UNIT // 8].tolist()
    return {word >> 32 & 0xFFFFFF for word in words if word >> 56 == MAGIC}


@dataclasses.dataclass
class Held:
    number: int
    address: int
    requested: int
    size: int
    stream: int
    mobility: str
    used_until: dict[int, int] = dataclasses.field(default_factory=dict)  # other streams: their recorded work is done
    filled: bool = True
    pins: int = 0


@dataclasses.dataclass
class Freed:
    number: int
    address: int
    size: int
    stream: int
    own_done: int  # work on its own stream before the free
    uses_earliest: int  # work recorded on other streams cannot be known to be done before this
    uses_done: int  # events recorded at the free are complete by this
    has_uses: bool
    epoch: int  # stream waits seen before the free


class Model:
    def __init__(self, device, pool, lag: int = 0, sampled: bool = False):
        self.device, self.pool, self.lag, self.sampled = device, pool, lag, sampled
        self.now = 0
        self.busy: dict[int, int] = {}
        self.live: dict[int, Held] = {}
        self.freed: dict[int, Freed] = {}  # every allocation ever freed, by number
        self.pending: list[Freed] = []  # freed with uses, not yet past uses_done
        self.next_number = 1
        self.total_allocated = self.total_freed = 0
        self.mallocs = self.frees = 0
        self.waits = 0
        self.waited_at: dict[int, int] = {}  # stream -> waits seen up to when it was last made to wait

    # --- time

    def advance(self, by: int):
        self.now += by
        self.device.advance_to(self.now)

    def enqueue(self, stream: int, work: int):
        self.busy[stream] = max(self.now, self.busy.get(stream, 0)) + work
        self.device.set_busy_until(stream, self.busy[stream])

    def done_at(self, stream: int) -> int:
        """When an event recorded on `stream` now completes, as the emulated device defines it."""
        return max(self.now, self.busy.get(stream, 0)) + self.lag

    # --- calls

    def follow_clock(self):
        """The pool may have waited on the host, which moves the emulated clock."""
        self.now = self.device.emulated.now()

    def malloc(self, requested: int, stream: int, mobility: str = "untagged", fill: bool = True) -> Held:
        try:
            address = self.pool.malloc(requested, stream, mobility)
        finally:
            self.follow_clock()
            self.note_waits(stream)
        held = Held(self.next_number, address, requested, block_bytes(requested), stream, mobility, filled=fill)
        self.next_number += 1
        self.check_address(held)
        self.live[address] = held
        self.total_allocated += held.size
        self.mallocs += 1
        if fill:
            self.check_origin(held)
            self.fill(held)
        return held

    def trim(self) -> int:
        given = self.pool.trim()
        self.follow_clock()
        return given

    def look(self):
        """Time for the pool to notice what has completed, without waiting for anything."""
        for _ in range(64):
            self.free(self.malloc(100, next(iter(self.busy), 0)))

    def free(self, held: Held):
        self.verify(held)
        self.pool.free(held.address)
        self.follow_clock()  # a guarded block's free waits for the device
        del self.live[held.address]
        others = held.used_until
        freed = Freed(held.number, held.address, held.size, held.stream, own_done=self.done_at(held.stream),
                      uses_earliest=max(others.values(), default=0),
                      uses_done=max((self.done_at(s) for s in others), default=0),
                      has_uses=bool(others), epoch=self.waits)
        self.freed[held.number] = freed
        if freed.has_uses:
            self.pending.append(freed)
        self.total_freed += held.size
        self.frees += 1

    def record_stream(self, held: Held, stream: int):
        self.pool.record_stream(held.address, stream)
        if stream != held.stream:
            held.used_until[stream] = max(held.used_until.get(stream, 0), self.done_at(stream))

    def note_waits(self, stream: int):
        """The pool may make the asking stream wait for others (only at a limit): what was freed before is then fine."""
        waits = self.pool.stats()["num_stream_waits"]
        if waits != self.waits:
            self.waits = waits
            self.waited_at[stream] = waits

    # --- what must hold

    def places(self, held: Held | Freed) -> list[tuple[int, int]]:
        """(offset, bytes) of what is written and read of a block."""
        if not self.sampled or held.size <= 2 * EDGE:
            return [(0, held.size)]
        first, last = PAGE + -(held.address + PAGE) % EDGE, held.size - PAGE
        return [(0, PAGE), *((at, UNIT) for at in range(first, last, EDGE)), (last, PAGE)]

    def fill(self, held: Held):
        want = pattern(held.number, held.size)
        for offset, size in self.places(held):
            self.device.write(held.address + offset, want[offset:offset + size])

    def pieces(self, held: Held | Freed) -> list[tuple[int, bytes]]:
        return [(offset, self.device.read(held.address + offset, size)) for offset, size in self.places(held)]

    def verify(self, held: Held):
        if held.filled:
            want = pattern(held.number, held.size)
            for offset, got in self.pieces(held):
                if got != want[offset:offset + len(got)]:
                    at = next(i for i in range(0, len(got), 8) if got[i:i + 8] != want[offset + i:offset + i + 8])
                    raise AssertionError(f"allocation {held.number} lost its bytes at offset {offset + at} of {held.size}: "
                                         f"found those of {numbers_in(got) - {held.number}}")

    def check_address(self, held: Held):
        assert held.address != 0 and held.address % UNIT == 0, hex(held.address)
        for other in self.live.values():
            assert held.address + held.size <= other.address or other.address + other.size <= held.address, (held, other)

    def check_origin(self, held: Held):
        for number in set().union(*(numbers_in(data) for _, data in self.pieces(held))):
            freed = self.freed.get(number)
            assert freed is not None, f"allocation {held.number} was given bytes of live allocation {number}"
            if freed.has_uses:
                assert self.now >= freed.uses_earliest, (
                    f"allocation {number} was reused at {self.now}, but a recorded stream needs it until {freed.uses_earliest}")
            if held.stream != freed.stream and self.now < freed.own_done:
                assert self.waited_at.get(held.stream, 0) > freed.epoch, (
                    f"allocation {number}, freed on stream {freed.stream}, was given to stream {held.stream} at "
                    f"{self.now}, before its work is done at {freed.own_done}")

    def check_pending_bytes(self):
        """What a recorded stream still needs is still there, at the address that stream knows."""
        for freed in self.pending:
            if self.now < freed.uses_earliest:
                want = pattern(freed.number, freed.size)
                for offset, got in self.pieces(freed):
                    assert got == want[offset:offset + len(got)], f"pending allocation {freed.number} lost its bytes"

    def check(self, pending_exact: bool = False):
        stats = self.pool.stats()
        live = sum(h.size for h in self.live.values())
        current = lambda name, part="all": stats[name][part]["current"]
        assert current("allocated_bytes") == live
        assert current("requested_bytes") == sum(h.requested for h in self.live.values())
        assert current("allocation") == len(self.live)
        for part in ("small", "large"):
            mine = [h for h in self.live.values() if (h.requested <= MIB) == (part == "small")]
            assert current("allocation", part) == len(mine)
            assert current("allocated_bytes", part) == sum(h.size for h in mine)
        assert stats["allocated_bytes"]["all"]["allocated"] == self.total_allocated
        assert stats["allocated_bytes"]["all"]["freed"] == self.total_freed
        assert stats["allocation"]["all"]["allocated"] == self.mallocs
        assert stats["allocation"]["all"]["freed"] == self.frees

        # Pending: never ended before the work is done; ended at the latest when the pool next looks.
        must = sum(f.size for f in self.pending if self.now < f.uses_earliest)
        self.pending = [f for f in self.pending if not (pending_exact and self.now >= f.uses_done)]
        may = sum(f.size for f in self.pending)
        pending = stats["pending_bytes"]["current"]
        assert must <= pending <= may, (must, pending, may)
        assert current("active_bytes") == live + pending
        assert current("reserved_bytes") >= live + pending
        assert current("segment") == stats["num_device_alloc"] - stats["num_device_free"]
        for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "allocation"):
            assert stats[name]["all"]["peak"] >= current(name)
            assert current(name) == stats[name]["all"]["allocated"] - stats[name]["all"]["freed"]
            assert current(name) == current(name, "small") + current(name, "large")
        self.check_pending_bytes()
        assert self.pool.audit() == []
        assert self.device.violations() == []

    def check_blocks(self):
        """blocks() and find() tell the same as the model."""
        listed = {b["address"]: b for b in self.pool.blocks() if b["state"] == "live"}
        assert set(listed) == set(self.live)
        for held in self.live.values():
            for told in (listed[held.address], self.pool.find(held.address), self.pool.find(held.address + held.size - 1)):
                assert told["address"] == held.address and told["size"] == held.size
                assert told["requested"] == held.requested and told["stream"] == held.stream
                assert told["mobility"] == held.mobility and told["state"] == "live"
            assert self.pool.owns(held.address)

    def end(self):
        """Everything freed and finished: nothing may be left of the device."""
        for held in list(self.live.values()):
            while held.pins:
                self.pool.unpin(held.address)
                held.pins -= 1
            self.free(held)
        self.advance(max([0, *self.busy.values()]) + self.lag + 1)
        self.advance(self.lag + 1)
        self.trim()
        self.check(pending_exact=True)
        assert self.pool.stats()["active_bytes"]["all"]["current"] == 0
