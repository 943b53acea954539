"""From a snapshot's entries to events: numbering, times, completions, marks, segments, several devices."""

import lzma
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import (ALLOC, FREE_COMPLETED, FREE_REQUESTED, MIB, SEGMENT_ALLOC, SEGMENT_FREE, History, events, snapshot,
                       steps, write)

import dymem
from dymem.trace import load, name_of, snapshot as reader


def read(*histories):
    [trace] = reader.device_traces(snapshot(*histories))
    return trace


def test_free_that_completes_at_once_is_one_event_at_its_completion():
    history = History().alloc(0x10, 600).free(0x10, 600).alloc(0x20, 512)
    assert events(read(history)) == [(ALLOC, 0, 600, 0, 0, -1), (FREE_REQUESTED, 0, 600, 0, 2000, -1),
                                     (ALLOC, 1, 512, 0, 3000, -1)]


def test_free_that_completes_later_is_two_events():
    history = History().alloc(0x10, 600, 7).add("free_requested", 0x10, 600, 7).alloc(0x20, 512)
    history.time += 500
    history.add("free_completed", 0x10, 600, 7)
    assert events(read(history)) == [(ALLOC, 0, 600, 7, 0, -1), (FREE_REQUESTED, 0, 600, 7, 1000, -1),
                                     (ALLOC, 1, 512, 0, 2000, -1), (FREE_COMPLETED, 0, 600, 7, 503000, -1)]


def test_free_that_never_completes_completes_with_the_last_event():
    history = History().alloc(0x10, 512).add("free_requested", 0x10, 512).alloc(0x20, 512)
    assert events(read(history))[-1] == (FREE_COMPLETED, 0, 512, 0, 2000, -1)


def test_frees_from_before_the_recording_are_dropped_and_counted():
    history = History().free(0x99, 512).alloc(0x10, 512).free(0x10, 512).add("free_completed", 0x77, 512)
    trace = read(history)
    assert trace.ignored_frees == 1
    assert [e[0] for e in events(trace)] == [ALLOC, FREE_REQUESTED]


def test_an_address_used_again_is_another_block():
    history = History().alloc(0x10, 512).free(0x10, 512).alloc(0x10, 1024).free(0x10, 1024)
    assert [e[1:3] for e in events(read(history))] == [(0, 512), (0, 512), (1, 1024), (1, 1024)]


def test_block_handed_out_twice_is_refused():
    with pytest.raises(dymem.TraceError, match="still held"):
        read(History().alloc(0x10, 512).alloc(0x10, 512))


@pytest.mark.parametrize("mark, iteration", [("3:F", 3), ("-1:init", -1), ("init", -1), (None, -1), ("", -1), ("12", 12),
                                             ("9" * 40 + ":F", -1), (17, -1), ("٣:F", -1)])
def test_iterations_come_from_user_metadata(mark, iteration):
    history = History()
    history.mark = mark
    assert events(read(history.alloc(0x10, 512)))[0][5] == iteration


def test_segments_are_kept_and_older_ones_left_out():
    history = History().add("segment_alloc", 0x1000, 2 * MIB).alloc(0x1000, 512).add("segment_map", 0x9000, MIB)
    history.add("segment_free", 0x5000, 64 * MIB).add("segment_unmap", 0x9000, MIB).add("segment_free", 0x1000, 2 * MIB)
    kinds = [(e[0], e[2]) for e in events(read(history)) if e[0] != ALLOC]
    assert kinds == [(SEGMENT_ALLOC, 2 * MIB), (SEGMENT_ALLOC, MIB), (SEGMENT_FREE, MIB), (SEGMENT_FREE, 2 * MIB)]


def test_what_changes_nothing_is_passed_over():
    history = History().alloc(0x10, 512).add("oom", 0, 1 << 40).add("snapshot", 0, 0)
    assert len(events(read(history))) == 1


def test_times_never_go_backwards():
    history = History().alloc(0x10, 512)
    history.time -= 1000
    history.alloc(0x20, 512)
    assert [e[4] for e in events(read(history))] == [0, 0]


def test_each_device_with_events_is_a_recording(tmp_path):
    path = write(tmp_path / "run.pickle", snapshot([], steps(), [], steps(2)))
    assert [(r.name, r.device) for r in load(path)] == [("run:1", 1), ("run:3", 3)]
    path = write(tmp_path / "one.pickle", snapshot([], steps()))
    assert [(r.name, r.device) for r in load(path)] == [("one", 1)]


@pytest.mark.parametrize("file, name", [("a.pickle", "a"), ("a.pickle.xz", "a"), ("a.b.pickle.gz", "a.b"), ("a", "a"),
                                        ("v1.5.pickle", "v1.5"), (".pickle", ".pickle")])
