"""The ablation of placements: its arithmetic on figures whose answer is known, and all of it on one small recording."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dymem._paths import traces_dir
from dymem.errors import TraceError
from dymem.trace import Recording, load
from dymem.trace.mobility import MOVABLE, TEMPORARY, UNTAGGED
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

MIB = 1 << 20
SMALL = traces_dir() / "resnet50_cifar_b100.pickle.xz"


def recording(events, name="run"):
    return Recording(name, name, 0, events, 0)


def trace(*rows):
    """(kind, block, size, class, iteration) in order."""
    return b"".join(EVENT.pack(i, block, size, 0, kind, mobility, ord("F"), iteration)
                    for i, (kind, block, size, mobility, iteration) in enumerate(rows))


def test_classes_of_its_own_come_before_hindsight(bench):
    rows = bench("rows")
    own = recording(trace((ALLOC, 0, 512, MOVABLE, 0)))
    assert rows.tagged(own) == (own, "recorded")
    told, source = rows.tagged(recording(trace((ALLOC, 0, 512, 0, 0), (FREE_REQUESTED, 0, 512, 0, 0))))
    assert source == "hindsight" and [c for *_, c in rows.allocations(told.events)] == [TEMPORARY]
    with pytest.raises(TraceError, match="^run: it has no marks"):
        rows.tagged(recording(trace((ALLOC, 0, 512, 0, -1))))


def test_a_class_that_there_is_not_is_none(bench):
    rows = bench("rows")
    events = trace((ALLOC, 0, 512, 200, 0), (ALLOC, 1, 1024, TEMPORARY, 0), (FREE_REQUESTED, 0, 512, 0, 0))
    assert [c for *_, c in rows.allocations(events)] == [UNTAGGED, TEMPORARY]
    assert rows.ablations(recording(events))[0]["class_bytes"] == {"untagged": 512, "movable": 0, "temporary": 1024, "reclaimed": 0}


@given(share=st.floats(0, 1), seed=st.integers(0, 9))
def test_mistakes_go_by_size_and_leave_the_rest(bench, share, seed):
    rows = bench("rows")
    events = trace(*((ALLOC, i, 512 * (i % 40), (MOVABLE, TEMPORARY)[i % 2], 0) for i in range(160)))
    classes = {}
    for (_, size, before), (_, same, after) in zip(rows.allocations(events), rows.allocations(rows.with_mistakes(events, share, seed))):
        assert size == same and classes.setdefault(size, (before, after)) == (before, after)
    wrong = sum(before != after for before, after in classes.values())
    assert (wrong == 0) if share == 0 else wrong <= 40
    if share == 1:
        assert wrong == 40


@pytest.mark.parametrize("blocks, wanted, expected", [
    ([], 50, 0.0),                       # one hole of 100
    ([(10, 20), (60, 70)], 35, 40 / 80),  # holes of 10, 40 and 30
    ([(10, 20), (60, 70)], 41, 1.0),
    ([(0, 100)], 1, 0.0),                # nothing is free
])
def test_unusable_free_space_of_a_layout(bench, blocks, wanted, expected):
    rows = bench("rows")
    far = [(1000 + a, 1000 + b) for a, b in blocks]
    assert rows.share_unusable(far, 1000, 100, 100, wanted) == pytest.approx(expected)


def test_a_smaller_pool_is_smaller_by_its_largest_hole(bench):
    rows = bench("rows")
    blocks = [(10, 20), (960, 1000)]  # a slab of 1000: holes of 10 and 940
    assert rows.share_unusable(blocks, 0, 1000, 100, 40) == pytest.approx(10 / 50)
    assert rows.share_unusable(blocks, 0, 1000, 59, 1) is None


def test_the_summary_weighs_points_and_bytes(bench):
    rows = bench("rows")

    def row(name, live, best, grouped):
        return {"name": name, "live_peak_bytes": live, "placements": {"best_fit": {"excess": best}, "grouped": {"excess": grouped}}}

    found = rows.summary([row("a", 100, 0.10, 0.01), row("b", 1000, 0.04, 0.02), row("c", 10, 0.02, 0.05)], "grouped")
    assert found["sum"] == pytest.approx(0.08) and found["of_best_fit"] == pytest.approx(0.5)
    assert found["bytes_of_best_fit"] == pytest.approx(21.5 / 50.2)
    assert found["most_worse"] == pytest.approx(0.03) and found["most_worse_on"] == "c" and found["median"] == 0.02


def test_a_moving_average(bench):
    pictures = bench("pictures")
    assert pictures.moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5] and pictures.moving_average([], 3) == []


def test_one_recording_from_end_to_end(bench, tmp_path, capsys):
    ablation = bench("ablation")
    target = tmp_path / "placement.json"
    assert ablation.main([str(SMALL), "--json", str(target), "--jobs", "1"]) == 0
    told = json.loads(target.read_text())
    (row,) = told["rows"]
    assert row["classes"] == "hindsight" and set(row["placements"]) == {"best_fit", "two_ends", "by_size", "grouped", "vmm", "vmm_tagged"}
    for figures in row["placements"].values():
        assert figures["excess"] >= 0 and set(figures["unusable_free"]) == {f"2^{j}" for j in range(9, 47)}
    assert row["placements"]["grouped"]["failure_rates"]["0"] == 0.0, "of fixed shape: what one iteration needed is enough"
    assert "resnet50_cifar_b100" in capsys.readouterr().out


def test_facts_of_another_program_do_little(bench):
    """Trust keeps them out: nearly nothing of it has a class, and the mark is not far from best fit's."""
    rows = bench("rows")
    facts = rows.facts_beside(Path(rows.__file__).parent / "recordings" / "bert_varlen.dymem.xz")
    (row,) = rows.ablations(load(SMALL)[0], foreign=facts)
    assert row["classes"] == "foreign" and "rules" not in row
    told = row["class_bytes"]
    assert 0 < sum(told.values()) and told["untagged"] > 0.8 * sum(told.values())
    assert row["placements"]["grouped"]["excess"] <= row["placements"]["best_fit"]["excess"] + 0.005


def test_pictures_of_the_paper(bench, tmp_path):
    pytest.importorskip("matplotlib")
    pictures = bench("pictures")
    (small,) = load(SMALL)
    by_step = pictures.steps(small)
    assert len({len(values) for values in by_step.values()}) == 1
    for placement in pictures.LABELS:
        assert all(live <= spanned for live, spanned in zip(by_step["live"], by_step[placement]))
    pictures.draw_steps("small", by_step, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("arguments, said", [(["--mistaken", "2"], "from 0 to 1"), (["nowhere.pickle"], "nowhere.pickle"),
                                             (["--first", "-1"], "0 or more"), (["--pictures", "/dev/null"], "no folder"),
                                             (["--facts", "nowhere.json"], "nowhere.json")])
def test_bad_input_is_one_line(bench, arguments, said, capsys):
    assert bench("ablation").main(arguments) == 2
    assert said in capsys.readouterr().err
