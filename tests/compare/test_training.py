"""A workload under all allocators, free and capped, with a stand-in for training: rows, errors, time that runs out."""

import pytest

from dymem.compare import capped, training
from dymem.compare.training import Session
from dymem.errors import InvalidArgument

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def session(fake_train):
    return Session(80 * GIB, 60, iterations=6, shapes=2, train=fake_train)


def test_a_row_has_every_figure_and_the_fastest_rival_is_the_measure(session, log):
    row = training.measure("resnet50_b128", ["native", "async", "dymem"], 2, session)
    assert row["fastest_rival"] == "native" and row["smallest_occupied_peak_bytes"] == 101 * MIB
    assert row["async"]["ratio"] == pytest.approx(2.0) and row["dymem"]["ratio_upper_95"] == pytest.approx(1.0)
    ours = row["dymem"]
    assert (ours["repeats"], ours["reserved_peak_bytes"], ours["calls_per_step"], ours["call_ns"]) == (2, 102 * MIB, 90.0, 400.0)
    assert ours["overhead"] == pytest.approx(1 / 101) and row["native"]["over_smallest_occupied"] == pytest.approx(49 / 101)
    assert len(ours["runs"]) == 2
    built = [name for name, _, step in log() if step == "built"]
    first = [name for name, _, step in log() if step != "built"]
    assert sorted(built) == sorted(2 * ["native", "async", "dymem"])
    assert first[0] == "native" and first[18:21][-1] == "native"  # the second repeat begins at the other end


def test_a_workload_that_was_never_recorded_is_tried_first(session, log):
    row = training.measure("unknown_one", ["native", "dymem"], 1, session)
    assert row["dymem"]["repeats"] == 1
    assert [name for name, _, step in log() if step == "built"].count("native") == 2


def test_a_failure_stays_in_its_cell(session, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "native")  # the reference itself
    row = training.measure("resnet50_b128", ["native", "expandable", "dymem"], 2, session)
    assert "the card caught fire" in row["native"]["error"] and "in a kernel" in row["native"]["stderr"]
    assert row["native"]["reserved_peak_bytes"] is None and row["native"]["step_ms"] is None
    assert row["fastest_rival"] == "expandable" and row["dymem"]["repeats"] == 2


def test_repeats_end_with_the_time(session):
    session.seconds, session.end = 0.0, 0.0
    row = training.measure("resnet50_b128", ["native", "dymem"], 5, session)
    assert row["dymem"]["repeats"] == 1


def test_a_workload_may_take_three_shares_of_the_time_but_none_of_what_is_not_there(session):
    share = session.share(6)
    assert share.seconds == pytest.approx(10, abs=0.1) and share.left() == pytest.approx(30, abs=0.1)
    assert share.allows_another(9) and not share.allows_another(11), "further repeats are for what is left of the share"
    assert session.share(2).left() == pytest.approx(60, abs=0.1), "two of three shares are all there is"
    session.end = 0.0
    assert session.share(3).seconds == 0.0


def test_caps_tell_who_trains_and_how_slowly(session):
    row = capped.measure(training.Bundled("resnet50_b128", session), ["native", "async", "dymem"], [1.0, 1.05, 1.5], 1)
    assert row["live_peak_bytes"] == 100 * MIB and [cell["cap"] for cell in row["caps"]] == [1.0, 1.05, 1.5]
    trains = {name: [cell[name]["trains"] for cell in row["caps"]] for name in row["allocators"]}
    assert trains == {"native": [False, False, True], "async": [False, False, True], "dymem": [False, True, True]}
    assert row["caps"][1]["dymem"]["ratio"] == pytest.approx(1.0) and row["caps"][1]["dymem"]["kept_the_cap"]
    assert row["caps"][2]["async"]["ratio"] == pytest.approx(2.0)
    assert row["caps"][0]["native"]["failed_at_step"] == 3 and "ratio" not in row["caps"][0]["native"]


def test_a_crash_under_a_cap_is_no_answer(session, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "async")
    row = capped.measure(training.Bundled("resnet50_b128", session), ["async", "dymem"], [1.5], 2)
    assert row["caps"][0]["async"]["trains"] is None and row["caps"][0]["dymem"]["trains"]
    monkeypatch.setenv("FAKE_CRASH", "native")
    assert "caught fire" in capped.measure(training.Bundled("resnet50_b128", session), ["dymem"], [1.5], 1)["error"]


@pytest.mark.parametrize("text, caps", [("1.00x,1.02x", [1.0, 1.02]), ("1.5, 1,1.0x", [1.0, 1.5]), ("2", [2.0])])
def test_caps_are_read(text, caps):
    assert capped.parse_caps(text) == caps


@pytest.mark.parametrize("text", ["", "x", "1.02y", "-1x", "nan", "inf", "1,,2", "0", "1e3x", "101"])
def test_what_is_no_cap_is_refused(text):
    with pytest.raises(InvalidArgument, match="--cap 1.00x"):
        capped.parse_caps(text)


def test_history_that_fails_is_one_sentence(session, tmp_path):
    said = training.record_history("unet_b16", "native", tmp_path / "h.pickle", session)
    assert said == "unet_b16 under native: no picture of addresses: no history in a stand-in"
