"""Replay on traces small enough to know the answer."""

import signal
import threading

import pytest

from dymem import _core
from dymem.errors import InvalidArgument

MIB = 1 << 20
A, B, C = 71, 72, 73
MS = 1000  # microseconds


def replay(trace, progress=None, **options):
    result = _core.replay(trace if isinstance(trace, bytes) else trace.bytes(), options, progress)
    assert result["audit"] == []
    return result


def test_an_empty_trace(trace):
    result = replay(trace)
    assert result["events"] == result["live_peak_bytes"] == result["reserved_peak_bytes"] == 0
    assert result["overhead"] == 0.0 and result["oom"] is None and result["native_reserved_peak_bytes"] is None


def test_peaks_are_rounded_and_exact(trace):
    trace.alloc(0, 1).alloc(1, 513).alloc(2, MIB)  # 512 + 1024 + MIB
    trace.at(5).free(1).free(2).alloc(3, 0)        # 512 + 512
    result = replay(trace)
    assert result["events"] == 6
    assert result["live_peak_bytes"] == result["occupied_peak_bytes"] == MIB + 1536
    assert result["reserved_peak_bytes"] >= MIB + 1536
    assert result["overhead"] == pytest.approx(result["reserved_peak_bytes"] / (MIB + 1536) - 1)
    assert result["stats"]["allocated_bytes"]["all"]["peak"] == MIB + 1536
    assert result["stats"]["allocated_bytes"]["all"]["current"] == 1024


def test_occupied_ends_where_the_trace_says(trace):
    trace.alloc(0, 8 * MIB, A)
    trace.at(10).free(0, A)
    trace.at(20).alloc(1, 6 * MIB, A)  # block 0 is still needed: 14 MiB occupied, 8 live
    trace.at(30).done(0, A)
    trace.at(40).alloc(2, 8 * MIB, A)
    result = replay(trace)
    assert result["live_peak_bytes"] == 14 * MIB  # blocks 1 and 2
    assert result["occupied_peak_bytes"] == 14 * MIB
    assert result["stats"]["active_bytes"]["all"]["peak"] == 14 * MIB
    assert result["stats"]["pending_bytes"]["peak"] == 8 * MIB
    assert result["reserved_peak_bytes"] <= 24 * MIB, "block 0 is done before block 2 is asked for"


def test_pending_memory_is_not_handed_out_before_it_is_done(trace):
    """At 29 us block 0 is needed still: the second one gets memory of its own."""
    trace.alloc(0, 16 * MIB, A).at(10).free(0, A).at(29).alloc(1, 16 * MIB, A).at(30).done(0, A)
    early = replay(trace)
    assert early["reserved_peak_bytes"] >= 32 * MIB
    assert early["stats"]["pending_bytes"]["peak"] == 16 * MIB


def test_pending_memory_is_reused_once_it_is_done(trace):
    trace.alloc(0, 16 * MIB, A).at(10).free(0, A).at(30).done(0, A).at(31).alloc(1, 16 * MIB, A)
    late = replay(trace, limit=16 * MIB)
    assert late["oom"] is None and late["reserved_peak_bytes"] == 16 * MIB
    assert late["stats"]["num_sync_all_streams"] == late["stats"]["num_stream_waits"] == 0, "nothing had to be waited for"


