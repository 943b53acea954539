"""Real classes, of recordings with facts (bench/placement/recordings): what they are worth, and that they are come by fairly."""

import collections
import dataclasses
import statistics

import pytest

from dymem import _core
from dymem.errors import TraceError
from dymem.mobility import Facts, classes, patterns
from dymem.mobility.following import Cycle
from dymem.mobility.tagging import known
from dymem.replaying import replay_recording
from dymem.trace import load
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

SLAB = {"backing": "contiguous"}
SEVERAL_STREAMS = {"resnet50_prefetch", "llama_fsdp2_ckpt", "resnet152_offload_ckpt"}
# Points of the live peak over best fit: most that grouping may be worse by, late classes more than known ones; and its own.
# (Offloading: where copies wait, best fit alone comes to 29 to 38 points by the patience of streams, 13.5 to 14.9 %.)
WORSE = {"resnet50_prefetch": 0.4, "resnet152_offload_ckpt": 5.0}
AT_MOST = {"llama_ckpt_varlen": 5.5, "bert_varlen": 0.5, "llama_accum": 0.8, "llama_varlen": 1.0, "llama_fsdp2_ckpt": 5.0}
# Beyond 1 % of warm time: there untagged granules are, too.
SHORT_STEPS = {"resnet32_stochdepth"}
NONLINEAR = ("resnet", "inception", "densenet", "unet", "efficientnet")


@pytest.fixture(scope="module")
def folder(request):
    return request.config.rootpath / "bench" / "placement" / "recordings"


@pytest.fixture(scope="module")
def rows(bench):
    return bench("rows")


def names(root):
    return sorted(path.name.removesuffix(".dymem.xz") for path in (root / "bench/placement/recordings").glob("*.dymem.xz"))


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config.rootpath))


def excess(recording, placement="grouped"):
    result = replay_recording(recording, config=SLAB, placement=placement)
    assert result["oom"] is None and result["audit"] == []
    return 100 * (result["reserved_peak_bytes"] / result["live_peak_bytes"] - 1), result["live_peak_bytes"]


@pytest.fixture(scope="module")
def measured(folder, rows, request):
    """Of each recording: its forms by source of classes, and (best fit, late, known) in points, and the live peak."""
    found = {}
    for name in names(request.config.rootpath):
        (recording,) = load(folder / f"{name}.dymem.xz")
        forms = rows.sources(recording, rows.facts_beside(folder / f"{name}.dymem.xz"))
        plain = dataclasses.replace(recording, events=rows.untagged(recording.events))
        best, live = excess(plain, "best_fit")
        found[name] = forms, best, excess(forms["late"])[0], excess(forms["known"])[0], live
    return found


def test_no_recording_is_worse_and_those_with_targets_reach_them(measured):
    worse = {name: (best, late, told) for name, (_, best, late, told, _) in measured.items()
             if told > best + 0.3 or late > best + WORSE.get(name, 0.3)}
    assert worse == {}
    assert {name: measured[name][3] for name, most in AT_MOST.items() if measured[name][3] > most} == {}


def test_over_all_recordings(measured):
    assert len(measured) == 20
    assert statistics.median(told for _, _, _, told, _ in measured.values()) <= 1.0
    ours = sum(told * live for _, _, _, told, live in measured.values())
    assert ours <= 0.5 * sum(best * live for _, best, _, _, live in measured.values()), "in bytes"


def test_the_largest_request_finds_more_of_what_is_free(folder, rows, measured):
    """Of networks with forks and joins: U_f when it comes, in a pool of one size for both."""
    for name, (forms, *_) in measured.items():
        if not name.startswith(NONLINEAR):
            continue
        (recording,) = load(folder / f"{name}.dymem.xz")
        plain = dataclasses.replace(recording, events=rows.untagged(recording.events))
        results = [replay_recording(form, config=SLAB, placement=placement, layout=True)
                   for form, placement in ((plain, "best_fit"), (forms["known"], "grouped"))]
        pool = max(result["reserved_peak_bytes"] for result in results)
        best, told = (rows.unusable_at_requests(recording.events, result, pool, 1) for result in results)
        assert told < best or best == 0, (name, told, best)


def test_on_granules(measured):
    for name, (forms, *_) in measured.items():
        if name in SEVERAL_STREAMS:
            continue
        result = replay_recording(forms["known"])
        assert result["reserved_peak_bytes"] <= 1.01 * result["occupied_peak_bytes"] + (8 << 20), name
        assert result["audit"] == [], name
        assert name in SHORT_STEPS or result["driver_time_warm_us"] <= 0.01 * result["trace_time_warm_us"], name


def told(events):
    return [event[5] for event in EVENT.iter_unpack(events) if event[4] == ALLOC]


@pytest.mark.parametrize("of", ["resnet32_stochdepth", "kmeans", "resnet50_prefetch"])
def test_known_classes_go_by_order_alone(folder, of):
    """Not by the numbers of blocks, nor by marks, nor by what side streams are called, not even in the profiled iteration."""
    (recording,) = load(folder / f"{of}.dymem.xz")
    facts = Facts.load(folder / f"{of}.facts.json.xz")
    tags = classes(facts)
    events, coverage = known(recording.events, facts, tags)
    assert coverage.share >= 0.9
    other = [(time, block and block + 1000, size, stream and stream + 77, kind, 0, 0, -1)
             for time, block, size, stream, kind, _, _, _ in EVENT.iter_unpack(recording.events) if kind in (ALLOC, FREE_REQUESTED)]
    renamed, _ = known(b"".join(EVENT.pack(*event) for event in other), facts, tags)
    assert told(renamed) == told(events)
    numbers = dataclasses.replace(facts, allocations=[dataclasses.replace(a, number=None) for a in facts.allocations])
    assert known(recording.events, numbers, tags)[0] == events
    strip = [(*event[:5], *event[6:]) for event in EVENT.iter_unpack(events)]
    assert strip == [(*event[:5], *event[6:]) for event in EVENT.iter_unpack(recording.events)], "nothing else changes"


@pytest.mark.parametrize("of", ["resnet32_nobn_cifar_b100", "resnet152_offload_ckpt"])
def test_known_classes_are_those_of_a_running_program(folder, of):
    """As followed in C++, from the first event on."""
    (recording,) = load(folder / f"{of}.dymem.xz")
    facts = Facts.load(folder / f"{of}.facts.json.xz")
    tags = classes(facts)
    tagger = _core.pool.Tagger()
    tagger.follow([(stream, *Cycle(p).as_bytes()) for (_, stream), p in patterns(facts, tags, again=True).items()])
    expected = []
    for _, block, size, stream, kind, *_ in EVENT.iter_unpack(recording.events):
        if kind == ALLOC:
            expected.append(tagger.alloc(stream, size, block + 1))
        elif kind == FREE_REQUESTED:
            tagger.free(stream, block + 1)
    assert told(known(recording.events, facts, tags)[0]) == expected
    assert collections.Counter(expected)[0] < len(expected)


def test_every_recording_has_its_facts(folder, name):
    facts = Facts.load(folder / f"{name}.facts.json.xz")
    assert facts.complete and facts.allocations and not facts.here


def test_facts_say_what_is_wrong_with_their_file_once(tmp_path):
    for file, content, words in (("none.json", None, "there is no such file"), ("bad.json.xz", b"\xfd7zXZ\x00rest", "damaged|cut short"),
                                 ("not.json", b"\xff\xfe\x00", "no facts")):
        if content is not None:
            (tmp_path / file).write_bytes(content)
        with pytest.raises(TraceError, match=words) as error:
            Facts.load(tmp_path / file)
        assert str(error.value).count(file) == 1
