"""Classes in traces, and how far those of one iteration reach into the next ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem._paths import traces_dir
from dymem.errors import TraceError
from dymem.mobility import MOVABLE, TEMPORARY, UNTAGGED
from dymem.mobility.tagging import carried, shares, stamped, tagged
from dymem.trace import load
from dymem.trace.mobility import with_hindsight
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED, MARK

F, B = ord("F"), ord("B")


def trace(*rows):
    """(kind, block, size, stream, iteration) in order."""
    return b"".join(EVENT.pack(i, block, size, stream, kind, 0, F, iteration)
                    for i, (kind, block, size, stream, iteration) in enumerate(rows))


def iteration(number, first, *, sizes=(512, 1024, 2048), extra=False):
    """Two allocations of which the first is freed before the third comes; the older one's free ends it."""
    a, b, c = range(first, first + 3)
    rows = [(ALLOC, a, sizes[0], 0, number), (ALLOC, b, sizes[1], 0, number)]
    if extra:
        rows += [(ALLOC, first + 3, 64, 0, number), (FREE_REQUESTED, first + 3, 64, 0, number)]
    return [*rows, (FREE_REQUESTED, a, sizes[0], 0, number), (ALLOC, c, sizes[2], 0, number),
            (FREE_REQUESTED, b, sizes[1], 0, number), (FREE_REQUESTED, c, sizes[2], 0, number)]


def tags(events):
    return {e[1]: e[5] for e in EVENT.iter_unpack(events) if e[4] == ALLOC}


OF_0 = {0: TEMPORARY, 1: MOVABLE, 2: TEMPORARY}


def test_next_iteration_of_other_sizes_has_the_same_classes():
    events = trace(*iteration(0, 0), *iteration(1, 10, sizes=(4096, 512, 600)), *iteration(2, 20))
    out, coverage = carried(events, 0, OF_0)
    assert tags(out) == {0: UNTAGGED, 1: UNTAGGED, 2: UNTAGGED, 10: TEMPORARY, 11: MOVABLE, 12: TEMPORARY, 20: TEMPORARY,
                         21: MOVABLE, 22: TEMPORARY}
    assert (coverage.iterations, coverage.share) == (2, 1.0)


def test_from_where_it_departs_it_is_untagged_until_the_next_begins():
    events = trace(*iteration(0, 0), *iteration(1, 10, extra=True), *iteration(2, 20))
    out, coverage = carried(events, 0, OF_0)
    assert [tags(out)[b] for b in (10, 11, 13, 12)] == [TEMPORARY, MOVABLE, UNTAGGED, UNTAGGED]
    assert [tags(out)[b] for b in (20, 21, 22)] == [TEMPORARY, MOVABLE, TEMPORARY]
    assert coverage.tagged_bytes == 512 + 1024 + 3584 and coverage.allocated_bytes == 3584 * 2 + 64


def test_freed_in_another_order_departs():
    rows = iteration(1, 10)
    rows[2] = (FREE_REQUESTED, 11, 1024, 0, 1)
    out, _ = carried(trace(*iteration(0, 0), *rows[:4]), 0, OF_0)
    assert [tags(out)[b] for b in (10, 11, 12)] == [TEMPORARY, MOVABLE, UNTAGGED]


def test_streams_go_their_own_ways():
    beside = [(ALLOC, 50, 512, 7, 0), (ALLOC, 51, 512, 7, 1), (ALLOC, 52, 512, 7, 1)]
    events = trace(*iteration(0, 0), beside[0], *iteration(1, 10)[:2], *beside[1:], *iteration(1, 10)[2:])
    out, _ = carried(events, 0, OF_0 | {50: MOVABLE})
    assert [tags(out)[b] for b in (10, 11, 12, 51, 52)] == [TEMPORARY, MOVABLE, TEMPORARY, MOVABLE, UNTAGGED]


def test_longer_than_the_profiled_one():
    out, _ = carried(trace(*iteration(0, 0), *iteration(1, 10), (ALLOC, 19, 64, 0, 1)), 0, OF_0)
    assert tags(out)[19] == UNTAGGED and tags(out)[12] == TEMPORARY