def test_completions_out_of_order(trace):
    """Blocks that are done in another order than they were freed: each at its own time."""
    for block in range(6):
        trace.alloc(block, 4 * MIB, A)
    for block in range(6):
        trace.at(10 + block).free(block, A)
    for when, block in ((20, 3), (30, 0), (40, 5), (50, 1), (60, 4), (70, 2)):
        trace.at(when).done(block, A)
        trace.at(when + 1).alloc(10 + block, 4 * MIB, A)
    result = replay(trace, limit=24 * MIB)
    assert result["oom"] is None and result["reserved_peak_bytes"] == 24 * MIB
    assert result["occupied_peak_bytes"] == 24 * MIB
    assert result["stats"]["num_sync_all_streams"] == result["stats"]["num_stream_waits"] == 0


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_lag_keeps_other_streams_from_reusing(trace, backing):
    """Freed on A at 1 ms, asked for by B at 12 ms: with a lag of 2 ms A's memory serves B, with 100 ms it cannot,
    unless B, which does less than A, waits for it on the device."""
    trace.alloc(9, 512, B)  # B is known before A frees
    trace.alloc(0, 64 * MIB, A).at(1 * MS).free(0, A)
    for step in range(40):  # time for a pool to notice
        trace.at(1 * MS + step * 100).alloc(100 + step, 512, A).free(100 + step, A)
    trace.at(12 * MS).alloc(1, 64 * MIB, B)
    soon, late = (replay(trace, lag_ns=lag, wait=False, backing=backing) for lag in (2_000_000, 100_000_000))
    assert late["reserved_peak_bytes"] >= 128 * MIB
    assert soon["reserved_peak_bytes"] < 80 * MIB
    waited = replay(trace, lag_ns=100_000_000, wait=True, backing=backing)
    assert waited["reserved_peak_bytes"] < 80 * MIB and waited["stats"]["num_stream_waits"] == 1


@pytest.mark.parametrize("lag_ms", [25, 75])
@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_a_lesser_stream_takes_what_the_busiest_finishes_soon_once_the_peak_has_settled(trace, backing, lag_ms):
    """A works in 512 of 1,512 MiB, 25 ms behind the host, then hardly; 20 ms later B asks for 64. It waits about 5 ms for
    what A has left alone since, where it would have grown; also 55 ms of A's 75, behind which B's result is wanted."""
    trace.alloc(9, 512, B).alloc(0, 1000 * MIB, A)
    for at in range(1, 60):
        for piece in range(8):
            trace.at(at * MS + piece * 50).alloc(100 * at + piece, 64 * MIB, A)
        for piece in range(8):
            trace.at(at * MS + 500 + piece * 50).free(100 * at + piece, A)
        for tick in range(100):  # time for a pool to notice
            trace.at(at * MS + 900 + tick).alloc(20000 + 100 * at + tick, 512, A).free(20000 + 100 * at + tick, A)
    for tick in range(200):
        trace.at(60 * MS + tick * 100).alloc(10000 + tick, 512, A).free(10000 + tick, A)
    trace.alloc(1, 64 * MIB, B).free(1, B)
    settled = replay(trace, lag_ns=lag_ms * 1_000_000, wait=True, backing=backing)
    assert settled["stats"]["num_stream_waits"] == 1 and settled["reserved_peak_bytes"] <= 1.02 * 1512 * MIB
    assert replay(trace, lag_ns=lag_ms * 1_000_000, wait=False, backing=backing)["reserved_peak_bytes"] > 1.04 * 1512 * MIB


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_only_the_busiest_streams_backlog_is_soon(trace, backing):
    """What C, a copy as B is, frees soon is no matter of waiting for nothing: B does not stand behind it, and grows."""
    trace.alloc(9, 512, B).alloc(0, 1000 * MIB, A).alloc(1, 256 * MIB, C)
    trace.alloc(4, 32 * MIB, A).free(4, A).alloc(5, 48 * MIB, A).free(5, A)  # the peak: it settles from here on
    for at in range(1, 100):
        for piece in range(8):
            trace.at(at * MS + piece * 50).alloc(100 * at + piece, 32 * MIB, A).free(100 * at + piece, A)
        if at == 80:
            trace.free(1, C)
    trace.alloc(2, 32 * MIB, A).alloc(3, 256 * MIB, B).free(3, B)  # A lets nothing go that B could have instead
    result = replay(trace, lag_ns=75_000_000, wait=True, backing=backing)
    assert result["stats"]["num_stream_waits"] == 0
    assert result["reserved_peak_bytes"] > 1500 * MIB


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_a_lesser_stream_waits_only_where_the_pool_would_grow_far_past_what_is_occupied(trace, backing):
    """1,512 MiB were occupied, 512 of them are A's until the lag has passed: B has new memory up to 14 % more, then
    waits for A."""
    trace.alloc(9, 512, B).alloc(0, 1000 * MIB, A)
    for piece in range(8):
        trace.alloc(1 + piece, 64 * MIB, A)
    for piece in range(8):
        trace.at(1 * MS).free(1 + piece, A)
    for step in range(40):
        trace.at(1 * MS + step * 100).alloc(100 + step, 512, A).free(100 + step, A)
    trace.at(12 * MS)
    for piece in range(4):
        trace.alloc(200 + piece, 64 * MIB, B)
    result = replay(trace, lag_ns=100_000_000, wait=True, backing=backing)
    assert result["stats"]["num_stream_waits"] == 1
    assert 1.10 * 1512 * MIB < result["reserved_peak_bytes"] <= 1.14 * 1512 * MIB


