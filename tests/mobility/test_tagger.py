"""Following in C++ (dymem._core.pool.Tagger) against its statement in Python, on programs made up and on recordings."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem import _core
from dymem._paths import traces_dir
from dymem.errors import InvalidArgument
from dymem.mobility import MOVABLE, TEMPORARY, UNTAGGED
from dymem.mobility.following import (ALIGNED, ALIKE, DEPARTED, FAR, OTHER, SURE, TRUST_MOST, TRUSTED, UNLIKE, Cycle,
                                      Followers, Pattern, Steps)
from dymem.mobility.tagging import carried
from dymem.trace import load
from dymem.trace.mobility import with_hindsight
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

Tagger = _core.pool.Tagger


def tagger_of(patterns, trusted=True):
    tagger = Tagger()
    tagger.follow([(stream, *p.as_bytes()) for stream, p in patterns.items()], trusted)
    return tagger


def model_of(patterns, trust=TRUST_MOST):
    return Followers({stream: Cycle(pattern) for stream, pattern in patterns.items()}, trust)


def run(ops, told):
    """Calls told("alloc", stream, size, address) and told("free", stream, None, address); addresses are used again at once."""
    live, spare, fresh = collections.defaultdict(list), [], iter(range(1, 10**6))
    for stream, size, which in ops:
        if size:
            address = spare.pop() if spare else next(fresh)
            live[stream].append(address)
            told("alloc", stream, size, address)
        elif which == 0:
            told("free", stream, None, next(fresh))  # a block of before
        elif live[stream]:
            address = live[stream].pop(-1 - (which - 1) % len(live[stream]))
            spare.append(address)
            told("free", stream, None, address)


def patterns_of(ops, tags):
    found, steps, tags = collections.defaultdict(Pattern), collections.defaultdict(Steps), iter(tags)

    def told(what, stream, size, address):
        if what == "alloc":
            found[stream].add(steps[stream].alloc(address, size), next(tags), size)
        else:
            found[stream].add(steps[stream].free(address))
    run(ops, told)
    return dict(found)


ops = st.lists(st.tuples(st.sampled_from([0, 0, 0, 7, 9]), st.sampled_from([0, 0, 512, 512, 600, 20_000]), st.integers(0, 20)),
               min_size=1, max_size=60)


@settings(max_examples=300)
@given(ops, st.data())
def test_as_in_python(before, data):
    tags = data.draw(st.lists(st.integers(0, 3), min_size=60, max_size=60))
    patterns = patterns_of(before, tags)
    if not patterns:
        return
    now = []
    for _ in range(data.draw(st.integers(1, 4))):
        now += data.draw(st.one_of(st.just(before), ops, edits(before)))
    renamed = data.draw(st.dictionaries(st.sampled_from([0, 7, 9]), st.sampled_from([0, 7, 9, 20, 21, 22]), max_size=3))
    now = [(renamed.get(stream, stream), size, which) for stream, size, which in now]
    trusted = data.draw(st.booleans())
    tagger, model = tagger_of(patterns, trusted), model_of(patterns, TRUST_MOST if trusted else 0)
    counts = collections.Counter()

    def told(what, stream, size, address):
        if what == "free":
            tagger.free(stream, address)
            return model.free(stream, address)
        expected = model.alloc(stream, address, size)
        assert tagger.next(stream, size) == expected == tagger.next(stream, size)
        assert tagger.alloc(stream, size, address) == expected
        counts["allocations"] += 1
        counts["allocated_bytes"] += size
        counts["tagged"] += expected != UNTAGGED
        counts["tagged_bytes"] += size if expected != UNTAGGED else 0
    run(now, told)
    stats = tagger.stats()
    assert {name: stats[name] for name in counts} == counts and stats["streams"] == len(model.followers)


@st.composite
def edits(draw, steps):
    """The steps with a piece taken out, or put in twice."""
    a, b = sorted((draw(st.integers(0, len(steps))), draw(st.integers(0, len(steps)))))
    return steps[:a] + steps[b:] if draw(st.booleans()) else steps[:b] + steps[a:]


@pytest.mark.parametrize("name", ["resnet32_stochdepth", "unet_b16", "resnet152_offload_ckpt", "resnet50_varres"])
def test_recordings(name):
    """Told of no iterations: as the same in Python, and nearly as what is carried over from iteration to iteration."""
    (recording,) = load(traces_dir() / f"{name}.pickle.xz")
    oracle = {e[1]: e[5] for e in EVENT.iter_unpack(with_hindsight(recording.events)) if e[4] == ALLOC}
    of_2 = {e[1]: oracle[e[1]] for e in EVENT.iter_unpack(recording.events) if e[4] == ALLOC and e[7] == 2}
    out, coverage = carried(recording.events, 2, of_2)
    events = [e for e in EVENT.iter_unpack(out) if e[4] in (ALLOC, FREE_REQUESTED)]
    patterns, steps = collections.defaultdict(Pattern), collections.defaultdict(Steps)
    for _, _, size, stream, kind, _, _, iteration in events:
        if iteration == 2 and kind == ALLOC:
            steps[stream].size = size  # of a cycle's last allocation, after which its first comes
    for _, block, size, stream, kind, _, _, iteration in events:
        if iteration == 2:
            step = steps[stream].alloc(block, size) if kind == ALLOC else steps[stream].free(block)
            patterns[stream].add(step, *((of_2[block], size) if kind == ALLOC else ()))
    tagger, model, told, same = tagger_of(patterns), model_of(patterns), 0, 0
    for _, block, size, stream, kind, tag, _, iteration in events:
        if iteration <= 2:
            continue
        if kind == FREE_REQUESTED:
            tagger.free(stream, block + 1)
            model.free(stream, block + 1)
            continue
        live = tagger.alloc(stream, size, block + 1)
        assert live == model.alloc(stream, block + 1, size)
        told += size if live != UNTAGGED else 0
        same += size if live == tag else 0
    assert told >= 0.98 * coverage.allocated_bytes and same >= 0.98 * coverage.allocated_bytes, (told, same, coverage)


LOOP = Pattern()
for _step, _tag, _size in [(OTHER, MOVABLE, 512), (ALIKE, TEMPORARY, 512), (1, 0, None), (OTHER, MOVABLE, 64), (FAR, 0, None),
                           (FAR, 0, None)]:
    LOOP.add(_step, _tag, _size)


def iteration(tagger, first, stream=0, extra=0):
    told = [tagger.alloc(stream, 512, first), tagger.alloc(stream, 512, first + 1)]
    for i in range(extra):
        told.append(tagger.alloc(stream, 4000 + i, first + 10 + i))
    tagger.free(stream, first + 1)
    told.append(tagger.alloc(stream, 64, first + 2))
    tagger.free(stream, 10**6)
    tagger.free(stream, 10**6)
    return told


def test_iterations_come_without_marks():
    tagger = tagger_of({0: LOOP})
    for i in range(50):
        assert iteration(tagger, 100 * i + 1) == [MOVABLE, TEMPORARY, MOVABLE]
    stats = tagger.stats()
    assert (stats["allocations"], stats["tagged"], stats["departures"]) == (150, 150, 0)
    assert (stats["allocated_bytes"], stats["tagged_bytes"], stats["streams"]) == (50 * 1088, 50 * 1088, 1)


def test_where_it_departs_there_is_workspace_and_it_is_taken_up_again():
    tagger = tagger_of({0: LOOP})
    iteration(tagger, 1)
    assert iteration(tagger, 101, extra=3)[2:5] == [TEMPORARY, UNTAGGED, UNTAGGED]
    iteration(tagger, 201)
    assert iteration(tagger, 301) == [MOVABLE, TEMPORARY, MOVABLE]
    assert tagger.stats()["departures"] == 1


def test_of_quite_another_size_it_is_another_block():
    tagger = tagger_of({0: LOOP})
    for i, (size, told) in enumerate([(512 << UNLIKE, MOVABLE), (512 << UNLIKE + 1, TEMPORARY), (1, MOVABLE)]):
        iteration(tagger, 1000 * i + 1)
        assert tagger.next(0, size) == tagger.alloc(0, size, 1000 * i + 900) == told
        tagger.free(0, 1000 * i + 900)  # a step that is nowhere, and until it is found again
        for turn in range(40):
            iteration(tagger, 1000 * i + 100 + 10 * turn)


def test_where_it_departs_again_and_again_nothing_is_taken_for_workspace():
    tagger, told = tagger_of({0: LOOP}), []
    for i in range(2 * TRUST_MOST // DEPARTED):
        told.append(tagger.alloc(0, (512, 512 << 2 * UNLIKE)[i % 2 == 0], i + 1))
    assert told[0] == TEMPORARY and told[-1] == UNTAGGED


@pytest.mark.parametrize("late", range(1, 12))
def test_begun_in_the_middle(late):
    """Of an iteration of twelve layers, each with an age of its own for what it frees."""
    whole = Pattern()
    for layer in range(12):
        for step, tag in ((OTHER, MOVABLE), (ALIKE, TEMPORARY), (1 + layer, UNTAGGED)):
            whole.add(step, tag)
    tagger, held, told = tagger_of({0: whole}), [], []
    for turn in range(late, 36):
        layer = turn % 12
        for size in (512 * (1 + turn), 512 * (1 + turn)):
            held.append(len(held) + 1)
            told.append(tagger.alloc(0, size, held[-1]))
        tagger.free(0, held[-1 - layer] if layer < len(held) else 10**6)  # of before, whose age is not known
    assert told[24:] == [MOVABLE, TEMPORARY] * (len(told[24:]) // 2) and tagger.stats()["departures"] > 0


def test_a_request_that_fails_is_no_step():
    tagger = tagger_of({0: LOOP})
    for i in range(3):
        assert tagger.next(0, 999) == MOVABLE  # and no block comes of it
        assert iteration(tagger, 100 * i + 1) == [MOVABLE, TEMPORARY, MOVABLE]


def test_a_stream_for_every_iteration():
    """Main and two side streams, the latter new each time: they follow what the profile's side streams did."""
    one, two = Pattern(), Pattern()
    for step in (OTHER, FAR):
        one.add(step, MOVABLE if step == OTHER else 0)
        two.add(step, TEMPORARY if step == OTHER else 0)
    tagger = tagger_of({0: LOOP, 7: one, 8: two})
    for i in range(200):
        assert iteration(tagger, 1000 * i + 1) == [MOVABLE, TEMPORARY, MOVABLE]
        for stream, tag in ((100 + 2 * i, MOVABLE), (101 + 2 * i, TEMPORARY)):
            assert tagger.alloc(stream, 64, 1000 * i + 500) == tag
            tagger.free(stream, 10**6)
    assert tagger.stats()["departures"] == 0 and tagger.stats()["streams"] == Tagger.STREAMS_MAX


