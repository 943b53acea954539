"""Facts: what each allocation of one profiled iteration held, who made and used it, and how long it was held.

Plain data, written and read as JSON. A *node* is one layer as it ran: an operator as the program called it ("aten::conv2d",
with all that it calls inside), a custom function or a compiled region as a whole, or one node of autograd in backward.
Nodes are in the order in which they began, and allocations in the order in which they were made.

Moments ("at", "freed") count entries of the profile and only say what was before what. A *segment* is a run of nodes of
one phase: with gradients accumulated, an iteration has several segments of forward and of backward.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import lzma
import reprlib
from pathlib import Path
from typing import Callable, Mapping

from dymem.errors import TraceError
from dymem.trace import plain
from dymem.writing import shown, write_bytes

PHASES = FORWARD, BACKWARD, OPTIMIZER = tuple("FBO")  # as a trace marks them
# What an allocation holds. "result": made by a node for others, and not needed by backward.
ROLES = ("parameter", "gradient", "optimizer", "saved", "workspace", "result", "other")
VERSION = 1
DEVICES = 64    # kDevicesMax (allocator/abi/registry.hpp)
_MOST = 1 << 63  # below it: sizes and moments


@dataclasses.dataclass(slots=True)
class Node:
    index: int
    name: str
    kind: str                  # of layer: kinds.py; in backward that of the forward node
    phase: str                 # F, B or O
    segment: int
    thread: int
    at: int                    # when it began …
    end: int                   # … and ended; -1: not within the profile
    forward: int | None = None  # of a node of autograd: the forward node whose backward this is
    again: bool = False        # an operator that autograd records within backward: recomputed, or to be differentiated
    view: bool = False         # gives nothing of its own: a view of what it was given
    uses: list[int] = dataclasses.field(default_factory=list)   # allocations (below 0: older ones) it was given
    makes: list[int] = dataclasses.field(default_factory=list)  # allocations made within it and held when it ended


@dataclasses.dataclass(slots=True)
class Allocation:
    index: int                 # among the profile's; an older one's is -1, -2, …
    number: int | None         # in the trace of its device; None: not recorded
    device: int
    stream: int
    place: int                 # among the profile's allocations of its device and stream, from 0; -1: older
    bytes: int                 # as asked for
    role: str = "other"        # one of ROLES
    node: int | None = None    # that made it; None: no operator was running on its thread
    operator: str = ""         # the innermost that made it
    kind: str = "other"        # of the node
    phase: str = ""            # F, B or O, when it was made
    segment: int = -1
    at: int = -1
    freed: int | None = None   # None: not within the profile
    freed_in: int | None = None      # the segment
    freed_by: int | None = None      # the node that was running
    users: list[int] = dataclasses.field(default_factory=list)  # nodes after the one that made it, without views
    last_use: int | None = None      # the last node that was given it, its maker included
    fork: bool = False         # several nodes of the segment it was made in use it
    waits: bool = False        # has users, but the layer that runs next in that segment is not one of them

    @property
    def short_lived(self) -> bool:
        """Freed in the segment that made it."""
        return self.freed_in is not None and self.freed_in == self.segment


@dataclasses.dataclass(slots=True)
class Facts:
    nodes: list[Node] = dataclasses.field(default_factory=list)
    allocations: list[Allocation] = dataclasses.field(default_factory=list)
    older: list[Allocation] = dataclasses.field(default_factory=list)  # from before, as far as anything used them
    segments: list[str] = dataclasses.field(default_factory=list)      # the phase of each
    complete: bool = True                                               # False: nothing should be concluded
    notes: list[str] = dataclasses.field(default_factory=list)         # what went wrong, a sentence each
    here: bool = dataclasses.field(default=False, compare=False)       # of this process, not loaded
    host: bool = False                                                  # of memory of the CPU (Profile(host=True))

    def allocation(self, index: int) -> Allocation:
        return self.allocations[index] if index >= 0 else self.older[-1 - index]

    def bytes_by_role(self) -> dict[str, int]:
        """Bytes of the profile's allocations by role, roles that hold none left out."""
        sums = collections.Counter()
        for a in self.allocations:
            sums[a.role] += a.bytes
        return {role: sums[role] for role in ROLES if sums[role]}

    def to_json(self) -> str:
        """One line; lists of rows rather than of objects, since there are thousands."""
        return json.dumps({"version": VERSION, "complete": self.complete, "notes": self.notes, "segments": self.segments,
                           **({"host": True} if self.host else {}),
                           "nodes": _rows(Node, self.nodes), "allocations": _rows(Allocation, self.allocations),
                           "older": _rows(Allocation, self.older)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """What to_json() wrote; TraceError for anything else, also for values that no profile tells: who follows facts
        need not ask whether there is what they point to."""
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise TraceError("it holds no facts of an iteration, nor any other JSON; record them anew.") from None
        if type(data) is not dict or "version" not in data:
            raise TraceError("it holds no facts of an iteration, which have a version; record them anew.")
        if type(data["version"]) is not int or data["version"] != VERSION:  # True and 1.0 are equal to 1
            raise TraceError(f"these facts are of version {reprlib.repr(data['version'])}, and this dymem reads {VERSION}; "
                             "record anew.")
        for name in ("nodes", "allocations", "older", "segments", "complete", "notes"):
            if name not in data:
                raise _damaged(f"it has no `{name}`")
        facts = cls(_read(Node, data, "nodes"), _read(Allocation, data, "allocations"), _read(Allocation, data, "older"),
                    data["segments"], data["complete"], data["notes"], host=data.get("host", False))
        _check(facts)
        return facts

    def save(self, path: str | Path) -> None:
        """Whole or not at all, compressed where the name ends in .xz or .gz; InvalidArgument if it cannot be written."""
        data = (self.to_json() + "\n").encode()
        if (suffix := Path(path).suffix.lower()) == ".xz":
            data = lzma.compress(data)
        elif suffix == ".gz":
            data = gzip.compress(data, mtime=0)  # same facts, same bytes
        write_bytes(Path(path), data)

    @classmethod
    def load(cls, path: str | Path) -> Facts:
        """What save() wrote, as it is or as .xz or .gz; TraceError, which names the file, for anything else."""
        try:
            return cls.from_json(plain.read_bytes(Path(path)).decode())
        except UnicodeDecodeError:
            raise TraceError(f"{shown(Path(path))}: it holds no facts of an iteration, nor any other text.") from None
        except TraceError as error:
            raise TraceError(f"{shown(Path(path))}: {error}") from None


def _rows(kind: type, items: list) -> dict:
    names = [field.name for field in dataclasses.fields(kind)]
    return {"fields": names, "rows": [[getattr(item, name) for name in names] for item in items]}


def _read(kind: type, data: dict, table: str) -> list:
    """Which values may stand in a row is asked later; here, whether it is a table at all, of the fields that there are."""
    told = data[table]
    if type(told) is not dict or type(told.get("fields")) is not list or type(told.get("rows")) is not list:
        raise _damaged(f"`{table}` is no table of fields and rows")
    fields, known = told["fields"], [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in known:
            raise _damaged(f"`{table}` has a field {reprlib.repr(name)}, which no profile tells")
        if fields.count(name) > 1:
            raise _damaged(f"`{table}` has its field `{name}` twice")
    for name in known:
        if name not in fields:
            raise _damaged(f"`{table}` has no field `{name}`")
    for i, row in enumerate(told["rows"]):
        if type(row) is not list or len(row) != len(fields):
            what = f"{len(row)} values" if type(row) is list else reprlib.repr(row)
            raise _damaged(f"row {i} of `{table}` has {what} for {len(fields)} fields")
    return [kind(**dict(zip(fields, row))) for row in told["rows"]]


def _damaged(what: str) -> TraceError:
    return TraceError(f"{what}; these facts are damaged: record them anew.")


# --- values that were read

Test = Callable[[object], bool]


def _number(least: int, end: int = _MOST) -> Test:
    return lambda value: type(value) is int and least <= value < end  # True is none


def _is(kind: type) -> Test:
    return lambda value: type(value) is kind


def _one_of(values: tuple) -> Test:
    return lambda value: type(value) is str and value in values


def _or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _list_of(test: Test) -> Test:
    return lambda value: type(value) is list and all(map(test, value))


def _check(facts: Facts) -> None:
    """TraceError, which names the field and the index of what has it, for a value that no profile tells."""
    _check_fields("it", facts, {"segments": _list_of(_one_of(PHASES)), "complete": _is(bool), "host": _is(bool),
                                "notes": _list_of(_is(str))})
    made, node = _number(0, len(facts.allocations)), _number(0, len(facts.nodes))
    given = _number(-len(facts.older), len(facts.allocations))
    segment = _number(0, max(1, len(facts.segments)))  # 0 also before the first
    of_node = {"name": _is(str), "kind": _is(str), "phase": _one_of(PHASES), "segment": _number(0, len(facts.segments)),
               "thread": _number(0), "at": _number(0), "again": _is(bool), "view": _is(bool), "uses": _list_of(given),
               "makes": _list_of(made)}
    for i, n in enumerate(facts.nodes):
        _check_fields(f"node {i}", n, of_node)
        _check_fields(f"node {i}", n, {"index": _number(i, i + 1), "forward": _or_none(_number(0, i)),
                                       "end": _number(-1, 0) if n.end == -1 else _number(n.at)})
    of_all = {"number": _or_none(_number(0)), "device": _number(0, DEVICES), "stream": _number(0, 1 << 64),
              "bytes": _number(0), "role": _one_of(ROLES), "node": _or_none(node), "operator": _is(str),
              "kind": _is(str), "freed_in": _or_none(segment), "freed_by": _or_none(node), "users": _list_of(node),
              "last_use": _or_none(node), "fork": _is(bool), "waits": _is(bool)}
    of_made = {**of_all, "phase": _one_of(PHASES), "segment": segment, "at": _number(0)}
    of_older = {**of_all, "phase": _one_of(("",)), "segment": _number(-1, 0), "at": _number(-1, 0),
                "place": _number(-1, 0)}
    places = collections.Counter()
    for i, a in enumerate(facts.allocations):
        _check_fields(f"allocation {i}", a, of_made)
        place = places[a.device, a.stream]
        places[a.device, a.stream] += 1
        _check_fields(f"allocation {i}", a, {"index": _number(i, i + 1), "place": _number(place, place + 1)})
    for i, a in enumerate(facts.older):
        _check_fields(f"allocation {-1 - i}", a, {**of_older, "index": _number(-1 - i, -i)})
    for a in (*facts.allocations, *facts.older):
        _check_fields(f"allocation {a.index}", a, {"freed": _or_none(_number(max(0, a.at)))})


def _check_fields(of: str, item: object, tests: Mapping[str, Test]) -> None:
    for name, test in tests.items():
        if not test(value := getattr(item, name)):
            raise _damaged(f"{of} has {reprlib.repr(value)} as `{name}`, which no profile tells")
