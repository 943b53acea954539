"""Dymem's two rules over a graph of layers (HPDC 2020): in which order layers run, and of which mobility each result is.

A graph is a mapping: layer -> the layers that use its result. Layers are anything hashable; those that are named only as
users of others count too, and naming a user twice is naming it once. Pure functions of plain data, without torch.
"""

from __future__ import annotations

from typing import Callable, Collection, Hashable, Iterable, Mapping, Sequence, TypeVar

from dymem.errors import InvalidArgument

UNTAGGED, MOVABLE, TEMPORARY, RECLAIMED = range(4)  # dymem::Mobility, TraceEvent::mobility
NAMES = ("untagged", "movable", "temporary", "reclaimed")
RECLAIMED_KINDS = frozenset({"fc", "softmax", "dropout"})  # section 2.3.2: small, and kept until nothing depends on them

Layer = TypeVar("Layer", bound=Hashable)
_NO_LAYER = object()  # None may be one


def users_of(graph: Mapping[Layer, Iterable[Layer]]) -> dict[Layer, list[Layer]]:
    """Every layer of the graph with the layers that use its result: in the order given, each once."""
    users = {layer: list(dict.fromkeys(after)) for layer, after in graph.items()}
    for after in list(users.values()):
        for layer in after:
            users.setdefault(layer, [])
    return users


def execution_order(graph: Mapping[Layer, Iterable[Layer]]) -> list[Layer]:
    """Algorithm 1 (section 3.1): depth first; a layer runs at its last visit, when all that it needs has run.

    So the branches between a fork and its join run one after the other, each whole, in the order in which the fork's users
    are given. Layers that need nothing begin, in the order of the graph. InvalidArgument for a graph with a cycle.
    """
    users = users_of(graph)
    needed = dict.fromkeys(users, 0)
    for after in users.values():
        for layer in after:
            needed[layer] += 1
    order: list[Layer] = []
    for first in [layer for layer in users if not needed[layer]]:
        order.append(first)
        paths = [iter(users[first])]  # a stack in place of recursion: networks are deeper than Python's
        while paths:
            layer = next(paths[-1], _NO_LAYER)
            if layer is _NO_LAYER:
                paths.pop()
                continue
            needed[layer] -= 1
            if not needed[layer]:
                order.append(layer)
                paths.append(iter(users[layer]))
    if len(order) < len(users):
        stuck = next(layer for layer in users if needed[layer])
        raise InvalidArgument(f"layer {stuck!r} is never reached: the graph has a cycle, and layers that need each other "
                              "have no order.")
    return order


def waits(users: Collection[Layer], following: Layer | None) -> bool:
    """Does a result wait, because the layer that runs next is none of its users?"""
    return following not in users


def mobility_of(kind: str, users: Collection[Layer], following: Layer | None, backward: bool = False) -> int:
    """Algorithm 3 (section 3.3.2) for one result: of a layer of this kind, used by these; `following` runs next.

    In backward, what would wait for a join is used at once, and so is movable.
    """
    if kind in RECLAIMED_KINDS:
        return RECLAIMED
    if len(users) > 1 or (not backward and waits(users, following)):
        return TEMPORARY
    return MOVABLE


def mobility(graph: Mapping[Layer, Iterable[Layer]], kind: Callable[[Layer], str] = lambda layer: "",
             order: Sequence[Layer] | None = None, backward: bool = False) -> dict[Layer, int]:
    """Algorithm 3 for every layer's result; `order` is the one in which layers run (default: Algorithm 1's)."""
    users = users_of(graph)
    order = execution_order(graph) if order is None else order
    following = dict(zip(order, order[1:]))
    return {layer: mobility_of(kind(layer), users[layer], following.get(layer, _NO_LAYER), backward) for layer in order}
