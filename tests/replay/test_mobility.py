"""Classes with hindsight, and what they are worth in one contiguous range under a limit."""

import dataclasses

import pytest

from dymem._paths import traces_dir
from dymem.errors import TraceError
from dymem.replaying import replay_recording
from dymem.trace import load
from dymem.trace.mobility import MOVABLE, TEMPORARY, UNTAGGED, with_hindsight
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

F, B = ord("F"), ord("B")


def trace(*rows):
    """(kind, block, iteration, phase) in order."""
    return b"".join(EVENT.pack(i, block, 512, 0, kind, 0, phase, iteration)
                    for i, (kind, block, iteration, phase) in enumerate(rows))


def classes(events):
    return {event[1]: event[5] for event in EVENT.iter_unpack(with_hindsight(events)) if event[4] == ALLOC}


def test_classes_go_by_the_phase_in_which_a_block_goes():
    events = trace((ALLOC, 0, -1, 0), (ALLOC, 1, -1, 0), (FREE_REQUESTED, 1, -1, 0),
                   (ALLOC, 2, 0, F), (ALLOC, 3, 0, F), (FREE_REQUESTED, 3, 0, F), (FREE_REQUESTED, 2, 0, B),
                   (ALLOC, 4, 0, B), (FREE_REQUESTED, 4, 1, B), (ALLOC, 5, 1, B))
    assert classes(events) == {0: UNTAGGED, 1: TEMPORARY, 2: MOVABLE, 3: TEMPORARY, 4: UNTAGGED, 5: UNTAGGED}


def test_nothing_but_classes_is_changed():
    events = trace((ALLOC, 0, 0, F), (FREE_REQUESTED, 0, 0, F))
    told = with_hindsight(events)
    assert bytes(events) == trace((ALLOC, 0, 0, F), (FREE_REQUESTED, 0, 0, F)), "the trace itself stays as it was"
    strip = [(*event[:5], *event[6:]) for event in EVENT.iter_unpack(told)]
    assert strip == [(*event[:5], *event[6:]) for event in EVENT.iter_unpack(events)]


@pytest.mark.parametrize("events", [b"", trace((ALLOC, 0, -1, 0), (FREE_REQUESTED, 0, -1, 0))])
def test_a_trace_without_iterations_is_refused(events):
    with pytest.raises(TraceError, match="no marks"):
        with_hindsight(events)


@pytest.mark.parametrize("name, limit", [("bert_varlen", 1.01), ("llama_varlen", 1.01), ("llama_accum", 1.01)])
def test_two_ends_of_one_range_under_a_limit(name, limit):
    """Temporary blocks at the far end: these fit into 1 % over what they occupy, untagged they do not."""
    (recording,) = load(traces_dir() / f"{name}.pickle.xz")
    tagged = dataclasses.replace(recording, events=with_hindsight(recording.events))
    slab = {"backing": "contiguous"}
    assert replay_recording(tagged, limit=limit, config=slab)["oom"] is None
    assert replay_recording(recording, limit=limit, config=slab)["oom"] is not None