def test_block_without_a_class_has_none_later():
    out, _ = carried(trace(*iteration(0, 0), *iteration(1, 10)), 0, {1: MOVABLE})
    assert [tags(out)[b] for b in (10, 11, 12)] == [UNTAGGED, MOVABLE, UNTAGGED]


@pytest.mark.parametrize("events, profiled, words", [
    (b"", 0, "no marks"), (trace((ALLOC, 0, 64, 0, -1)), 0, "no marks"), (trace(*iteration(0, 0)), 3, "no iteration 3")])
def test_what_cannot_be_carried_is_refused(events, profiled, words):
    with pytest.raises(TraceError, match=words):
        carried(events, profiled, {})


def test_marks_are_stamped_on_what_follows():
    def mark(number, phase):
        return EVENT.pack(0, 0, number % 2**64, 0, MARK, 0, phase, number)

    def alloc(block, number=-1, phase=0):
        return EVENT.pack(0, block, 64, 0, ALLOC, 0, phase, number)

    out = stamped(alloc(0) + mark(-1, ord("S")) + alloc(1) + mark(4, F) + alloc(2) + mark(4, B) + alloc(3) + alloc(5, 9, F))
    assert [e[6:] for e in EVENT.iter_unpack(out) if e[4] == ALLOC] == [(0, -1), (ord("S"), -1), (F, 4), (B, 4), (F, 9)]


def test_tagged_changes_classes_only():
    events = trace(*iteration(0, 0))
    out = tagged(events, OF_0)
    assert tags(out) == OF_0 and shares(out) == {"untagged": 0, "movable": 1024, "temporary": 2560, "reclaimed": 0}
    assert tagged(out, dict.fromkeys(OF_0, 0)) == events


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_never_a_class_after_a_departure(data):
    """Against a model: the iteration's own list of what happened, compared with the profiled one's prefix by prefix."""
    def steps(first):
        live, rows, block = [], [], first
        for _ in range(data.draw(st.integers(0, 8))):
            if live and data.draw(st.booleans()):
                rows.append((FREE_REQUESTED, live.pop(data.draw(st.integers(0, len(live) - 1)))))
            else:
                rows.append((ALLOC, block))
                live.append(block)
                block += 1
        return rows

    profile, other = [(ALLOC, 0), *steps(1)], steps(100)
    classes = {b: data.draw(st.sampled_from([MOVABLE, TEMPORARY])) for kind, b in profile if kind == ALLOC}
    events = trace(*[(k, b, 64, 0, 0) for k, b in profile], *[(k, b, 64, 0, 1) for k, b in other])
    out, _ = carried(events, 0, classes)

    def shape(rows, first):
        return [(kind, b - first) for kind, b in rows]

    order = [b for kind, b in profile if kind == ALLOC]
    for i, (kind, block) in enumerate(other):
        if kind == ALLOC:
            same = shape(other[:i + 1], 100) == shape(profile[:i + 1], 0)
            assert tags(out)[block] == (classes[order[block - 100]] if same else UNTAGGED)


@pytest.mark.parametrize("name, least", [("bert_varlen", 0.99), ("llama_varlen", 0.99), ("llama_ckpt_varlen", 0.99),
                                         ("unet_b16", 1.0), ("llama_fsdp2_ckpt", 0.99), ("resnet32_stochdepth", 0.02)])
def test_recordings_keep_their_order_whatever_their_sizes(name, least):
    """Iterations of varying length go the same way, and what is carried over is what hindsight says there."""
    (recording,) = load(traces_dir() / f"{name}.pickle.xz")
    oracle = tags(with_hindsight(recording.events))
    of_2 = {e[1]: oracle[e[1]] for e in EVENT.iter_unpack(recording.events) if e[4] == ALLOC and e[7] == 2}
    out, coverage = carried(recording.events, 2, of_2)
    assert coverage.share >= least
    wrong = sum(e[2] for e in EVENT.iter_unpack(out) if e[4] == ALLOC and e[5] not in (UNTAGGED, oracle[e[1]]))
    assert wrong <= 0.001 * coverage.allocated_bytes
