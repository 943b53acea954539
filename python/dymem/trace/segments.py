"""What the recorded allocator held before a recording began: its last state, played backwards through the recording.

A snapshot tells which segments there were at its end, and its history how they came and went; so what was held at first
is told too. Without it, memory older than the recording would be missing from every figure of what was reserved.
"""

from __future__ import annotations

import bisect

_COMES = {"segment_alloc", "segment_map"}
_GOES = {"segment_free", "segment_unmap"}


def held_at_first(segments: object, device: int, entries: list) -> list[tuple[int, int]]:
    """(address, bytes) of what was held before the first entry, by address; nothing where the snapshot does not tell, or
    contradicts itself."""
    if not isinstance(segments, (list, tuple)):
        return []
    held = _Held()
    for segment in segments:
        if isinstance(segment, dict) and segment.get("device", 0) == device:
            if not held.add(segment.get("address"), segment.get("total_size")):
                return []
    for entry in reversed(entries):
        action = entry.get("action") if isinstance(entry, dict) else None
        if not isinstance(action, str):
            continue  # the reader refuses it
        if action in _COMES and not held.cut(entry.get("addr"), entry.get("size")):
            return []
        if action in _GOES and not held.add(entry.get("addr"), entry.get("size")):
            return []
    return [(start, held.end[start] - start) for start in held.starts]


class _Held:
    """Ranges of addresses, sorted, that do not overlap."""

    def __init__(self):
        self.starts: list[int] = []
        self.end: dict[int, int] = {}

    def _meets(self, at: int, end: int) -> list[int]:
        first = max(bisect.bisect_right(self.starts, at) - 1, 0)
        last = bisect.bisect_left(self.starts, end)
        return [start for start in self.starts[first:last] if self.end[start] > at]

    def _insert(self, at: int, end: int) -> None:
        bisect.insort(self.starts, at)
        self.end[at] = end

    def add(self, at: object, size: object) -> bool:
        """False if that is no range, or some of it is held already."""
        if not isinstance(at, int) or not isinstance(size, int) or at < 0 or size < 0 or self._meets(at, at + size):
            return False
        if size:
            self._insert(at, at + size)
        return True

    def cut(self, at: object, size: object) -> bool:
        """False if that is no range, or some of it is not held."""
        if not isinstance(at, int) or not isinstance(size, int) or at < 0 or size < 0:
            return False
        end, met = at + size, self._meets(at, at + size)
        if sum(min(self.end[start], end) - max(start, at) for start in met) != size:
            return False
        for start in met:
            stop = self.end.pop(start)
            del self.starts[bisect.bisect_left(self.starts, start)]
            if start < at:
                self._insert(start, at)
            if stop > end:
                self._insert(end, stop)
        return True