def test_a_lesser_stream_waits_for_all_that_it_needs_at_once(trace):
    """512 of 1,512 MiB were freed by A a piece at a time: for 400 of them B waits once, for the seventh piece."""
    trace.alloc(9, 512, B).alloc(0, 1000 * MIB, A)
    for piece in range(8):
        trace.alloc(1 + piece, 64 * MIB, A)
    for piece in range(8):
        trace.at((1 + piece) * MS).free(1 + piece, A)
        for tick in range(40):
            number = 1000 + 100 * piece + tick
            trace.at((1 + piece) * MS + 20 * tick).alloc(number, 512, A).free(number, A)
    trace.at(20 * MS).alloc(900, 400 * MIB, B)
    result = replay(trace, lag_ns=100_000_000, wait=True)
    assert result["stats"]["num_stream_waits"] == 1 and result["reserved_peak_bytes"] <= 1.02 * 1512 * MIB


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_a_stream_waits_for_one_that_stands_as_far_as_itself(trace, backing):
    """A and B work side by side, 100 ms behind. At 110 ms A asks for what B freed at 20 ms, which it comes to long after
    B: the wait takes no time. For what B freed at 105 ms it would stand still: it grows instead."""

    def side_by_side(begin, end):
        for at in range(begin, end):
            trace.at(at * MS).alloc(1000 + at, 32 * MIB, A).free(1000 + at, A).alloc(2000 + at, 1 * MIB, B)
            trace.free(2000 + at, B)

    trace.alloc(0, 256 * MIB, B)
    side_by_side(0, 20)
    trace.free(0, B)
    side_by_side(20, 110)
    trace.alloc(1, 256 * MIB, A)
    result = replay(trace, lag_ns=100_000_000, wait=True, backing=backing)
    assert result["stats"]["num_stream_waits"] == 1 and result["reserved_peak_bytes"] < 400 * MIB

    trace.alloc(3, 256 * MIB, B)  # B has as much again, and gives it back a moment before A asks
    side_by_side(110, 200)
    trace.free(3, B)
    side_by_side(200, 203)
    trace.alloc(2, 256 * MIB, A)
    later = replay(trace, lag_ns=100_000_000, wait=True, backing=backing)
    assert later["reserved_peak_bytes"] >= 768 * MIB


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_compute_does_not_stand_behind_a_copy(trace, backing):
    """What A needs B freed after a while in which B may have copied all along: A, the busiest, grows."""
    trace.alloc(9, 512, B)
    for step in range(40):
        trace.at(step * 100_000).alloc(100 + step, 64 * MIB, A).free(100 + step, A)
    trace.alloc(0, 64 * MIB, B).at(5 * MS).free(0, B)
    for step in range(40):
        trace.at(6 * MS + step * 100_000).alloc(200 + step, 512, A).free(200 + step, A)
    trace.at(12 * MS).alloc(1, 64 * MIB, A).alloc(2, 64 * MIB, A)
    result = replay(trace, lag_ns=100_000_000, wait=True, backing=backing)
    assert result["stats"]["num_stream_waits"] == 0
    assert result["reserved_peak_bytes"] >= 192 * MIB


def test_own_stream_reuses_whatever_the_lag(trace):
    trace.alloc(0, 64 * MIB, A).free(0, A).alloc(1, 64 * MIB, A)
    assert replay(trace, lag_ns=10**12)["reserved_peak_bytes"] < 128 * MIB


def test_recorded_streams_without_a_completion_are_replayed(trace):
    """The trace ends before the block is done: record_stream itself says who needs it."""
    trace.alloc(0, 8 * MIB, A).record(0, B).free(0, A).alloc(1, 8 * MIB, A)
    result = replay(trace)
    assert result["stats"]["pending_bytes"]["peak"] == 8 * MIB
    assert result["reserved_peak_bytes"] >= 16 * MIB