def test_name(tmp_path, file, name):
    assert name_of(tmp_path / file) == name


@pytest.mark.parametrize("suffix", [".pickle", ".pickle.xz", ".pickle.gz"])
@pytest.mark.parametrize("protocol", range(6))
def test_every_compression_and_protocol_reads_the_same(tmp_path, suffix, protocol):
    path = write(tmp_path / f"run{suffix}", pickle.dumps(snapshot(steps()), protocol))
    assert bytes(load(path)[0].events) == bytes(read(steps()).events)


def test_own_format_reads_back(tmp_path):
    from dymem import _core

    trace = read(steps())
    _core.trace.write(str(tmp_path / "run.dymem"), bytes(trace.events), device=2)
    [recording] = load(tmp_path / "run.dymem")
    assert (recording.name, recording.device, bytes(recording.events)) == ("run", 2, bytes(trace.events))


def test_own_format_without_its_beginning(tmp_path):
    """A recorder that had to drop its oldest events leaves frees whose allocation is gone."""
    from dymem import _core

    whole = bytes(read(steps()).events)
    cut = whole[3 * 40:]  # the segment, the weight and the first activation are gone
    _core.trace.write(str(tmp_path / "run.dymem"), cut, dropped=3)
    [recording] = load(tmp_path / "run.dymem")
    assert recording.ignored_frees == 1
    assert _core.trace.facts(recording.events)["live_peak_bytes"] == 16 * MIB


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["alloc", "request", "complete", "both"]), st.integers(0, 7),
                          st.integers(1, 5000)), max_size=60))
