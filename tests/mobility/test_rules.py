"""Algorithms 1 and 3 of the paper: its own Inception block, hand-made forks and joins, and random ones against a
statement of the rules that has nothing in common with how they are computed."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem.errors import InvalidArgument
from dymem.mobility import MOVABLE, RECLAIMED, TEMPORARY, Facts, by_stream, execution_order, mobility

# Figure 10: l0 forks into l1 (average pooling), l2, l3 and l4; l9 joins the four branches.
INCEPTION = {"l0": ["l1", "l2", "l3", "l4"], "l1": ["l5"], "l2": ["l9"], "l3": ["l6"], "l4": ["l7"], "l5": ["l9"],
             "l6": ["l9"], "l7": ["l8"], "l8": ["l9"], "l9": ["l10"]}
INCEPTION_ORDER = ["l0", "l1", "l5", "l2", "l3", "l6", "l4", "l7", "l8", "l9", "l10"]


def test_inception_block_runs_branch_by_branch():
    assert execution_order(INCEPTION) == INCEPTION_ORDER


def test_inception_block_in_forward():
    found = mobility(INCEPTION)
    assert {layer for layer, told in found.items() if told == TEMPORARY} == {"l0", "l5", "l2", "l6", "l10"}, \
        "the fork, the three branch results that wait for the join, and the last, which nobody uses"
    assert found["l8"] == MOVABLE, "the last branch's result is joined at once"
    assert RECLAIMED not in found.values()


def test_inception_block_in_backward():
    found = mobility(INCEPTION, backward=True)
    assert [found[layer] for layer in ("l5", "l2", "l6", "l8")] == [MOVABLE] * 4
    assert found["l0"] == TEMPORARY, "several layers still depend on it"


@pytest.mark.parametrize("kind", ["fc", "softmax", "dropout"])
def test_small_layers_are_reclaimed_whatever_uses_them(kind):
    kinds = {"l0": kind, "l5": kind, "l7": kind}
    found = mobility(INCEPTION, lambda layer: kinds.get(layer, "conv"))
    assert {layer for layer, told in found.items() if told == RECLAIMED} == set(kinds)


def test_chain_is_movable():
    assert mobility({0: [1], 1: [2], 2: [3]}) == {0: MOVABLE, 1: MOVABLE, 2: MOVABLE, 3: TEMPORARY}


def test_residual_block():
    found = mobility({"x": ["conv1", "add"], "conv1": ["conv2"], "conv2": ["add"], "add": ["next"]})
    assert found == {"x": TEMPORARY, "conv1": MOVABLE, "conv2": MOVABLE, "add": MOVABLE, "next": TEMPORARY}


def test_skip_over_a_nested_fork():
    graph = {"a": ["b", "z"], "b": ["c", "d"], "c": ["e"], "d": ["e"], "e": ["z"]}
    assert execution_order(graph) == ["a", "b", "c", "d", "e", "z"]
    assert mobility(graph) == {"a": TEMPORARY, "b": TEMPORARY, "c": TEMPORARY, "d": MOVABLE, "e": MOVABLE, "z": TEMPORARY}


def test_join_waits_for_a_second_beginning():
    assert execution_order({"image": ["conv"], "conv": ["join"], "text": ["embed"], "embed": ["join"]}) == \
        ["image", "conv", "text", "embed", "join"]


def test_user_named_twice_is_one():
    assert mobility({"x": ["square", "square"], "square": []})["x"] == MOVABLE


def test_deeper_than_the_stack():
    depth = 20 * sys.getrecursionlimit()
    assert execution_order({i: [i + 1] for i in range(depth)}) == list(range(depth + 1))


@pytest.mark.parametrize("graph", [{0: [0]}, {0: [1], 1: [2], 2: [1]}])
def test_cycle_is_refused(graph):
    with pytest.raises(InvalidArgument, match="cycle"):
        execution_order(graph)


def test_a_layer_may_be_called_anything():
    graph = {"a": [None, "b"], None: ["c"], "b": ["c"]}
    assert execution_order(graph) == ["a", None, "b", "c"]
    assert mobility(graph) == {"a": TEMPORARY, None: TEMPORARY, "b": MOVABLE, "c": TEMPORARY}
    assert mobility({None: ["a"], "a": [None]}, order=[None, "a"])["a"] == TEMPORARY, "nothing runs after it"


def test_order_as_it_was_run_counts():
    graph = {"fork": ["a", "b"], "a": ["join"], "b": ["join"]}
    assert mobility(graph, order=["fork", "b", "a", "join"])["b"] == TEMPORARY
    assert mobility(graph, order=["fork", "b", "a", "join"])["a"] == MOVABLE


def test_rules_need_no_torch():
    code = "import sys, dymem.mobility; assert not {'torch', 'numpy', 'dymem._core'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- random graphs


@st.composite
def graphs(draw):
    """Networks of nested forks and joins, with skips thrown in; layers are numbered so that edges go upwards."""
    count = draw(st.integers(1, 14))
    edges = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    graph = {layer: [] for layer in range(count)}
    for a, b in sorted(edges):
        if a != b:
            graph[min(a, b)].append(max(a, b))
    for layer in graph:
        graph[layer] = draw(st.permutations(graph[layer]))
    return graph


def visits(graph):
    """Depth first as the paper writes it: recursion and two counts, of visits and of what a layer needs."""
    needs = {layer: {a for a in graph if layer in graph[a]} for layer in graph}
    seen, order = dict.fromkeys(graph, 0), []

    def flow(layer):
        seen[layer] += 1
        if seen[layer] < len(needs[layer]):
            return
        order.append(layer)
        for user in dict.fromkeys(graph[layer]):
            flow(user)

    for layer in graph:
        if not needs[layer]:
            flow(layer)
    return order


@settings(max_examples=300)
@given(graphs())
def test_order_against_the_recursion(graph):
    order = execution_order(graph)
    assert order == visits(graph)
    place = {layer: i for i, layer in enumerate(order)}
    assert all(place[a] < place[b] for a in graph for b in graph[a]), "nothing runs before what it needs"


@settings(max_examples=300)
@given(graphs(), st.randoms(use_true_random=False))
def test_mobility_against_brute_force(graph, random):
    """By pairs of steps: alive(layer, t) says whether a result is still to be used after step t. Of results that no layer
    of a small kind made, the movable ones are those that die with the very next step, by one user's hand."""
    kinds = {layer: random.choice(["conv", "pool", "add", "fc", "softmax", "dropout"]) for layer in graph}
    order = visits(graph)
    forward, backward = mobility(graph, kinds.get), mobility(graph, kinds.get, backward=True)
    for born, layer in enumerate(order):
        uses = [t for t, user in enumerate(order) if user in graph[layer]]
        if kinds[layer] in ("fc", "softmax", "dropout"):
            expected = expected_back = RECLAIMED
        else:
            expected = MOVABLE if uses == [born + 1] else TEMPORARY
            expected_back = MOVABLE if len(uses) <= 1 else TEMPORARY
        assert forward[layer] == expected, (layer, uses, born)
        assert backward[layer] == expected_back


@settings(max_examples=100)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_branches_are_serialised(lengths):
    """A fork of branches of these lengths: each runs whole before the next begins, and the join comes last."""
    branches = [[(b, i) for i in range(length)] for b, length in enumerate(lengths)]
    graph = {"fork": [branch[0] for branch in branches]}
    for branch in branches:
        graph |= {a: [b] for a, b in itertools.pairwise(branch)}
        graph[branch[-1]] = ["join"]
    assert execution_order(graph) == ["fork", *itertools.chain.from_iterable(branches), "join"]
    found = mobility(graph)
    assert [found[branch[-1]] for branch in branches[:-1]] == [TEMPORARY] * (len(branches) - 1)
    assert found[branches[-1][-1]] == MOVABLE


@pytest.mark.parametrize("arguments", [(["x" * 50] * 500,), (Facts(), ["x" * 50] * 500)])
def test_a_long_list_that_is_no_facts_or_no_rule_is_told_shortly(arguments):
    with pytest.raises(InvalidArgument, match="^there (are no facts in|is no rule) ") as error:
        by_stream(*arguments)
    assert len(str(error.value)) < 250