def test_recorded_streams_with_a_completion_follow_the_trace(trace):
    trace.alloc(0, 16 * MIB, A).record(0, B).at(10).free(0, A).at(20).done(0, A).at(21).alloc(1, 16 * MIB, A)
    result = replay(trace, limit=16 * MIB, lag_ns=10**9)
    assert result["oom"] is None and result["stats"]["num_sync_all_streams"] == 0


def test_native_peak_is_that_of_the_segments(trace):
    trace.segment(20 * MIB).alloc(0, 5).segment(2 * MIB).segment(-20 * MIB).segment(6 * MIB)
    assert replay(trace)["native_reserved_peak_bytes"] == 22 * MIB


def test_warm_begins_with_the_third_iteration(trace):
    def iteration(number, extra):
        trace.at(number * 100).mark(number)
        for i, size in enumerate((40, 9, 70, 20 + extra)):
            trace.alloc(number * 10 + i, size * MIB)
        for i in range(4):
            trace.free(number * 10 + i)

    for number in range(6):
        iteration(number, extra=0)
    steady = replay(trace)
    assert steady["driver_calls"] > 0 and steady["driver_calls_warm"] == 0
    assert steady["driver_time_us"] > 0 and steady["driver_time_warm_us"] == 0
    assert steady["trace_time_warm_us"] == 200  # iterations 3, 4, 5 at 300, 400, 500 us
    assert replay(trace, warm_from_iteration=0)["driver_calls_warm"] == steady["driver_calls"]
    assert replay(trace, warm_from_iteration=4)["trace_time_warm_us"] == 100
    iteration(6, extra=300)
    assert replay(trace)["driver_calls_warm"] > 0


@pytest.mark.parametrize("clock", [0, 10**15], ids=["behind", "ahead"])
def test_the_clock_of_marks_is_the_program_s(trace, clock):
    """They are made by whatever clock the program has: time goes on as the pool's own events say."""
    def run(mark):
        writer = type(trace)()
        for number in range(8):
            writer.at(clock + number if mark else number * 100_000)
            if mark:
                writer.mark(number)
            writer.at(number * 100_000).alloc(2 * number, 64 * MIB).free(2 * number)
            writer.alloc(2 * number + 1, 64 * MIB, 1).at(number * 100_000 + 50_000).free(2 * number + 1, 1)
        return replay(writer)

    marked, bare = run(True), run(False)
    assert marked["reserved_peak_bytes"] == bare["reserved_peak_bytes"]
    assert marked["driver_calls"] == bare["driver_calls"]
    assert marked["trace_time_warm_us"] == 450_000  # from iteration 3 on
    assert replay(trace.at(clock).mark(5))["trace_time_warm_us"] == 0


def test_without_marks_warm_is_the_second_half(trace):
    for i in range(10):
        trace.at(i * 10).alloc(i, 4096)
    result = replay(trace)
    assert result["trace_time_warm_us"] == 40  # events 5 to 9
    assert result["driver_calls_warm"] == 0


def test_running_out_is_told_and_ends_the_replay(trace):
    trace.alloc(0, 10 * MIB).alloc(1, 10 * MIB).alloc(2, 10 * MIB).free(0).free(1).free(2)
    result = replay(trace, limit=24 * MIB)
    oom = result["oom"]
    assert oom["event"] == 2 and oom["requested_bytes"] == 10 * MIB and oom["limit_bytes"] == 24 * MIB
    assert oom["live_bytes"] == 20 * MIB and oom["pending_bytes"] == 0
    assert oom["reserved_bytes"] == result["reserved_peak_bytes"] <= 24 * MIB
    assert result["live_peak_bytes"] == 30 * MIB, "the trace's own peak is that of the whole trace"
    assert result["stats"]["num_ooms"] == 1
    assert replay(trace, limit=32 * MIB)["oom"] is None


def test_a_lone_request_beyond_the_limit(trace):
    trace.alloc(0, 100 * MIB)
    oom = replay(trace, limit=8 * MIB)["oom"]
    assert oom["event"] == 0 and oom["live_bytes"] == 0


