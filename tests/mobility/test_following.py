"""Following one iteration along another, against a brute-force statement of the same."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem.mobility import MOVABLE, TEMPORARY, UNTAGGED, classes
from dymem.mobility.following import (ALIGNED, ALIKE, DEPARTED, FAR, OTHER, SURE, TRUST_MOST, TRUSTED, UNLIKE, Cycle,
                                      Follower, Pattern, Steps, patterns, width)


def pattern_of(steps, tags, sizes=()):
    pattern = Pattern()
    for step, tag, size in itertools.zip_longest(steps, tags, sizes):
        pattern.add(step, tag, size)
    return pattern


def followed(pattern, steps, sizes=()):
    follower = Follower(pattern, TRUST_MOST)
    return [follower.step(step, size) for step, size in itertools.zip_longest(steps, sizes)]


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
    assert followed(pattern_of([OTHER], [MOVABLE]), [OTHER, OTHER, OTHER]) == [MOVABLE, TEMPORARY, UNTAGGED]
    assert followed(pattern_of([OTHER], [MOVABLE]), [OTHER, 1, OTHER]) == [MOVABLE, UNTAGGED, UNTAGGED]
    assert followed(Pattern(), [OTHER, 1]) == [UNTAGGED, UNTAGGED]


def test_of_two_places_as_near_it_goes_on_from_the_later():
    piece = [OTHER, 1, 2, FAR, OTHER, 2, 1, FAR]
    before = [*piece, *[ALIKE] * 6, *piece]
    told = followed(pattern_of(before, range(10, 32)), [*piece, *[ALIKE] * 6, 1, *piece])
    assert told == [*range(10, 24), *[UNTAGGED] * 8, 31]


step = st.sampled_from([OTHER, ALIKE, 1, 2, FAR])
size_of = {OTHER: st.sampled_from([512, 700, 5000, 20_000, 10**6]), ALIKE: st.sampled_from([64, 900, 10**5])}


def told_of(steps, data):
    """A size for each allocation, None for each free."""
    return [data.draw(size_of[step]) if step in size_of else None for step in steps]


def unlike(a, b):
    """By the powers of two that hold the blocks."""
    if a is None or b is None:
        return False
    a, b = (next(power for power in range(64) if 2**power > max(size, 512)) for size in (a, b))
    return abs(a - b) > UNLIKE


def expected_of(tag, now, known, departs, trust, other):
    """The class and the trust after a step, for the statements below; `other`: of quite another size."""
    sure = now in size_of and trust >= SURE
    trust = max(0, trust - (DEPARTED if departs else 1)) if departs or other else trust
    if not known or other:
        return TEMPORARY if sure and (departs or other) else UNTAGGED, trust
    trust = min(trust + 1, TRUST_MOST)
    return tag if trust >= TRUSTED else UNTAGGED, trust


@settings(max_examples=400)
@given(st.lists(step, max_size=24), st.data())
def test_against_brute_force(before, data):
    """A step corresponds to the next place if it is the same step there and the one before it corresponded to something;
    else to the nearest place (the later of two) before which the last ALIGNED steps are all the same."""
    now = data.draw(st.one_of(st.lists(step, max_size=24), edits(before)))
    tags = list(range(10, 10 + len(before)))  # as if each place had a class of its own
    sizes, sizes_now = told_of(before, data), told_of(now, data)
    expected, at, known, trust = [], 0, True, TRUST_MOST
    for i, told in enumerate(now):
        same = [p for p in range(len(before)) if i + 1 >= ALIGNED and p + 1 >= ALIGNED
                and all(before[p - k] == now[i - k] for k in range(ALIGNED))]
        departs = known and bool(before) and not (at < len(before) and before[at] == told)
        place = at if known and at < len(before) and before[at] == told else max(
            same, key=lambda p: (-abs(p - at), p), default=None)
        known = place is not None
        at = place + 1 if known else at
        tag, trust = expected_of(tags[place] if known else None, told, known, departs, trust,
                                 known and unlike(sizes_now[i], sizes[place]))
        expected.append(tag)
    assert followed(pattern_of(before, tags, sizes), now, sizes_now) == expected


@settings(max_examples=400)
@given(st.lists(step, min_size=1, max_size=16), st.data())
def test_cycle_against_brute_force(before, data):
    """As above, but on a circle: distances and what came before are counted round its end."""
    n = len(before)
    now = []
    for _ in range(data.draw(st.integers(1, 4))):
        now += data.draw(st.one_of(st.just(before), st.lists(step, max_size=16), edits(before)))
    sizes, sizes_now = told_of(before, data), told_of(now, data)
    expected, at, known, trust = [], 0, True, TRUST_MOST
    for i, told in enumerate(now):
        same = [p for p in range(n) if i + 1 >= ALIGNED and all(before[(p - k) % n] == now[i - k] for k in range(ALIGNED))]
        departs = known and before[at] != told
        place = at if known and not departs else min(
            same, key=lambda p: (min((p - at) % n, (at - p) % n), (p - at) % n), default=None)
        known = place is not None
        at = (place + 1) % n if known else at
        tag, trust = expected_of(10 + place if known else None, told, known, departs, trust,
                                 known and unlike(sizes_now[i], sizes[place]))
        expected.append(tag)
    assert followed(Cycle(pattern_of(before, range(10, 10 + n), sizes)), now, sizes_now) == expected


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
    assert found[0, 0].widths == [width(facts.allocations[0].bytes), width(facts.allocations[1].bytes), 0, 0]


def test_an_optimizers_state_is_not_taken_for_long_for_what_its_order_resembles():
    """It is made once, in one allocation after the other, as layers' results are; but the sizes are of quite other blocks."""
    steps = [OTHER] * 10
    cycle = Cycle(pattern_of(steps, [TEMPORARY] * 10, [2**30] * 10))
    follower = Follower(cycle, TRUST_MOST)
    told = [follower.step(OTHER, 4096 + 512 * i) for i in range(100)]
    assert told == [TEMPORARY] * (TRUST_MOST - SURE + 1) + [UNTAGGED] * (99 - TRUST_MOST + SURE) and follower.trust == 0


def test_patterns_of_facts_for_a_cycle(log):
    """The first allocation is as large as the last one of the iteration before."""
    facts = log().op("aten::exp", [], ["a"]).alloc("b", 128).alloc("c", 64).free("b").facts()
    tags = classes(facts)
    assert patterns(facts, tags)[0, 0].steps == [OTHER, OTHER, OTHER, 2]
    assert patterns(facts, tags, again=True)[0, 0].steps == [ALIKE, OTHER, OTHER, 2]
