"""Makes facts of an operator log (allocator/torch/op_log.hpp): entries in, Facts out. Pure; the torch in use may differ.

What becomes a node. In forward, the outermost operator; ranges that the program named and checkpoints that run their part
of the model as one custom function are looked through. In backward, one node of autograd with all that the engine does
for it (adding gradients up where branches join). An operator that autograd records while such a node runs is a node of
its own: a checkpoint recomputes it, or a backward is itself to be differentiated.

What an entry is worth does not hang on the others: an `end` whose beginning was before the profile is passed over, and
addresses that were never told of (memory of others, of captured graphs) are nobody's.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import struct
from typing import Iterable, Mapping

from dymem.mobility.facts import BACKWARD, FORWARD, OPTIMIZER, Allocation, Facts, Node
from dymem.mobility.kinds import CUSTOM, OTHER, kind_of
from dymem.mobility.rules import waits

ENTRY = struct.Struct("<BBHIQQQ")  # struct OpEntry: kind, flags, thread, name, a, b, c
BEGIN, END, INPUT, ALLOC, FREED, HELD = range(6)
NODE, USER, GRAD = 1, 2, 4  # flags of a beginning
LEAF = 1                    # flag of an input
_NONE = (1 << 64) - 1

_ENGINE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_COMPILED = "Torch-Compiled Region"
_LOOKS_ONLY = {"item", "_local_scalar_dense", "equal", "is_nonzero", "allclose"}


@dataclasses.dataclass(slots=True)
class _Scope:
    name: str
    flags: int
    node: Node | None        # what its allocations belong to
    own: bool = False        # it began the node
    optimizer: bool = False
    engine: bool = False     # of the node it is that autograd runs


def _looked_through(name: str) -> bool:
    """Ranges that PyTorch names in words, and checkpoints that run their part of the model as one custom function."""
    return name == "CheckpointFunction" or (" " in name and not name.startswith(_COMPILED))


class _Reader:
    """Entries in, one after the other; conclusions when all are read."""

    def __init__(self, names: list[str], streams: list[int], thread: int, host: bool):
        self.names, self.streams, self.thread, self.host = names, streams, thread, host
        self.facts = Facts()
        self.live: dict[tuple[int, int], Allocation] = {}  # by device and address; of the host, device 0
        self.held: dict[tuple[int, int], tuple[int, int, int]] = {}  # older ones that nothing used yet: stream, bytes, number
        self.stacks: dict[int, list[_Scope]] = collections.defaultdict(list)
        self.places: collections.Counter = collections.Counter()  # allocations so far by device and stream
        self.devices: dict[int, None] = {}
        self.leaves: set[int] = set()
        self.gradients: set[int] = set()  # of leaves: nothing in a log tells a parameter from an input that takes one
        self.incoming: set[int] = set()   # gradients that a node of autograd was given
        self.given: dict[int, list[Node]] = collections.defaultdict(list)  # allocation: nodes that were given it
        self.sequence: dict[int, tuple[list[int], list[int]]] = {}  # thread: sequence numbers, nodes
        self.of_node: list[tuple[Node, int, int]] = []  # node of autograd, its sequence number, forward thread

    def read(self, entries: Iterable[tuple]) -> Facts:
        for at, (kind, flags, thread, name, a, b, c) in enumerate(entries):
            if kind == BEGIN:
                self.begin(at, flags, thread, self.names[name], a, b)
            elif kind == END:
                self.end(at, thread)
            elif kind == INPUT:
                self.given_to(flags, thread, a, b)
            elif kind == ALLOC:
                self.alloc(at, flags, thread, self.streams[name], a, b, c)
            elif kind == FREED:
                self.freed(at, flags, thread, a)
            elif kind == HELD and (flags, a) not in self.live:
                self.devices[flags] = None
                self.held[flags, a] = self.streams[name], b, c
        self.conclude()
        return self.facts

    # --- entries

    def begin(self, at: int, flags: int, thread: int, name: str, sequence: int, forward_thread: int) -> None:
        stack = self.stacks[thread]
        around = stack[-1] if stack else None
        scope = _Scope(name, flags, around.node if around else None, optimizer=bool(around and around.optimizer))
        if flags & USER:
            if name.startswith(_OPTIMIZER):
                scope.optimizer = True
                self.segment(OPTIMIZER, thread)
        elif flags & NODE or name.startswith(_ENGINE):
            inside = flags & NODE and around and around.engine and around.name == _ENGINE + name
            if not inside:
                scope.node, scope.own = self.node(at, name.removeprefix(_ENGINE), BACKWARD, thread), True
            scope.engine = True
            if flags & NODE and sequence != _NONE:
                self.of_node.append((scope.node, sequence, forward_thread))
        elif scope.node is None or (flags & GRAD and scope.node.phase == BACKWARD and around.engine):
            if not _looked_through(name):
                phase = OPTIMIZER if scope.optimizer else FORWARD if scope.node is None else BACKWARD
                again = scope.node is not None
                scope.node, scope.own = self.node(at, name, phase, thread), True
                scope.node.again = again
        if flags & GRAD and sequence != _NONE and scope.node is not None and not scope.engine:
            numbers, nodes = self.sequence.setdefault(thread, ([], []))
            numbers.append(sequence)
            nodes.append(scope.node.index)
        stack.append(scope)

    def segment(self, phase: str, thread: int) -> int:
        """The number of the segment that this phase is in; other threads open one only for backward, which may be theirs."""
        segments = self.facts.segments
        if not segments or (segments[-1] != phase and (thread == self.thread or phase == BACKWARD)):
            segments.append(phase)
        return len(segments) - 1

    def node(self, at: int, name: str, phase: str, thread: int) -> Node:
        node = Node(len(self.facts.nodes), name, kind_of(name), phase, self.segment(phase, thread), thread, at, -1)
        self.facts.nodes.append(node)
        return node

    def end(self, at: int, thread: int) -> None:
        stack = self.stacks[thread]
        if not stack:
            return
        scope = stack.pop()
        if not scope.own:
            return
        node = scope.node
        node.end = at
        node.makes = [i for i in node.makes if self.facts.allocations[i].freed is None]
        # Nothing was allocated that is still there: it passes on what it was given, unless it wrote to it or only looked.
        if scope.engine:
            node.view = not node.makes and node.name != _ACCUMULATE
        else:
            bare = node.name.rsplit("::", 1)[-1]
            node.view = not node.makes and "::" in node.name and not bare.endswith("_") and bare not in _LOOKS_ONLY

    def given_to(self, flags: int, thread: int, address: int, size: int) -> None:
        stack = self.stacks[thread]
        found = self.at_address(address, size) if stack else None
        if found is None:
            return
        scope = stack[-1]
        if flags & LEAF:
            self.leaves.add(found.index)
        if scope.flags & NODE:
            (self.gradients if scope.name == _ACCUMULATE else self.incoming).add(found.index)
        if scope.node is not None:
            seen = self.given[found.index]
            if not seen or seen[-1] is not scope.node:
                seen.append(scope.node)

    def at_address(self, address: int, size: int) -> Allocation | None:
        if self.host:
            return self.live.get((0, address)) or self.older(0, address, 0, size, _NONE)
        return next((found for device in self.devices if (found := self.at(device, address))), None)

    def at(self, device: int, address: int) -> Allocation | None:
        """What lies at an address of a pool; an older allocation becomes one of the facts when it is first used."""
        key = device, address
        if key in self.held:
            return self.older(device, address, *self.held.pop(key))
        return self.live.get(key)

    def older(self, device: int, address: int, stream: int, size: int, number: int) -> Allocation:
        a = Allocation(-1 - len(self.facts.older), None if number == _NONE else number, device, stream, -1, size)
        self.facts.older.append(a)
        self.live[device, address] = a
        return a

    def alloc(self, at: int, device: int, thread: int, stream: int, address: int, size: int, number: int) -> None:
        stack = self.stacks[thread]
        scope = stack[-1] if stack else None
        node = scope.node if scope else None
        place = self.places[device, stream]
        self.places[device, stream] += 1
        self.devices[device] = None
        index = len(self.facts.allocations)
        a = Allocation(index, None if number == _NONE else number, device, stream, place, size, at=at)
        if node is not None:
            a.node, a.operator, a.phase, a.segment = node.index, scope.name, node.phase, node.segment
            node.makes.append(index)
        else:
            a.operator = scope.name if scope else ""
            a.segment = max(0, len(self.facts.segments) - 1)
            a.phase = self.facts.segments[-1] if self.facts.segments else FORWARD
            if scope and scope.optimizer:
                a.phase = OPTIMIZER
        self.facts.allocations.append(a)
        self.held.pop((device, address), None)
        self.live[device, address] = a

    def freed(self, at: int, device: int, thread: int, address: int) -> None:
        a = self.at(device, address)
        if a is None:
            return
        del self.live[device, address]
        stack = self.stacks[thread]
        node = stack[-1].node if stack else None
        a.freed, a.freed_in = at, max(0, len(self.facts.segments) - 1)
        a.freed_by = node.index if node else None

    # --- conclusions, when all is read

    def conclude(self) -> None:
        for node, sequence, thread in self.of_node:
            numbers, nodes = self.sequence.get(thread, ((), ()))
            found = bisect.bisect_right(numbers, sequence) - 1  # an operator makes the nodes from its number on
            if found >= 0 and node.index > nodes[found]:
                node.forward = nodes[found]
                kind = self.facts.nodes[node.forward].kind
                node.kind = kind if kind not in (OTHER, CUSTOM) or node.kind == OTHER else node.kind
        for index, given in self.given.items():
            self.used(self.facts.allocation(index), given)
        layers = _Layers(self.facts)
        for a in self.facts.allocations:
            if a.node is not None:
                a.kind = self.facts.nodes[a.node].kind
            a.role = self.role(a)
            layers.judge(a)
        for a in self.facts.older:
            a.role = self.role_of_older(a)

    def used(self, a: Allocation, given: list[Node]) -> None:
        seen: dict[int, None] = {}
        for node in given:
            a.last_use = node.index if a.last_use is None else max(a.last_use, node.index)
            if node.index != a.node and not node.view:
                seen[node.index] = None
            if node.index != a.node and a.index not in node.uses:
                node.uses.append(a.index)
        a.users = sorted(seen)

    def role(self, a: Allocation) -> str:
        if a.index in self.leaves and a.freed is None and a.index not in self.gradients:
            return "parameter"
        if a.index in self.gradients or (a.node is not None and a.freed is None
                                         and self.facts.nodes[a.node].name == _ACCUMULATE):
            return "gradient"
        if a.node is None:
            return "optimizer" if a.phase == OPTIMIZER and a.freed is None else "other"
        node = self.facts.nodes[a.node]
        if a.freed is not None and (node.end < 0 or a.freed < node.end):
            return "workspace"
        if a.phase == OPTIMIZER:
            return "optimizer" if a.freed is None else "result"
        if self.for_backward(a, node):
            return "saved"
        return "result" if a.users or node.makes else "other"

    def for_backward(self, a: Allocation, node: Node) -> bool:
        """Made by a forward operator, and a node of autograd worked with it or set it free."""
        if a.index in self.incoming or (node.phase == BACKWARD and not node.again):
            return False
        nodes = self.facts.nodes
        ends = [*a.users, *([a.freed_by] if a.freed_by is not None else [])]
        return any(nodes[i].phase == BACKWARD and not nodes[i].again for i in ends)

    def role_of_older(self, a: Allocation) -> str:
        if a.index in self.leaves:
            return "parameter"
        phases = {self.facts.nodes[i].phase for i in a.users}
        if a.index in self.gradients or any(self.facts.nodes[i].name == _ACCUMULATE for i in a.users):
            return "gradient"
        return "optimizer" if phases == {OPTIMIZER} else "other"


class _Layers:
    """The layers of each segment, in order: nodes that work on what other nodes of the profile made. What only prepares
    parameters or makes constants (a weight cast under autocast) is no step from one layer to the next."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.by_segment: dict[int, list[int]] = collections.defaultdict(list)
        for node in facts.nodes:
            works_on = any(i >= 0 and facts.allocations[i].node is not None for i in node.uses)
            if works_on and not node.view and node.kind != "accumulate":
                self.by_segment[node.segment].append(node.index)

    def judge(self, a: Allocation) -> None:
        if a.node is not None and a.role != "workspace" and a.users:
            users = self.users(a)
            a.fork, a.waits = len(users) > 1, waits(users, self.following(a))

    def users(self, a: Allocation) -> list[int]:
        nodes = self.facts.nodes
        return [i for i in a.users if nodes[i].segment == a.segment and nodes[i].kind != "accumulate"]

    def following(self, a: Allocation) -> int | None:
        layers = self.by_segment[a.segment]
        found = bisect.bisect_right(layers, a.node)
        return layers[found] if found < len(layers) else None


def facts_of(log: Mapping) -> Facts:
    """The facts in what `_torch.op_log.stop()` gave; `host` says that it was a log of CPU memory."""
    reader = _Reader(log["names"], log["streams"], log["thread"], bool(log.get("host")))
    facts = reader.read(ENTRY.iter_unpack(log["entries"]))
    facts.host = reader.host
    if log["lost"]:
        facts.complete = False
        facts.notes.append(f"the iteration is too long to be profiled: {log['lost']} entries did not fit; its allocations "
                           "stay untagged.")
    if log["displaced"]:
        facts.complete = False
        facts.notes.append("memory history was switched on or off while an iteration was profiled, so that allocations are "
                           "missing; they stay untagged. Profile again.")
    return facts