def test_a_stream_beyond_the_profile_is_untagged():
    tagger = tagger_of({0: LOOP})
    iteration(tagger, 1)
    assert [tagger.alloc(5, 512, 900), tagger.alloc(5, 512, 901)] == [UNTAGGED, UNTAGGED]
    assert iteration(tagger, 101) == [MOVABLE, TEMPORARY, MOVABLE]


def test_stopped_and_begun_anew():
    tagger = tagger_of({0: LOOP})
    iteration(tagger, 1)
    before = tagger.stats()
    tagger.stop()
    assert iteration(tagger, 101) == [UNTAGGED] * 3 and tagger.stats() == before
    tagger.follow([(0, *LOOP.as_bytes())], True)
    assert set(tagger.stats().values()) == {0} and iteration(tagger, 201) == [MOVABLE, TEMPORARY, MOVABLE]


def test_constants_are_the_same():
    assert (Tagger.FAR, Tagger.ALIGNED) == (FAR, ALIGNED)
    assert (Tagger.TRUSTED, Tagger.DEPARTED, Tagger.TRUST_MOST) == (TRUSTED, DEPARTED, TRUST_MOST)
    assert (Tagger.SURE, Tagger.UNLIKE) == (SURE, UNLIKE)


@pytest.mark.parametrize("patterns, words", [
    ([(3, b"", b"", b"")], "stream 3 has no steps"),
    ([(0, b"\x00\x01", b"\x01", b"\x0a\x00")], "2 steps and 1 classes"),
    ([(0, b"\x00\x01", b"\x01\x00", b"\x0a")], "2 steps and 1 widths"),
    ([(0, b"\x11", b"\x00", b"\x00")], "a step 17; steps are from -1 to 16"),
    ([(0, b"\xfe", b"\x00", b"\x00")], "a step -2"),
    ([(0, b"\x00", b"\x04", b"\x00")], "a class 4; classes are from 0 to 3"),
    ([(4, b"\x00", b"\x01", b"\x0a"), (4, b"\x00", b"\x01", b"\x0a")], "two patterns of stream 4"),
])
def test_what_is_no_pattern_is_refused(patterns, words):
    tagger = tagger_of({0: LOOP})
    with pytest.raises(InvalidArgument, match=words):
        tagger.follow(patterns)
    assert iteration(tagger, 1) == [MOVABLE, TEMPORARY, MOVABLE], "what was followed goes on"