@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}, {"grow_ratio": 0.0, "grow_slack": 0}])
def test_every_configuration_serves(trace, options):
    number = 0
    for step in range(8):
        trace.at(step * 100).mark(step)
        mine = []
        for i in range(30):
            trace.alloc(number, (i * 7919 + step * 104729) % (5 * MIB), A if i % 3 else B)
            mine.append((number, A if i % 3 else B))
            number += 1
        for block, stream in mine[::2] + mine[1::2]:
            trace.free(block, stream)
    result = replay(trace, audit_every=50, **options)
    assert result["oom"] is None
    assert result["reserved_peak_bytes"] >= result["occupied_peak_bytes"] > 0
    stats = result["stats"]
    assert stats["allocation"]["all"]["current"] == 0
    assert stats["allocation"]["all"]["allocated"] == stats["allocation"]["all"]["freed"] == number
    assert 0 < result["malloc_ns_median"] <= result["malloc_ns_p99"]
    assert 0 < result["free_ns_median"] <= result["free_ns_p99"]


def test_same_trace_same_figures(trace):
    for i in range(200):
        trace.at(i).alloc(i, (i * 40503) % (3 * MIB), A)
        if i % 3:
            trace.free(i, A)
    first, second = replay(trace), replay(trace)
    for key in first:
        if not key.endswith(("_median", "_p99")):
            assert first[key] == second[key], key


def test_blocks_may_be_numbered_as_they_like(trace):
    trace.alloc(2**64 - 1, 100).alloc(2**40, 200).free(2**64 - 1).free(2**40)
    assert replay(trace)["live_peak_bytes"] == 1024


DAMAGED = {
    "the same block twice": (lambda t: t.alloc(4, 5).alloc(4, 5), "event 1 .* second time block 4"),
    "a free before the allocation": (lambda t: t.free(4), "event 0 .* never allocated block 4"),
    "a second free": (lambda t: t.alloc(4, 5).free(4).free(4), "event 2 .* second time block 4"),
    "a completion of a live block": (lambda t: t.alloc(4, 5).done(4), "event 1 .* without a free"),
    "a stream recorded on a freed block": (lambda t: t.alloc(4, 5).free(4).record(4, A), "event 2 .* already freed"),
    "an absurd size": (lambda t: t.alloc(4, 2**63), "more than any device"),
    "a stream that cannot be": (lambda t: t.alloc(4, 5, 2**64 - 1), "event 0 .* a stream that no device has"),
    "an unknown kind": (lambda t: t.events.append((0, 0, 0, 0, 99, 0, 0, -1)), "unknown kind 99"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_traces_are_refused_naming_the_event(trace, name):
    damage, sentence = DAMAGED[name]
    damage(trace)
    with pytest.raises(InvalidArgument, match=sentence):
        replay(trace)


def test_bytes_that_are_no_events():
    with pytest.raises(InvalidArgument, match="40 bytes each"):
        replay(b"x" * 41)
    with pytest.raises(TypeError):
        _core.replay("text", {})


@pytest.mark.parametrize("options, part", [({"lag": 5}, "lag_ns"), ({"lag_ns": -1}, "negative"), ({"backing": "x"}, "contiguous")])
def test_wrong_options(trace, options, part):
    with pytest.raises(InvalidArgument, match=part):
        replay(trace, **options)


def test_progress_is_told_and_may_end_it(trace):
    for i in range(20_000):
        trace.alloc(i, 512)
    told = []
    replay(trace, told.append)
    assert told == sorted(told) and told[-1] == 20_000 and len(told) > 2

    class Enough(Exception):
        pass

    def stop(done):
        raise Enough

    with pytest.raises(Enough):
        replay(trace, stop)


def test_interrupt_ends_a_replay(trace):
    """Ctrl-C while no Python runs: the replay lets signals in by itself."""
    for i in range(400_000):
        trace.events.append((i, i, 512, 0, 0, 0, 0, -1))
    data = trace.bytes()
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    timer = threading.Timer(0.01, lambda: signal.pthread_kill(main, signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # not before: its signal may come at once, and is this test's only in here
            while True:
                replay(data)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
