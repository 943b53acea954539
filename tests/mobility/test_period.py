"""Iterations found in C++ (dymem._core.pool.find_period, PeriodFinder): against the rule written down once more, on programs
whose iterations are known, and on recordings that have marks."""

import collections
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem import _core
from dymem._paths import traces_dir
from dymem.errors import InvalidArgument
from dymem.mobility.following import ALIKE, FAR, OTHER, Steps
from dymem.trace import load
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

sys.path.insert(0, str(Path(__file__).parent))

import period_model  # noqa: E402

Finder = _core.pool.PeriodFinder
RECORDINGS = sorted(path.name.split(".")[0] for path in traces_dir().glob("*.pickle.xz"))


def find(steps):
    return _core.pool.find_period(bytes(step & 0xff for step in steps))


# --- as the model says

part = st.lists(st.integers(OTHER, FAR), min_size=1, max_size=12)


@st.composite
def programs(draw):
    """Parts that repeat, inside of one another and with departures."""
    steps = draw(part)
    for _ in range(draw(st.integers(1, 4))):
        turns = []
        for _ in range(draw(st.integers(1, 9))):
            turn = list(steps)
            if draw(st.integers(0, 9)) == 0:
                at = draw(st.integers(0, len(turn)))
                turn[at:at + draw(st.integers(0, 6))] = draw(st.lists(st.integers(OTHER, FAR), max_size=6))
            turns += turn
        steps = (draw(st.one_of(st.just([]), part)) + turns + draw(st.one_of(st.just([]), part)))[:1500]
        if not steps:
            return draw(part)
    return steps


@settings(max_examples=150)
@given(programs())
def test_as_in_the_model(steps):
    assert find(steps) == period_model.find(steps)


# --- programs whose iterations are known

def layer(seed, saves=True):
    """Forward and backward of one layer: workspace, what is saved, a gradient."""
    r = random.Random(seed)
    forward, backward = [], []
    for _ in range(r.randint(2, 5)):
        forward += [r.choice((ALIKE, OTHER)), OTHER, r.choice((1, 1, 2))]
        backward += [OTHER, r.choice((1, 2, FAR)), r.choice((ALIKE, OTHER)), r.choice((1, FAR))]
    return (forward + [OTHER] * saves, backward + [FAR] * saves)


def training(layers, equal=True, optimizer=(OTHER, ALIKE, ALIKE, 1, 1, 3), parameters=4, seed=0, micro=1):
    """One iteration: micro-batches of forward and backward, then an optimizer that goes from parameter to parameter."""
    parts = [layer(seed if equal else seed + 1 + i) for i in range(layers)]
    head = [OTHER, ALIKE, OTHER, 2, 1, OTHER, OTHER, 4, ALIKE, 1]
    batch = [OTHER, OTHER] + sum((f for f, _ in parts), []) + head + sum((b for _, b in reversed(parts)), []) + [FAR, 7]
    first = [OTHER, ALIKE] + batch[:-1]  # makes the gradients
    return first + batch * (micro - 1) + list(optimizer) * parameters + [FAR] * 3


START = [OTHER, ALIKE] * 20  # the model is built


@settings(max_examples=60)
@given(st.integers(1, 30), st.booleans(), st.integers(1, 6), st.integers(1, 40), st.integers(0, 99), st.floats(0, 1),
       st.integers(4, 9))
def test_layers_micro_batches_and_parameters_are_no_iterations(layers, equal, micro, parameters, seed, into, after):
    """Asked anywhere in an iteration, once four are over: the iteration, or (in its first part) nothing, and never a part of it."""
    one = training(layers, equal, parameters=parameters, seed=seed, micro=micro)
    steps = START + one * after + one[:int(into * len(one))]
    found = find(steps)
    assert found is not None and found["steps"] == len(one) and found["repeats"] >= after - 2
    whole = find(START + one * after)
    assert whole["steps"] == len(one)


@settings(max_examples=40)
@given(st.integers(8, 16), st.integers(0, 99), st.integers(6, 12), st.data())
def test_small_departures(layers, seed, iterations, data):
    """In every second iteration, or fewer, some steps are others, are missing, or there are more of them."""
    one, steps = training(layers, False, seed=seed), list(START)
    for i in range(iterations):
        turn = list(one)
        if i % 2 == 0 and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(turn) - 1))
            turn[at:at + data.draw(st.integers(0, 4))] = data.draw(st.lists(st.integers(OTHER, FAR), max_size=4))
        steps += turn
    steps += one * 2
    found = find(steps) or find(steps + one * 2)
    assert found is not None and abs(found["steps"] - len(one)) <= 4, (found, len(one))


def test_alike_departures_in_every_second_iteration_may_be_an_iteration_of_two():
    """Then nothing is said, until they have stopped."""
    one = training(8, False)
    other = [0] + one[1:]
    steps = START + one * 2 + other + one + other + one * 3
    assert find(steps) is None
    assert find(steps + one * 2)["steps"] == len(one)


def test_two_networks_in_turn_are_one_iteration():
    one = training(4, seed=1) + training(4, seed=77)
    assert find(START + one * 5)["steps"] == len(one)


