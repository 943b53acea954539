"""Following one iteration along another, against a brute-force statement of the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem.mobility import MOVABLE, TEMPORARY, UNTAGGED, classes
from dymem.mobility.following import (ALIGNED, ALIKE, DEPARTED, FAR, OTHER, TRUST_MOST, TRUSTED, Cycle, Follower,
                                      Pattern, Steps, patterns)


def pattern_of(steps, tags):
    pattern = Pattern()
    for step, tag in zip(steps, tags):
        pattern.add(step, tag)
    return pattern


def followed(pattern, steps):
    follower = Follower(pattern, TRUST_MOST)
    return [follower.step(step) for step in steps]


def test_steps_tell_no_sizes_and_nothing_far_back():
    steps = Steps()
    assert [steps.alloc("a", 512), steps.alloc("b", 512), steps.alloc("c", 600)] == [OTHER, ALIKE, OTHER]
    assert [steps.free("c"), steps.free("a"), steps.free("older")] == [1, 3, FAR]
    for i in range(40):
        steps.alloc(i, 64)
    assert steps.free("b") == FAR and steps.free("b") == FAR


def test_same_steps_same_classes():
    steps, tags = [OTHER, ALIKE, 1, OTHER, 2], [MOVABLE, TEMPORARY, UNTAGGED, MOVABLE, UNTAGGED]
    assert followed(pattern_of(steps, tags), steps) == tags


def test_more_than_the_pattern_corresponds_to_nothing():
    assert followed(pattern_of([OTHER], [MOVABLE]), [OTHER, OTHER, OTHER]) == [MOVABLE, UNTAGGED, UNTAGGED]
    assert followed(Pattern(), [OTHER, 1]) == [UNTAGGED, UNTAGGED]


def test_of_two_places_as_near_it_goes_on_from_the_later():
    piece = [OTHER, 1, 2, FAR, OTHER, 2, 1, FAR]
    before = [*piece, *[ALIKE] * 6, *piece]
    told = followed(pattern_of(before, range(10, 32)), [*piece, *[ALIKE] * 6, 1, *piece])
    assert told == [*range(10, 24), *[UNTAGGED] * 8, 31]


step = st.sampled_from([OTHER, ALIKE, 1, 2, FAR])


@settings(max_examples=400, deadline=None)
@given(st.lists(step, max_size=24), st.data())
def test_against_brute_force(before, data):
    """A step corresponds to the next place if it is the same step there and the one before it corresponded to something;
    else to the nearest place (the later of two) before which the last ALIGNED steps are all the same."""
    now = data.draw(st.one_of(st.lists(step, max_size=24), edits(before)))
    tags = list(range(10, 10 + len(before)))  # as if each place had a class of its own
    expected, at, known, trust = [], 0, True, TRUST_MOST
    for i, told in enumerate(now):
        same = [p for p in range(len(before)) if i + 1 >= ALIGNED and p + 1 >= ALIGNED
                and all(before[p - k] == now[i - k] for k in range(ALIGNED))]
        if known and at < len(before) and before[at] == told:
            place = at
        else:
            place = max(same, key=lambda p: (-abs(p - at), p), default=None)
            trust = max(0, trust - DEPARTED) if known and before else trust
        known = place is not None
        at = place + 1 if known else at
        trust = min(trust + known, TRUST_MOST)
        expected.append(tags[place] if known and trust >= TRUSTED else UNTAGGED)
    assert followed(pattern_of(before, tags), now) == expected


@settings(max_examples=400, deadline=None)
@given(st.lists(step, min_size=1, max_size=16), st.data())
def test_cycle_against_brute_force(before, data):
    """As above, but on a circle: distances and what came before are counted round its end."""
    n = len(before)
    now = []
    for _ in range(data.draw(st.integers(1, 4))):
        now += data.draw(st.one_of(st.just(before), st.lists(step, max_size=16), edits(before)))
    expected, at, known, trust = [], 0, True, TRUST_MOST
    for i, told in enumerate(now):
        same = [p for p in range(n) if i + 1 >= ALIGNED and all(before[(p - k) % n] == now[i - k] for k in range(ALIGNED))]
        if known and before[at] == told:
            place = at
        else:
            place = min(same, key=lambda p: (min((p - at) % n, (at - p) % n), (p - at) % n), default=None)
            trust = max(0, trust - DEPARTED) if known else trust
        known = place is not None
        at = (place + 1) % n if known else at
        trust = min(trust + known, TRUST_MOST)
        expected.append(10 + place if known and trust >= TRUSTED else UNTAGGED)
    assert followed(Cycle(pattern_of(before, range(10, 10 + n))), now) == expected


@st.composite
def edits(draw, steps):
    """The steps with a piece taken out, or put in twice."""
    a, b = sorted((draw(st.integers(0, len(steps))), draw(st.integers(0, len(steps)))))
    return steps[:a] + steps[b:] if draw(st.booleans()) else steps[:b] + steps[a:]


def test_a_place_is_trusted_after_some_steps_as_expected():
    """From the beginning on, and anew after departures in a row."""
    steps = [OTHER, ALIKE, 1, OTHER, 2, FAR, OTHER, OTHER, 3, 1]
    cycle = Cycle(pattern_of(steps, [MOVABLE] * 10))
    follower = Follower(cycle)
    assert [follower.step(step) for step in steps * 2] == [UNTAGGED] * (TRUSTED - 1) + [MOVABLE] * (21 - TRUSTED)
    follower, told = Follower(cycle, TRUST_MOST), []
    for _ in range(TRUST_MOST // DEPARTED + 2):
        follower.step(7)  # which is nowhere
        assert [follower.step(step) for step in steps[:ALIGNED - 1]] == [UNTAGGED] * (ALIGNED - 1)
        told.append(follower.step(steps[ALIGNED - 1]))
        assert (told[-1] == MOVABLE) == (follower.trust >= TRUSTED)
    assert told[0] == MOVABLE and told[-1] == UNTAGGED


@pytest.mark.parametrize("skipped", range(2, 8))
def test_network_with_a_block_less(skipped):
    """Eight blocks alike of three allocations each, of which one is skipped: forward and backward."""
    def run(blocks):
        steps, rows, held = Steps(), [], []
        for b in blocks:
            rows.append((steps.alloc((b, "saved"), 512), MOVABLE))
            rows.append((steps.alloc((b, "conv"), 256), TEMPORARY))
            rows.append((steps.alloc((b, "norm"), 256), TEMPORARY))
            rows += [(steps.free((b, "conv")), UNTAGGED), (steps.free((b, "norm")), UNTAGGED)]
            held.append((b, "saved"))
        for block in reversed(held):
            rows.append((steps.alloc(("gradient", block), 300), TEMPORARY))
            rows += [(steps.free(("gradient", block)), UNTAGGED), (steps.free(block), UNTAGGED)]
        return rows

    whole, less = run(range(8)), run([b for b in range(8) if b != skipped])
    told = followed(pattern_of(*zip(*whole)), [step for step, _ in less])
    wrong = sum(a not in (b, UNTAGGED) for a, (_, b) in zip(told, less))
    missed = sum(a == UNTAGGED != b for a, (_, b) in zip(told, less))
    assert wrong <= 1 and missed <= 2


def test_patterns_of_facts(log):
    log = log().held("w").op("aten::exp", ["w"], ["a"]).op("aten::sin", ["a"], ["b"]).free("a").free("w")
    facts = log.alloc("beside", stream=7).facts()
    found = patterns(facts, classes(facts))
    assert found.keys() == {(0, 0), (0, 7)}
    assert (found[0, 0].steps, found[0, 0].classes) == ([OTHER, ALIKE, 2, FAR], [TEMPORARY, UNTAGGED, UNTAGGED, UNTAGGED])
    assert found[0, 7].steps == [OTHER]


def test_patterns_of_facts_for_a_cycle(log):
    """The first allocation is as large as the last one of the iteration before."""
    facts = log().op("aten::exp", [], ["a"]).alloc("b", 128).alloc("c", 64).free("b").facts()
    tags = classes(facts)
    assert patterns(facts, tags)[0, 0].steps == [OTHER, OTHER, OTHER, 2]
    assert patterns(facts, tags, again=True)[0, 0].steps == [ALIKE, OTHER, OTHER, 2]