def test_any_sound_history_reads_to_what_a_plain_model_says(actions):
    """The model: dicts by address. Held, pending and their peaks must be those that the C++ core counts of the events."""
    from dymem import _core

    history, live, pending, live_peak, occupied_peak = History(), {}, {}, 0, 0
    for action, addr, size in actions:
        if action == "alloc" and addr not in live and addr not in pending:
            history.alloc(addr, size)
            live[addr] = -(-size // 512) * 512
        elif action in ("request", "both") and addr in live:
            history.add("free_requested", addr, 0)
            pending[addr] = live.pop(addr)
            if action == "both":
                history.add("free_completed", addr, 0)
                del pending[addr]
        elif action == "complete" and addr in pending:
            history.add("free_completed", addr, 0)
            del pending[addr]
        live_peak = max(live_peak, sum(live.values()))
        occupied_peak = max(occupied_peak, sum(live.values()) + sum(pending.values()))
    if not history.entries:
        return
    facts = _core.trace.facts(read(history).events)
    assert (facts["live_peak_bytes"], facts["occupied_peak_bytes"]) == (live_peak, occupied_peak)


def test_bundled_recordings_have_the_measured_peaks(traces):
    """live, occupied and reserved of each recording are what the recorded process measured of itself."""
    import json

    from dymem import _core

    measured = json.loads((traces / "measured.json").read_text())["recorded"]["rows"]
    files = sorted(traces.glob("*.pickle.xz"))
    assert {name_of(file) for file in files} == set(measured)
    for file in files:
        [recording] = load(file)
        facts = _core.trace.facts(recording.events)
        row = measured[recording.name]
        for key, figure in (("live_peak_bytes", "peak_live_mib"), ("occupied_peak_bytes", "peak_occupied_mib"),
                            ("native_reserved_peak_bytes", "peak_reserved_mib")):
            assert facts[key] / MIB == pytest.approx(row[figure], abs=0.06), (recording.name, key)


# --- input that nobody should have to trust


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickle_with_code_does_not_run(tmp_path):
    victim = tmp_path / "touched"
    path = write(tmp_path / "evil.pickle", snapshot([Evil(victim)]))
    with pytest.raises(dymem.TraceError, match="not plain data"):
        load(path)
    assert not victim.exists()


@pytest.mark.parametrize("data", [b"\x80\x02}" + b")" + b"\x85" * 3_000_000 + b"K\x01s.",  # a key that cannot be hashed
                                  b"\x80\x02" + b"]" * 3_000_000 + b"a" * 2_999_999 + b"."], ids=["tuples", "lists"])
def test_depth_without_end_is_a_sentence(tmp_path, data):
    with pytest.raises(dymem.TraceError):
        load(write(tmp_path / "deep.pickle", data))


@pytest.mark.parametrize("name", [b"cos\nsystem\n(S'true'\ntR.", b"\x80\x02cbuiltins\neval\n.", b"Ppersistent\n.",
                                  b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x02\x82\x01."])
def test_every_way_to_name_something_is_refused(tmp_path, name):
    with pytest.raises(dymem.TraceError):
        load(write(tmp_path / "evil.pickle", name))


@pytest.mark.parametrize("data", [
    b"\x80\x04r\xff\xff\xff\x7f.",                        # a memo index of two thousand million
    b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",      # bytes without end
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f]",      # a frame without end
    b"\x80\x04]r\xff\xff\xff\xff.",
], ids=["memo", "bytes", "frame", "memo-of-list"])
def test_a_few_bytes_cannot_ask_for_gigabytes(tmp_path, data):
    import resource

    with pytest.raises(dymem.TraceError):
        load(write(tmp_path / "bomb.pickle", data))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3 << 20  # KiB, of the largest child so far


def test_a_compressed_bomb_is_not_unpacked(tmp_path):
    from dymem.trace import plain

    path = tmp_path / "bomb.pickle.xz"
    path.write_bytes(lzma.compress(bytes(64 * MIB)))
    with pytest.raises(dymem.TraceError, match="unpacks to more than 16.0 MiB"):
        plain.read_bytes(path, limit=16 * MIB)


@pytest.mark.parametrize("content", [
    3, [], {}, {"device_traces": 3}, {"device_traces": [[3]]}, {"device_traces": [["x"]]}, {"device_traces": [7]},
    {"device_traces": [[{}]]}, {"device_traces": [[{"action": "alloc"}]]}, snapshot(), snapshot([], []),
    snapshot(History().add("alloc", -1, 512)), snapshot(History().add("alloc", 16, -512)),
    snapshot(History().add("alloc", 16, 1 << 60)), snapshot(History().add("alloc", 16, "many")),
    snapshot(History().add("alloc", 16, 512, stream=1 << 70)), snapshot(History().add("teleport", 16, 512)),
    snapshot(History(start=1e300).add("oom", 0, 0)), snapshot(History().add(["alloc"], 16, 512)),
    snapshot(History().add("t\n" * 5000, 16, 512)), snapshot(History().add("alloc", 16, "x" * 5000)),
])
def test_foreign_contents_are_one_sentence(tmp_path, content):
    path = write(tmp_path / "foreign.pickle", content)
    with pytest.raises(dymem.TraceError) as error:
        load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    assert "reader failed" not in str(error.value) and len(str(error.value)) < len(str(path)) + 250


@settings(max_examples=60)
@given(data=st.data())
def test_damage_never_escapes_as_anything_but_a_trace_error(tmp_path_factory, data):
    good = pickle.dumps(snapshot(steps(3)))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(st.sampled_from([good[:at], good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1:]]))
    path = tmp_path_factory.mktemp("damage") / "run.pickle"
    path.write_bytes(bad)
    try:
        load(path)
    except dymem.TraceError as error:
        assert "\n" not in str(error)


def held_segments(history, segments):
    from dymem.trace.snapshot import EVENT as event, device_traces

    trace, = device_traces({"segments": segments, "device_traces": [history.entries]})
    return [(kind, size) for _, _, size, _, kind, *_ in event.iter_unpack(bytes(trace.events)) if kind >= SEGMENT_ALLOC]


def test_what_was_held_before_the_recording_is_told_first():
    """The last state played backwards: 24 MiB at 0x1000000, of which 4 went to another address and 8 MiB came."""
    history = History().add("segment_unmap", 0x1400000, 4 * MIB).add("segment_map", 0x9000000, 4 * MIB)
    history.alloc(0x9000000, 4 * MIB).add("segment_map", 0x2800000, 8 * MIB).add("annotate", 0x9000000, 4 * MIB)
    segments = [{"device": 0, "address": 0x1000000, "total_size": 4 * MIB, "blocks": []},
                {"device": 0, "address": 0x1800000, "total_size": 24 * MIB, "blocks": []},
                {"device": 0, "address": 0x9000000, "total_size": 4 * MIB, "blocks": []},
                {"device": 1, "address": 0x1000000, "total_size": 99 * MIB, "blocks": []}]
    told = held_segments(history, segments)
    assert sum(size for kind, size in told[:-3]) == 24 * MIB and all(kind == SEGMENT_ALLOC for kind, _ in told[:-3])
    assert told[-3:] == [(SEGMENT_FREE, 4 * MIB), (SEGMENT_ALLOC, 4 * MIB), (SEGMENT_ALLOC, 8 * MIB)]


@pytest.mark.parametrize("segments", [None, [], "x", [{"device": 0, "address": 5, "total_size": "x"}],
                                      [{"device": 0, "address": 0x9000000, "total_size": MIB}], [None, 3]])
def test_where_the_last_state_says_nothing_the_history_stands_alone(segments):
    history = History().alloc(0x9000000, 4 * MIB).add("segment_map", 0x2800000, 8 * MIB)
    assert held_segments(history, segments) == [(SEGMENT_ALLOC, 8 * MIB)]
