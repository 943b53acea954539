"""Turns what `torch.cuda.memory._dump_snapshot` wrote into events for the C++ core.

The rules, each of which a test holds:
  - allocations are numbered from 0 in the order they were made; times are ns since the first event, never backwards;
  - a free whose completion follows with nothing between is one event, free_requested, at the time it completed; one
    that completes later is two; one that never completed within the recording completes with its last event;
  - what was allocated before the recording began is not in it: its frees are dropped and counted (`ignored_frees`);
  - segments that the recorded allocator took and gave back stay in, so that its reserved bytes can be compared; those
    older than the recording come first, where the snapshot tells of them;
  - `user_metadata` of the form "iteration:phase" marks iterations; anything else is "not marked";
  - for pictures (`layout`), each event's address is kept beside it, and the line of Python that an allocation came from.
A block handed out twice without a free between means that events are missing: refused, since every figure would be
wrong. Several devices make several recordings.
"""

from __future__ import annotations

import array
import dataclasses
import struct

from dymem.config import shortened
from dymem.errors import TraceError
from dymem.trace.segments import held_at_first

# struct TraceEvent in allocator/trace/event.hpp; _core refuses bytes of another size.
EVENT = struct.Struct("<qQQQBBHi")
MOBILITY_AT = struct.calcsize("<qQQQB")  # where in an event its class stands
ALLOC, FREE_REQUESTED, FREE_COMPLETED, RECORD_STREAM, MARK, SEGMENT_ALLOC, SEGMENT_FREE = range(7)
BLOCK_UNIT = 512  # bytes; blocks are rounded up to it: kBlockUnit

_SIZE_MAX = 1 << 46  # kRequestMax
_WORD = (1 << 64) - 1
_SEGMENT_KINDS = {"segment_alloc": SEGMENT_ALLOC, "segment_map": SEGMENT_ALLOC,
                  "segment_free": SEGMENT_FREE, "segment_unmap": SEGMENT_FREE}
_PACKAGES = ("/site-packages/", "/dist-packages/", "/torch/", "<frozen")
_FRAME_MAX = 160  # characters
_NOT_OURS = {"snapshot", "oom", "annotate"}  # change nothing that the allocator holds


@dataclasses.dataclass
class DeviceTrace:
    device: int
    events: bytes | bytearray
    ignored_frees: int
    addresses: bytes = b""  # with `layout`: u64 an event, 0 where it has none
    frames: list[str] = dataclasses.field(default_factory=list)
    frame_of: bytes = b""   # with `layout`: u32 an event, an index into frames plus 1; 0 = not told


def device_traces(snapshot: object, layout: bool = False) -> list[DeviceTrace]:
    """One trace for each device that has events; TraceError if this is no snapshot or has no history."""
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise TraceError("it is neither a PyTorch snapshot nor a trace of dymem.")
    traces = [_Reader(device, entries, layout, snapshot.get("segments")).read()
              for device, entries in enumerate(snapshot["device_traces"]) if entries]
    if not any(trace.events for trace in traces):
        raise TraceError("it is a snapshot without history; call torch.cuda.memory._record_memory_history() before "
                         "what is to be recorded.")
    return [trace for trace in traces if trace.events]


def without_orphans(events: bytes) -> tuple[bytearray, int]:
    """Raw events without those of blocks whose allocation is not among them, and how many frees that left out."""
    held, out, frees = set(), bytearray(), 0
    for event in EVENT.iter_unpack(events):
        kind, block = event[4], event[1]
        if kind == ALLOC:
            held.add(block)
        elif kind in (FREE_REQUESTED, FREE_COMPLETED, RECORD_STREAM) and block not in held:
            frees += kind == FREE_REQUESTED
            continue
        out += EVENT.pack(*event)
    return out, frees


def holder(frames: object) -> str:
    """Whose allocation it was: the innermost line of Python that is not a package's, else of any; "" if not told."""
    if not isinstance(frames, (list, tuple)):
        return ""
    told = [(str(f.get("filename", "")), f.get("line"), str(f.get("name", ""))) for f in frames if isinstance(f, dict)]
    python = [frame for frame in told if frame[0].endswith(".py")]
    own = [frame for frame in python if not any(part in frame[0] for part in _PACKAGES)]
    for file, line, name in (own or python or told)[:1]:
        return f"{'/'.join(file.split('/')[-2:])}:{line} {name}"[:_FRAME_MAX]
    return ""


