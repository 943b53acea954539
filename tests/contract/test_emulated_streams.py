"""The emulation's time: clock, lag, busy streams, one stream waiting for another, captures."""

import threading
import time

import pytest

from dymem import errors
from dymem._core import driver as drivers

Code = drivers.Code


@pytest.fixture
def gpu():
    return drivers.make_emulated(bytes=False)


def record(gpu, stream):
    code, event = gpu.event_create()
    assert code == Code.ok
    assert gpu.event_record(event, stream) == Code.ok
    return event


def completes_at(gpu, event):
    """When the event completes, found by asking at ever later times."""
    while gpu.event_query(event) == Code.not_ready:
        gpu.advance_to(gpu.now() + 1)
    return gpu.now()


def test_clock_stands_still_until_advanced(gpu):
    assert gpu.now() == 0
    time.sleep(0.002)
    assert gpu.now() == 0
    gpu.advance_to(500)
    gpu.advance_to(100)  # never backwards
    assert gpu.now() == 500


def test_an_idle_stream_is_done_at_once(gpu):
    assert gpu.event_query(record(gpu, 7)) == Code.ok


def test_an_event_takes_the_lag(gpu):
    gpu.set_lag(40)
    gpu.advance_to(100)
    event = record(gpu, 1)
    gpu.set_lag(0)  # what was given stays
    assert completes_at(gpu, event) == 140


def test_a_negative_lag_is_refused(gpu):
    with pytest.raises(errors.InvalidArgument, match="not negative"):
        gpu.set_lag(-1)


def test_an_event_waits_for_the_streams_work(gpu):
    gpu.set_busy_until(1, 300)
    busy, other = record(gpu, 1), record(gpu, 2)
    gpu.set_lag(5)
    lagging = record(gpu, 1)
    assert gpu.event_query(other) == Code.ok
    assert gpu.event_query(busy) == Code.not_ready
    assert completes_at(gpu, busy) == 300
    assert completes_at(gpu, lagging) == 305
    assert completes_at(gpu, record(gpu, 1)) == 310  # busy no more: now + lag


def test_work_in_the_past_delays_nothing(gpu):
    gpu.advance_to(1000)
    gpu.set_busy_until(1, 400)
    assert gpu.event_query(record(gpu, 1)) == Code.ok


def test_streams_finish_in_any_order(gpu):
    gpu.set_busy_until(1, 300)
    gpu.set_busy_until(2, 100)
    first, second = record(gpu, 1), record(gpu, 2)
    gpu.advance_to(100)
    assert (gpu.event_query(first), gpu.event_query(second)) == (Code.not_ready, Code.ok)


def test_waiting_pushes_later_events_behind_the_awaited_one(gpu):
    gpu.set_busy_until(1, 200)
    awaited = record(gpu, 1)
    before = record(gpu, 2)
    assert gpu.stream_wait(2, awaited) == Code.ok
    after = record(gpu, 2)
    assert gpu.event_query(before) == Code.ok
    assert completes_at(gpu, after) == 200


def test_waits_chain_over_streams(gpu):
    gpu.set_lag(10)
    gpu.set_busy_until(1, 200)
    first = record(gpu, 1)  # 210
    assert gpu.stream_wait(2, first) == Code.ok
    second = record(gpu, 2)  # 220
    assert gpu.stream_wait(3, second) == Code.ok
    third = record(gpu, 3)  # 230
    assert [completes_at(gpu, e) for e in (first, second, third)] == [210, 220, 230]


def test_the_later_of_two_waits_counts(gpu):
    gpu.set_busy_until(1, 200)
    gpu.set_busy_until(2, 100)
    late, early = record(gpu, 1), record(gpu, 2)
    assert gpu.stream_wait(3, late) == gpu.stream_wait(3, early) == Code.ok
    assert completes_at(gpu, record(gpu, 3)) == 200


def test_waiting_for_ones_own_event_or_an_unrecorded_one_changes_nothing(gpu):
    gpu.set_lag(50)
    own = record(gpu, 1)
    assert gpu.stream_wait(1, own) == Code.ok
    _, unrecorded = gpu.event_create()
    assert gpu.stream_wait(1, unrecorded) == Code.ok
    assert completes_at(gpu, record(gpu, 1)) == 50


def test_a_wait_is_for_the_event_as_it_was(gpu):
    """Recording an event again does not move what waited for its earlier record."""
    gpu.set_busy_until(1, 100)
    event = record(gpu, 1)
    assert gpu.stream_wait(2, event) == Code.ok
    gpu.set_busy_until(1, 900)
    assert gpu.event_record(event, 1) == Code.ok
    assert completes_at(gpu, record(gpu, 2)) == 100


def test_synchronizing_moves_the_clock_to_completion(gpu):
    gpu.set_busy_until(1, 300)
    event = record(gpu, 1)
    assert gpu.event_synchronize(event) == Code.ok
    assert gpu.now() == 300
    assert gpu.event_synchronize(event) == Code.ok
    assert gpu.now() == 300


def test_memory_calls_wait_for_no_work(gpu):
    gpu.set_busy_until(0, 10**9)
    event = record(gpu, 0)
    unit = gpu.granularity
    _, base = gpu.reserve(unit)
    _, handle = gpu.create(unit)
    assert gpu.map(base, unit, handle) == gpu.set_access(base, unit) == gpu.unmap(base, unit) == Code.ok
    assert gpu.now() == 0
    assert gpu.event_query(event) == Code.not_ready


def test_captures_are_as_told(gpu):
    gpu.set_capturing(3, True)
    assert (gpu.is_capturing(3), gpu.is_capturing(4)) == (True, False)
    gpu.set_capturing(3, False)
    assert gpu.is_capturing(3) is False


def test_many_streams_are_forgotten_only_when_they_say_nothing(gpu):
    gpu.set_capturing(1, True)
    gpu.set_busy_until(2, 10**6)
    for stream in range(10, 10_000):
        gpu.set_busy_until(stream, 0)
    assert gpu.is_capturing(1)
    assert gpu.event_query(record(gpu, 2)) == Code.not_ready


def test_realtime_follows_the_host():
    gpu = drivers.make_emulated(bytes=False, realtime=True)
    before = gpu.now()
    time.sleep(0.01)
    assert 10_000_000 <= gpu.now() - before < 60_000_000_000
    gpu.set_lag(400_000_000)
    start = time.perf_counter()
    event = record(gpu, 0)
    answer = gpu.event_query(event)
    assert answer == Code.not_ready or time.perf_counter() - start >= 0.4  # a busy machine takes its time
    assert gpu.event_synchronize(event) == Code.ok
    assert time.perf_counter() - start >= 0.39
    assert gpu.event_query(event) == Code.ok


def test_realtime_can_be_pushed_ahead_under_a_waiting_thread():
    gpu = drivers.make_emulated(bytes=False, realtime=True)
    gpu.set_lag(3600 * 10**9)
    event = record(gpu, 0)
    waiter = threading.Thread(target=gpu.event_synchronize, args=(event,))
    waiter.start()
    gpu.advance_to(gpu.now() + 3601 * 10**9)
    waiter.join(timeout=30)
    assert not waiter.is_alive()
