"""Counters, figures and clocks that nothing else looks at: each exact, and none turned back by resetting statistics."""

import pytest

from devices import GIB, Device, make_pool
from pool_model import MIB

from dymem.errors import OutOfMemory, SleepError

A, B = 11, 12
SETTINGS = [{}, {"alias": False}, {"backing": "contiguous"}]
IDS = ["vmm", "remap", "contiguous"]


def counted(pool):
    """What the pool did at its limit: retries, waits of a stream for others, waits of the host, failures."""
    names = ("num_alloc_retries", "num_stream_waits", "num_sync_all_streams", "num_ooms")
    stats = pool.stats()
    return tuple(stats[name] for name in names)


def reserved(pool):
    return pool.stats()["reserved_bytes"]["all"]["current"]


# --- at the limit


@pytest.mark.parametrize("options", SETTINGS, ids=IDS)
def test_every_step_at_the_limit_is_counted_once(options):
    """Another stream's block costs a wait on the device; a pending one, a wait on the host too; then it fails."""
    device = Device(bytes=False)
    pool = make_pool(device, limit=32 * MIB, **options)
    pool.free(pool.malloc(512, B))
    block = pool.malloc(24 * MIB, A)
    device.set_busy_until(A, 700)
    pool.free(block)
    waits = device.emulated.counters()["event_wait"]
    block = pool.malloc(24 * MIB, B)
    assert counted(pool) == (1, 1, 0, 0) and device.emulated.now() == 0
    assert device.emulated.counters()["event_wait"] == waits + 1
    pool.record_stream(block, A)
    pool.free(block)
    block = pool.malloc(24 * MIB, B)
    assert counted(pool) == (2, 2, 1, 0) and device.emulated.now() >= 700
    with pytest.raises(OutOfMemory):
        pool.malloc(24 * MIB, B)
    assert counted(pool) == (3, 3, 2, 1)
    pool.reset_accumulated_stats()
    assert counted(pool) == (0, 0, 0, 0) and pool.audit() == []


def test_debug_mode_counts_and_keeps_the_limit():
    pool = make_pool(Device(), limit=8 * MIB, debug=True)
    blocks = [pool.malloc(2 * MIB, 0) for _ in range(4)]
    with pytest.raises(OutOfMemory):
        pool.malloc(1, 0)
    assert counted(pool) == (1, 0, 0, 1) and reserved(pool) == 8 * MIB
    pool.free(blocks.pop())
    pool.malloc(1, 0)
    assert reserved(pool) == 8 * MIB and pool.audit() == []


def test_stitches_and_their_reuse_are_counted():
    pool = make_pool(Device(bytes=False), limit=512 * MIB)
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(32)]
    for block in blocks[::2]:
        pool.free(block)
    stitched = lambda: (pool.stats()["num_stitches"], pool.stats()["num_stitch_reuses"])
    first = pool.malloc(200 * MIB, 0)
    assert stitched() == (1, 0)
    views, va = (pool.stats()[name] for name in ("views", "va_bytes"))
    pool.free(first)
    assert pool.malloc(190 * MIB, 0) and stitched() == (1, 1), "another size: the views that are there"
    stats = pool.stats()
    assert (stats["views"], stats["views_max"]) == (views, views) and (stats["va_bytes"], stats["va_bytes_max"]) == (va, va)
    assert va == 512 * MIB + (views - 64) * 8 * MIB, "each view of a granule of 8 MiB"


# --- figures of an error


def test_largest_free_of_an_error_is_what_can_be_had():
    """Stitching makes one piece of all that is idle, and nothing new is needed for it."""
    pool = make_pool(Device(bytes=False), limit=512 * MIB)
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(32)]
    for block in blocks[::2]:
        pool.free(block)
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(300 * MIB, 0)
    largest = caught.value.figures["largest_free"]
    assert largest == 256 * MIB and pool.malloc(largest, 0) and reserved(pool) == 512 * MIB


@pytest.mark.parametrize("options", SETTINGS, ids=IDS)
def test_overhead_compares_two_peaks_of_the_same_time(options):
    """Resetting the peaks must not set what is reserved now against what was occupied long ago."""
    pool = make_pool(Device(bytes=False), limit=512 * MIB, **options)
    pool.free(pool.malloc(500 * MIB, 0))
    pool.trim()
    pool.reset_peak_stats()
    pool.malloc(MIB, 0)
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(600 * MIB, 0)
    assert 0 <= caught.value.figures["overhead"] < 0.03