class _Reader:
    """One device's history. `live` and `ending` hold a block's number and stream by address."""

    def __init__(self, device: int, entries: object, layout: bool = False, segments_at_last: object = None):
        if not isinstance(entries, (list, tuple)):
            raise TraceError(f"its history of device {device} is no list.")
        self.device, self.entries = device, entries
        self.out = bytearray()
        self.layout, self.addresses, self.frame_of = layout, array.array("Q"), array.array("I")
        self.frames: dict[str, int] = {}  # text -> its number, from 1
        self.live: dict[int, tuple[int, int, int]] = {}    # number, size, stream
        self.ending: dict[int, tuple[int, int, int]] = {}  # free requested, not completed
        self.segments: dict[int, int] = {}
        self.segments_at_last = segments_at_last
        self.blocks = self.ignored = 0
        self.time = self.index = 0
        self.iteration, self.phase, self.mark = -1, 0, None

    def read(self) -> DeviceTrace:
        start = None
        for address, size in held_at_first(self.segments_at_last, self.device, self.entries):
            if size <= _SIZE_MAX and address <= _WORD:
                self.segments[address] = size
                self.emit(SEGMENT_ALLOC, 0, size, 0, address)
        for self.index, entry in enumerate(self.entries):
            if not isinstance(entry, dict):
                raise self.error("is no dict")
            time_us = self.number(entry, "time_us", -_WORD)
            start = time_us if start is None else start
            self.time = min(max(self.time, (time_us - start) * 1000), (1 << 62))
            if entry.get("user_metadata") != self.mark:
                self.read_mark(entry.get("user_metadata"))
            action = entry.get("action")
            if not isinstance(action, str):
                raise self.error("has no action; the snapshot is damaged")
            if action == "alloc":
                self.alloc(entry)
            elif action == "free_requested":
                self.request(entry)
            elif action == "free_completed":
                self.complete(entry)
            elif action in _SEGMENT_KINDS:
                self.segment(_SEGMENT_KINDS[action], action, entry)
            elif action not in _NOT_OURS:
                raise self.error(f"has the action {shortened(repr(action))}, which this version does not know")
        for address, block in self.ending.items():
            self.emit(FREE_COMPLETED, *block, address)
        return DeviceTrace(self.device, self.out, self.ignored, self.addresses.tobytes(), list(self.frames),
                           self.frame_of.tobytes())

    def error(self, what: str) -> TraceError:
        return TraceError(f"event {self.index} of device {self.device} {what}.")

    def number(self, entry: dict, key: str, least: int = 0, most: int = _WORD) -> int:
        value = entry.get(key)
        if not isinstance(value, int) or not least <= value <= most:
            raise self.error(f"has {shortened(repr(value))} for {key}; the snapshot is damaged" if key in entry
                             else f"has no {key}; record with a newer PyTorch")
        return value

    def read_mark(self, mark: object) -> None:
        self.mark, self.iteration, self.phase = mark, -1, 0
        if isinstance(mark, str):
            head, _, phase = mark.partition(":")
            if len(head) <= 9 and head.isascii() and head.isdigit():
                self.iteration = int(head)
            self.phase = ord(phase) if len(phase) == 1 and phase.isascii() else 0

    def emit(self, kind: int, block: int, size: int, stream: int, address: int) -> None:
        self.out += EVENT.pack(self.time, block, size, stream, kind, 0, self.phase, self.iteration)
        if self.layout:
            self.addresses.append(address)
            self.frame_of.append(self.frame(self.entries[self.index]) if kind == ALLOC else 0)

    def frame(self, entry: dict) -> int:
        text = holder(entry.get("frames"))
        return self.frames.setdefault(text, len(self.frames) + 1) if text else 0

    def alloc(self, entry: dict) -> None:
        address = self.number(entry, "addr")
        if address in self.live:
            raise self.error(f"allocates {address:#x}, which is still held: the recording leaves out frees; record "
                             "with every action")
        if address in self.ending:  # handed out again: so it was done
            self.emit(FREE_COMPLETED, *self.ending.pop(address), address)
        block = self.blocks, self.number(entry, "size", most=_SIZE_MAX), self.number(entry, "stream")
        self.blocks += 1
        self.live[address] = block
        self.emit(ALLOC, *block, address)

    def request(self, entry: dict) -> None:
        address = self.number(entry, "addr")
        block = self.live.pop(address, None)
        if block is None:
            self.ignored += 1
            return
        following = self.entries[self.index + 1] if self.index + 1 < len(self.entries) else None
        at_once = isinstance(following, dict) and following.get("action") == "free_completed" \
            and following.get("addr") == address
        if not at_once:  # else one event for both, when the completion is read
            self.emit(FREE_REQUESTED, *block, address)
        self.ending[address] = block

    def complete(self, entry: dict) -> None:
        address = self.number(entry, "addr")
        block = self.ending.pop(address, None)
        if block is not None:
            previous = self.entries[self.index - 1]
            at_once = previous.get("action") == "free_requested" and previous.get("addr") == address
            self.emit(FREE_REQUESTED if at_once else FREE_COMPLETED, *block, address)
        elif address in self.live:  # a free whose request was not recorded
            self.emit(FREE_REQUESTED, *self.live.pop(address), address)

    def segment(self, kind: int, action: str, entry: dict) -> None:
        address, size = self.number(entry, "addr"), self.number(entry, "size", most=_SIZE_MAX)
        if action == "segment_alloc":
            self.segments[address] = size
        elif action == "segment_free" and self.segments.pop(address, None) is None:
            return  # older than the recording: its bytes were never counted
        self.emit(kind, 0, size, self.number(entry, "stream"), address)