def test_inference():
    token = ([OTHER, ALIKE, 1, 1] * 3 + [OTHER, 2]) * 24 + [OTHER, OTHER, OTHER, 1, 3, FAR]
    assert find(START + token * 5)["steps"] == len(token)


def test_tiny_iterations():
    for one in ([OTHER, 1], [OTHER, ALIKE, 2, 1], [OTHER, OTHER, ALIKE, 1, 1, 3]):
        assert find(one * 30)["steps"] == len(one)


def test_it_begins_where_the_fewest_blocks_are_held():
    one = [OTHER] * 9 + [OTHER, 1] * 5 + [FAR] * 9
    for late in range(len(one)):
        assert find(one * 5 + one[:late])["since"] in ({late, len(one)} if late == 0 else {late})


def test_what_does_not_repeat_has_no_period():
    r = random.Random(1)
    assert find([r.randint(OTHER, FAR) for _ in range(20000)]) is None
    assert find([]) is None and find([OTHER]) is None
    one = training(6, False)
    assert find(START + one * 2) is None, "two are not enough"
    assert find(one * 4 + [r.randint(OTHER, FAR) for _ in range(20 * len(one))]) is None, "it was so once"


def test_no_steps_are_refused():
    with pytest.raises(InvalidArgument, match="steps are from -1 to 16"):
        find([OTHER, 17])


# --- recordings

def steps_of(name):
    """Of the busiest stream: steps, and where each iteration begins and the last one ends."""
    (recording,) = load(traces_dir() / f"{name}.pickle.xz")
    steps, all_of = collections.defaultdict(Steps), collections.defaultdict(list)
    for _, block, size, stream, kind, _, _, iteration in EVENT.iter_unpack(recording.events):
        if kind in (ALLOC, FREE_REQUESTED):
            step = steps[stream].alloc(block, size) if kind == ALLOC else steps[stream].free(block)
            all_of[stream].append((step, iteration))
    busiest = max(all_of.values(), key=len)
    marks = [at for at, (_, iteration) in enumerate(busiest) if at and iteration != busiest[at - 1][1]]
    return [step for step, _ in busiest], marks + [len(busiest)]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_period_of_a_recording_is_the_distance_of_its_marks(name):
    """After the fourth iteration and every later one. Where layers are skipped by chance and where images vary in size, iterations
    differ in length: there it may stay undecided, and is as long as one of them (images: within 2 %)."""
    steps, marks = steps_of(name)
    varies = name in ("resnet32_stochdepth", "resnet50_varres")
    known = 0
    lengths = [end - begin for begin, end in zip(marks[1:], marks[2:])]
    for end in marks[4:]:
        found = find(steps[:end])
        assert found or varies, end
        if found is None:
            continue
        known += 1
        assert found["repeats"] >= 2
        if varies:
            assert 0.98 * min(lengths) <= found["steps"] <= 1.02 * max(lengths)
        else:
            assert found["steps"] in lengths and found["since"] in lengths
    assert known >= (len(marks) - 4) * (0.5 if varies else 1), (known, len(marks))


# --- a finder, which names the steps itself

def test_a_finder_hears_of_blocks():
    finder, steps = Finder(), Steps()
    told, held, fresh = [], [], iter(range(1, 10**6))
    r = random.Random(3)
    script = [(r.choice((0, 0, 1)), r.randint(0, 3), 512 * r.randint(1, 2)) for _ in range(80)]
    for _ in range(6):
        for free, which, size in script:
            if free and held:
                block = held.pop(-1 - which % len(held))
                finder.free(0, block)
                told.append(steps.free(block))
            else:
                held.append(next(fresh))
                finder.alloc(0, size, held[-1])
                told.append(steps.alloc(held[-1], size))
        for block in held:
            finder.free(0, block)
            told.append(steps.free(block))
        held.clear()
    assert finder.steps() == len(told) and finder.find() == find(told) and finder.find()["repeats"] >= 4
    finder.clear()
    assert finder.steps() == 0 and finder.find() is None


def test_the_busiest_stream_counts():
    finder = Finder()
    for i in range(2000):
        for stream, size in ((7, 512 * (1 + i % 5)), (0, 64)):
            if stream or i % 3 == 0:
                finder.alloc(stream, size, 10 * i + stream + 1)
                finder.free(stream, 10 * i + stream + 1)
        finder.alloc(100 + i, 512, 5)  # a stream that comes once
    assert finder.steps() == 4000 and finder.find()["steps"] in (2, 10)


def test_it_wakes_once():
    finder = Finder()
    finder.wake_at(5)
    assert [finder.alloc(0, 512, i + 1) for i in range(8)] == [False] * 4 + [True] + [False] * 3
    finder.wake_at(0)
    assert finder.free(3, 1) is True and finder.free(3, 2) is False


def test_memory_is_bounded():
    finder = Finder()
    for i in range(Finder.KEPT // 2 + 300):
        finder.alloc(0, 512, 1)
        finder.free(0, 1)
    assert finder.steps() == Finder.KEPT + 600
    found = finder.find()
    assert found["steps"] == 2 and found["repeats"] <= Finder.KEPT // 2
