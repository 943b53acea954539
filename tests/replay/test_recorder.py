"""The recorder alone, and what a pool records: a trace that replays to the pool's own figures."""

import random
import struct

import pytest

from dymem import _core

MIB = 1 << 20
EVENT = struct.Struct(_core.trace.EVENT_FORMAT)
KINDS = {number: name for name, number in _core.trace.KINDS.items()}


def events_of(recorder):
    return list(EVENT.iter_unpack(recorder.events()))


@pytest.fixture
def device():
    return _core.driver.make_emulated(capacity=4 << 30, bytes=False)


@pytest.fixture
def pool(device):
    return _core.pool.Pool(device)


def test_what_a_pool_is_asked_is_recorded(device, pool):
    recorder = _core.trace.Recorder()
    device.advance_to(1_000)
    pool.set_recorder(recorder)
    device.advance_to(3_000)
    first = pool.malloc(5000, 7, "temporary")
    device.advance_to(4_000)
    second = pool.malloc(MIB, 7)
    pool.record_stream(second, 8)
    device.set_busy_until(8, 9_000)
    device.advance_to(5_000)
    pool.free(first)
    pool.free(second)
    device.advance_to(10_000)
    pool.trim()
    got = [(time, block, size, stream, KINDS[kind], mobility) for time, block, size, stream, kind, mobility, _, _ in
           events_of(recorder)]
    assert got[:5] == [
        (0, 0, 5000, 7, "alloc", 2),
        (1_000, 1, MIB, 7, "alloc", 0),
        (1_000, 1, MIB, 8, "record_stream", 0),
        (2_000, 0, 5000, 7, "free_requested", 2),
        (2_000, 1, MIB, 7, "free_requested", 0),
    ]
    assert [event[4] for event in got[5:]] == ["free_completed"] and got[5][1] == 1 and got[5][0] == 7_000


def test_a_mark_comes_when_the_pool_was_last_asked(device, pool):
    """Its own time is of the program's clock, which has nothing to do with the pool's."""
    recorder = _core.trace.Recorder()
    mark = EVENT.pack(10**18, 0, 4, 0, _core.trace.KINDS["mark"], 0, ord("F"), 4)
    recorder.record(mark)
    device.advance_to(1_000)
    pool.set_recorder(recorder)
    recorder.record(mark)
    for time in (3_000, 8_000):
        device.advance_to(time)
        pool.malloc(MIB, 7)
        recorder.record(mark)
    assert [(event[0], KINDS[event[4]]) for event in events_of(recorder)] == [
        (0, "mark"), (0, "mark"), (0, "alloc"), (0, "mark"), (5_000, "alloc"), (5_000, "mark")]


def test_a_recording_replays_to_the_figures_of_the_run(device, pool):
    recorder = _core.trace.Recorder()
    pool.set_recorder(recorder)
    draw = random.Random(3)
    held = []
    for step in range(3000):
        device.advance_to(step * 1_000)
        if held and draw.random() < 0.5:
            pool.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(pool.malloc(draw.choice((3000, 80_000, 2 * MIB + 5, 9 * MIB)), 5))
    result = _core.replay(recorder.events(), {})
    stats = pool.stats()
    assert result["events"] == 3000 and recorder.dropped() == 0
    assert result["live_peak_bytes"] == stats["allocated_bytes"]["all"]["peak"]
    assert result["occupied_peak_bytes"] == stats["active_bytes"]["all"]["peak"]
    assert result["reserved_peak_bytes"] == stats["reserved_bytes"]["all"]["peak"]
    for name in ("allocation", "allocated_bytes", "requested_bytes"):
        assert result["stats"][name] == stats[name]


def test_switched_on_late_it_knows_only_what_follows(pool):
    """Blocks from before the recorder are not in the trace, nor are their frees."""
    before = [pool.malloc(MIB, 0) for _ in range(3)]
    recorder = _core.trace.Recorder()
    pool.set_recorder(recorder)
    during = [pool.malloc(2 * MIB, 0) for _ in range(2)]
    for address in before + during:
        pool.free(address)
    kinds = [KINDS[event[4]] for event in events_of(recorder)]
    assert kinds == ["alloc", "alloc", "free_requested", "free_requested"]
    assert _core.replay(recorder.events(), {})["live_peak_bytes"] == 4 * MIB


def test_switched_off_it_records_nothing(pool):
    recorder = _core.trace.Recorder()
    pool.set_recorder(recorder)
    address = pool.malloc(5, 0)
    pool.set_recorder(None)
    pool.free(address)
    assert len(events_of(recorder)) == 1


@pytest.mark.parametrize("most", [1, 3, 100, 70_000])
def test_the_oldest_are_dropped_first(most):
    recorder = _core.trace.Recorder(most)
    total = most * 3 + 17
    for number in range(total):
        recorder.record(EVENT.pack(number * 10, number, 512, 0, 0, 0, 0, -1))
    events = events_of(recorder)
    assert len(events) == most and recorder.dropped() == total - most
    assert [event[1] for event in events] == list(range(total - most, total))
    assert events[0][0] == 0 and events[-1][0] == (most - 1) * 10, "time starts at the first event that is left"


def test_what_refers_to_dropped_allocations_is_left_out():
    """So that what is left can be replayed."""
    recorder = _core.trace.Recorder(6)
    for number in range(6):
        recorder.record(EVENT.pack(0, number, 512, 0, 0, 0, 0, -1))
    for number in range(3):
        recorder.record(EVENT.pack(1, number, 512, 0, 1, 0, 0, -1))
    assert [event[1] for event in events_of(recorder)] == [3, 4, 5]
    assert recorder.dropped() == 3
    assert _core.replay(recorder.events(), {})["live_peak_bytes"] == 3 * 512


def test_clear(pool):
    recorder = _core.trace.Recorder(1000)
    pool.set_recorder(recorder)
    old = pool.malloc(5, 0)
    recorder.clear()
    assert events_of(recorder) == [] and recorder.dropped() == 0
    pool.free(old)
    pool.malloc(5, 0)
    assert [KINDS[event[4]] for event in events_of(recorder)] == ["alloc"]


def test_a_pool_keeps_its_recorder_and_driver_alive():
    pool = _core.pool.Pool(_core.driver.make_emulated(capacity=1 << 30, bytes=False))
    pool.set_recorder(_core.trace.Recorder())
    for _ in range(1000):
        pool.free(pool.malloc(2000, 0))
    assert pool.audit() == []