def test_largest_free_is_what_that_stream_may_have_now():
    """The largest of several runs, and of a run that two streams freed the part that is finished or its own."""
    device = Device(bytes=False)
    pool = make_pool(device)
    first, second, third = (pool.malloc(n * MIB, stream) for n, stream in ((64, A), (32, B), (64, A)))
    pool.malloc(2 * MIB, B)
    other = pool.malloc(40 * MIB, B)
    pool.malloc(2 * MIB, B)
    for stream in (A, B):
        device.set_busy_until(stream, 1 << 40)
    pool.free(second)
    assert pool.largest_free(A) < 32 * MIB <= pool.largest_free(B) < 64 * MIB
    pool.free(first)
    assert 64 * MIB <= pool.largest_free(A) < 96 * MIB and 32 * MIB <= pool.largest_free(B) < 64 * MIB
    pool.free(third)
    assert 64 * MIB <= pool.largest_free(A) < 96 * MIB
    pool.free(other)  # a smaller run, and more of it is B's
    assert 40 * MIB <= pool.largest_free(B) < 64 * MIB


# --- a device that others use too


@pytest.mark.parametrize("when", ["later", "in the callback"])
def test_what_another_tenant_gives_back_is_had(when):
    """What the device refused once is no bound for ever."""
    device = Device(capacity=256 * MIB, bytes=False)
    device.emulated.take_memory(200 * MIB)
    pool = make_pool(device)
    if when == "in the callback":
        pool.set_reclaim_callback(lambda wanted: device.emulated.give_memory(200 * MIB) or 1)
    else:
        with pytest.raises(OutOfMemory):
            pool.malloc(100 * MIB, 0)
        device.emulated.give_memory(200 * MIB)
    pool.malloc(100 * MIB, 0)
    assert pool.stats()["num_ooms"] == (when == "later") and pool.audit() == []


# --- growing and stitching


def test_a_hole_is_stitched_before_the_pool_grows_past_its_budget():
    pool = make_pool(Device(bytes=False))
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(32)]
    for block in blocks[::2]:
        pool.free(block)
    for stitches in (1, 2):  # … and again: one stitch is no reason to grow instead
        pool.malloc(110 * MIB, 0)
        assert pool.stats()["num_stitches"] == stitches and reserved(pool) <= 1.01 * 512 * MIB + 8 * MIB


def test_views_that_are_there_serve_a_capture():
    """No call of the driver is needed for them."""
    device = Device(bytes=False)
    pool = make_pool(device, limit=512 * MIB)
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(32)]
    for block in blocks[::2]:
        pool.free(block)
    pool.free(pool.malloc(200 * MIB, 0))
    device.emulated.set_capturing(0, True)
    block = pool.malloc(190 * MIB, 0)
    assert pool.find(block)["stitched"] and device.violations() == []
    device.emulated.set_capturing(0, False)
    pool.free(block)
    assert pool.audit() == []


# --- clocks


def test_resetting_statistics_does_not_keep_old_regions():
    """How long a region was not used is counted in blocks handed out, ever."""
    pool = make_pool(Device(capacity=4 * GIB, bytes=False), limit=512 * MIB)
    for _ in range(200_000):
        pool.free(pool.malloc(700, 0))
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(31)]
    for block in blocks[::2]:
        pool.free(block)
    pool.free(pool.malloc(200 * MIB, 0))
    assert pool.stats()["num_stitches"] == 1
    pool.reset_accumulated_stats()
    for _ in range(75_000):
        pool.free(pool.malloc(700, 0))
    assert pool.stats()["views"] == pool.stats()["segment"]["all"]["current"] and pool.audit() == []


# --- callbacks


def test_a_pool_put_to_sleep_by_a_callback_hands_out_nothing():
    """Or by another thread while the callback runs: what it would hand out could keep it from waking."""
    pool = make_pool(Device(), limit=64 * MIB)
    pool.malloc(60 * MIB, 0)
    pool.set_reclaim_callback(lambda wanted: pool.sleep() and 1)
    with pytest.raises(SleepError, match="asleep"):
        pool.malloc(32 * MIB, 0)
    assert reserved(pool) == 0 and pool.stats()["allocation"]["all"]["current"] == 1
    pool.set_reclaim_callback(None)
    pool.wake()
    assert reserved(pool) >= 60 * MIB and pool.audit() == []
