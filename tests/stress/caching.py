"""A plain best-fit caching allocator, as a yardstick: what PyTorch's own does by default, on the same events.

Segments of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below 10 MiB, else of the request rounded to 2 MiB; a block
goes into the smallest free one that holds it, of its stream; what is left is split off if it is more than 1 MiB (512 B
in small segments). A block that another stream uses comes back when its work is done. Where the limit is reached, what is
pending is waited for and every idle segment given back; if no new segment fits then, the program is out of memory.

test_reports.py compares it with what PyTorch reserved on the bundled recordings, so it is not made of straw.
"""

from __future__ import annotations

import bisect
import dataclasses

from dymem.trace import Recording
from dymem.trace.snapshot import ALLOC, EVENT, FREE_COMPLETED, FREE_REQUESTED, RECORD_STREAM

KIB, MIB = 1 << 10, 1 << 20


@dataclasses.dataclass(eq=False)
class Piece:
    """Part of a segment, free or held."""

    address: int
    size: int
    segment: int
    free: bool = False
    left: Piece | None = None
    right: Piece | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address


class Exhausted(Exception):
    pass


class Caching:
    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.reserved = self.reserved_peak = 0
        self.calls = self.flushes = 0  # cudaMalloc and cudaFree; times that idle segments were given back
        self.segments: dict[int, tuple[int, int, bool]] = {}  # address -> size, stream, small
        self.free: dict[tuple[int, bool], list[tuple[int, int]]] = {}  # (stream, small) -> sorted keys
        self.by_address: dict[int, Piece] = {}  # free pieces
        self.top = 0

    def malloc(self, size: int, stream: int, finish_pending) -> Piece:
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        piece = self._fit(size, stream, small) or self._grow(size, stream, small)
        if piece is None:
            finish_pending()
            self.flush()
            piece = self._grow(size, stream, small)  # what pending work left in segments that stay is not looked at
        if piece is None:
            raise Exhausted
        return self._split(piece, size, stream, small)

    def release(self, piece: Piece) -> None:
        _, stream, small = self.segments[piece.segment]
        for other in (piece.left, piece.right):
            if other is not None and other.free:
                self._forget(other, stream, small)
                if other is piece.left:
                    piece.address, piece.left = other.address, other.left
                    if piece.left is not None:
                        piece.left.right = piece
                else:
                    piece.right = other.right
                    if piece.right is not None:
                        piece.right.left = piece
                piece.size += other.size
        self._offer(piece, stream, small)

    def flush(self) -> None:
        """Gives every segment back that holds nothing."""
        self.flushes += 1
        for address, (size, stream, small) in list(self.segments.items()):
            piece = self.by_address.get(address)
            if piece is not None and piece.size == size:
                self._forget(piece, stream, small)
                del self.segments[address]
                self.reserved -= size
                self.calls += 1

    def _fit(self, size: int, stream: int, small: bool) -> Piece | None:
        keys = self.free.get((stream, small), [])
        at = bisect.bisect_left(keys, (size, 0))
        if at == len(keys):
            return None
        piece = self.by_address[keys[at][1]]
        self._forget(piece, stream, small)
        return piece

    def _grow(self, size: int, stream: int, small: bool) -> Piece | None:
        segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.limit is not None and self.reserved + segment > self.limit:
            return None
        self.calls += 1
        address, self.top = self.top, self.top + segment + 2 * MIB
        self.segments[address] = segment, stream, small
        self.reserved += segment
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        return Piece(address, segment, address)

    def _split(self, piece: Piece, size: int, stream: int, small: bool) -> Piece:
        rest = piece.size - size
        if rest >= 512 if small else rest > MIB:
            other = Piece(piece.address + size, rest, piece.segment, left=piece, right=piece.right)
            if other.right is not None:
                other.right.left = other
            piece.size, piece.right = size, other
            self._offer(other, stream, small)
        return piece

    def _offer(self, piece: Piece, stream: int, small: bool) -> None:
        piece.free = True
        bisect.insort(self.free.setdefault((stream, small), []), piece.key)
        self.by_address[piece.address] = piece

    def _forget(self, piece: Piece, stream: int, small: bool) -> None:
        keys = self.free[stream, small]
        del keys[bisect.bisect_left(keys, piece.key)]
        del self.by_address[piece.address]
        piece.free = False


@dataclasses.dataclass
class Run:
    reserved_peak_bytes: int
    oom: bool
    calls_warm: int    # of the driver, in iterations from number 3 on
    flushes: int
    flushes_warm: int


def run_caching(recording: Recording, limit: int | None = None, trim_every_iteration: bool = False) -> Run:
    """trim_every_iteration: the program calls empty_cache between its steps."""
    allocator = Caching(limit)
    held: dict[int, Piece] = {}
    waiting: dict[int, Piece] = {}  # freed, with other streams' work still to be done
    recorded: set[int] = set()
    completed = {event[1] for event in EVENT.iter_unpack(recording.events) if event[4] == FREE_COMPLETED}
    calls_cold = flushes_cold = 0
    last = -1

    def finish_pending() -> None:
        for piece in waiting.values():
            allocator.release(piece)
        waiting.clear()

    for _, block, size, stream, kind, _, _, iteration in EVENT.iter_unpack(recording.events):
        if trim_every_iteration and iteration != last:
            finish_pending()
            allocator.flush()
        last = iteration
        if iteration < 3:
            calls_cold, flushes_cold = allocator.calls, allocator.flushes
        if kind == ALLOC:
            try:
                held[block] = allocator.malloc(size, stream, finish_pending)
            except Exhausted:
                return Run(allocator.reserved_peak, True, allocator.calls - calls_cold, allocator.flushes,
                           allocator.flushes - flushes_cold)
        elif kind == RECORD_STREAM:
            recorded.add(block)
        elif kind == FREE_REQUESTED and block in held:
            piece = held.pop(block)
            if block in recorded and block in completed:
                waiting[block] = piece
            else:
                allocator.release(piece)
        elif kind == FREE_COMPLETED and block in waiting:
            allocator.release(waiting.pop(block))
    return Run(allocator.reserved_peak, False, allocator.calls - calls_cold, allocator.flushes,
               allocator.flushes - flushes_cold)


def smallest_limit(recording: Recording, occupied: int, precision: float = 0.005, most: float = 8.0) -> float | None:
    """Times the occupied peak; None: not even `most` times is enough. Survival need not be monotonous: see stress.search."""
    low, high = 1.0, most
    if run_caching(recording, int(occupied * high)).oom:
        return None
    if not run_caching(recording, occupied).oom:
        return 1.0
    while high - low > precision:
        ratio = (low + high) / 2
        if run_caching(recording, int(occupied * ratio)).oom:
            low = ratio
        else:
            high = ratio
    return high
