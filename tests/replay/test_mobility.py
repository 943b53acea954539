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


NAMES = sorted(path.name.removesuffix(".pickle.xz") for path in traces_dir().glob("*.xz"))
SEVERAL_STREAMS = {"resnet50_prefetch", "llama_fsdp2_ckpt", "resnet152_offload_ckpt"}
SLAB = {"backing": "contiguous"}


@pytest.fixture(scope="module", params=NAMES)
def both(request):
    (recording,) = load(traces_dir() / f"{request.param}.pickle.xz")
    return recording, dataclasses.replace(recording, events=with_hindsight(recording.events))


def over_live(recording, placement="grouped", **config):
    result = replay_recording(recording, config=SLAB | config, placement=placement)
    assert result["audit"] == [] and result["oom"] is None
    return 100 * (result["reserved_peak_bytes"] / result["live_peak_bytes"] - 1)


# Points of the live peak that grouping must stay under; it may exceed best fit by 0.3. (Real classes: tests/bench.)
AT_MOST = {"llama_ckpt_varlen": 5.5, "bert_varlen": 1.0, "llama_accum": 0.8, "llama_varlen": 0.5, "llama_fsdp2_ckpt": 5.0}
WORSE = {"resnet32_stochdepth": 0.45}


def test_grouping_in_a_slab_without_a_limit(both):
    plain, tagged = both
    grouped = over_live(tagged)
    assert grouped <= over_live(plain) + WORSE.get(plain.name, 0.3)
    assert grouped <= AT_MOST.get(plain.name, 100.0)
    assert over_live(plain) == over_live(tagged, "best_fit"), "untagged blocks know no placement, best fit no classes"


def test_classes_that_come_late_do_no_harm(both):
    """As a program has them: none while its first iterations are looked at."""
    plain, tagged = both
    if plain.name in SEVERAL_STREAMS:
        pytest.skip("what one stream waited for is not in a recording")
    late = bytearray(tagged.events)
    for index, event in enumerate(EVENT.iter_unpack(tagged.events)):
        if event[4] == ALLOC and event[7] < 2:
            late[index * EVENT.size + 33] = UNTAGGED
    assert over_live(dataclasses.replace(tagged, events=late)) <= over_live(plain) + 0.3


def test_a_pool_of_what_was_needed_is_enough(both):
    """initial - squeeze gap, with beta = 0: the same run fits a pool of that size, to the unit of slabs."""
    plain, tagged = both
    needed = replay_recording(tagged, config=SLAB)["reserved_peak_bytes"]
    sized = replay_recording(tagged, config=SLAB, limit=-(-needed // (2 << 20)) * (2 << 20))
    assert sized["oom"] is None
    if plain.name not in SEVERAL_STREAMS:  # with several, waiting begins where the limit is near
        assert sized["reserved_peak_bytes"] == needed


def test_what_iterations_needed_adds_up_to_the_mark(both):
    for recording in both:
        result = replay_recording(recording, config=SLAB)
        assert max(result["needed_by_iteration"].values()) <= result["reserved_peak_bytes"]
        if recording.name not in SEVERAL_STREAMS:
            assert max(result["needed_by_iteration"].values()) == result["reserved_peak_bytes"]


def test_grouping_on_granules(both):
    plain, tagged = both
    if plain.name in SEVERAL_STREAMS - {"llama_fsdp2_ckpt"}:
        pytest.skip("what one stream waited for is not in a recording")
    result = replay_recording(tagged)
    assert result["audit"] == []
    assert result["reserved_peak_bytes"] <= 1.01 * result["occupied_peak_bytes"] + (8 << 20)
    assert result["driver_time_warm_us"] <= 0.01 * result["trace_time_warm_us"]
