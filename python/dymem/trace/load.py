"""Loads whatever trace a user names: a PyTorch snapshot or dymem's own format, either of them also as .xz or .gz.

A Recording holds raw events (allocator/trace/event.hpp) that go to `_core.replay` as they are. Every refusal is a
TraceError of one sentence that begins with the file's name.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from dymem.errors import DymemError, TraceError
from dymem.trace import child, plain, snapshot

_SUFFIXES = {".pickle", ".pkl", ".xz", ".gz", ".dymem", ".trace", ".bin", ".snapshot"}
OWN_MAGIC = b"DYMEMTRC"


@dataclasses.dataclass
class Recording:
    name: str
    file: str
    device: int
    events: bytes | bytearray
    ignored_frees: int = 0  # of blocks that were allocated before the recording began
    addresses: bytes = b""  # u64 an event, with load(layout=True) of a snapshot; dymem's own traces have none
    frames: list[str] = dataclasses.field(default_factory=list)
    frame_of: bytes = b""   # u32 an event: 1 + an index into frames, 0 = not told

    def __len__(self) -> int:
        return len(self.events) // snapshot.EVENT.size


def name_of(path: Path) -> str:
    """The file's name without folders and suffixes."""
    name = path.name
    while (at := name.rfind(".")) > 0 and name[at:].lower() in _SUFFIXES:
        name = name[:at]
    return name


def check_there(path: str | Path) -> None:
    """What load() would say of a file that cannot even be opened, before anything else is asked for."""
    if not os.path.exists(path) or os.path.isdir(path) or not os.access(path, os.R_OK):
        load(path)


def load(path: str | Path, layout: bool = False) -> list[Recording]:
    """The recordings in a file, one for each device that did anything; with the addresses it tells if `layout`."""
    path = Path(path)
    try:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise TraceError("it is a pipe or a device, and a trace is read more than once; write it to a file first.")
        if _is_own(path):
            return [_own(path)]
        traces = child.read_apart(_real(path), layout)  # its stdin is not ours
    except child.ReaderKilled as error:  # callers may try again
        raise child.ReaderKilled(f"{path}: {error}") from None
    except DymemError as error:
        raise TraceError(f"{path}: {error}") from None
    several = len(traces) > 1
    return [Recording(f"{name_of(path)}:{t.device}" if several else name_of(path), str(path), t.device, t.events,
                      t.ignored_frees, t.addresses, t.frames, t.frame_of) for t in traces]


def _real(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a null, or half a pair of surrogates
        raise TraceError(plain.NO_NAME) from None


def _own(path: Path) -> Recording:
    trace = _read_own(path)
    events, ignored = trace["events"], 0
    if trace["dropped"]:  # its beginning is gone: so are the allocations that some of its frees belong to
        events, ignored = snapshot.without_orphans(events)
    return Recording(name_of(path), str(path), trace["device"], events, ignored)


def _read_own(path: Path) -> dict:
    """By descriptors, so that any name will do and nothing of what was unpacked is left, however this process ends."""
    with open(path, "rb") as file:
        if file.read(len(OWN_MAGIC)) == OWN_MAGIC:
            return _read_descriptor(file.fileno())
    try:
        with tempfile.TemporaryFile() as unpacked:
            for chunk in plain.chunks(path):
                unpacked.write(chunk)
            unpacked.flush()
            return _read_descriptor(unpacked.fileno())
    except OSError as error:  # of writing: what reading raises is a TraceError
        raise TraceError(f"there is no room to unpack it: {error.strerror or error}; name a folder that has some in "
                         "TMPDIR.") from None


def _read_descriptor(descriptor: int) -> dict:
    from dymem import _core

    name = f"/proc/self/fd/{descriptor}"
    try:
        return _core.trace.read(name)
    except DymemError as error:
        message = str(error)
        for named in (f"trace '{name}'", f"'{name}'"):  # load() says which file it is
            message = message.replace(named, "it")
        raise TraceError(message + ".") from None


def _is_own(path: Path) -> bool:
    """By the first bytes of what is in it; whatever cannot be opened is left to the reader of snapshots, who says why."""
    try:
        with plain.unpacking(path) as file:
            return file.read(len(OWN_MAGIC)) == OWN_MAGIC
    except Exception:  # whatever a damaged archive raises
        return False
