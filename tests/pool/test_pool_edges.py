"""Defects that were found once, each kind with its test: endless callbacks, pins that outlive blocks, captures, arenas."""

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB

from dymem import _core
from dymem.errors import InvalidArgument, OutOfMemory


@pytest.mark.parametrize("debug", [False, True])
def test_a_callback_that_always_frees_something_does_not_keep_malloc_from_failing(debug):
    device = Device()
    pool = make_pool(device, limit=64 * MIB, debug=debug)
    calls = []
    pool.set_reclaim_callback(lambda wanted: calls.append(wanted) or 1)
    with pytest.raises(OutOfMemory):
        pool.malloc(128 * MIB, 0)
    assert 1 <= len(calls) <= 8
    pool.free(pool.malloc(MIB, 0))
    assert pool.audit() == []


def test_freeing_a_pinned_block_unpins_its_granules():
    device = Device()
    pool = make_pool(device)
    block = pool.malloc(8 * MIB, 0)
    pool.pin(block)
    pool.pin(block)
    pool.free(block)
    pool.trim()
    assert device.emulated.physical_in_use() == 0


def test_a_block_is_pinned_at_most_255_times():
    device = Device()
    pool = make_pool(device)
    block = pool.malloc(8 * MIB, 0)
    for _ in range(255):
        pool.pin(block)
    with pytest.raises(InvalidArgument, match="255"):
        pool.pin(block)
    for _ in range(255):
        pool.unpin(block)
    pool.free(block)
    pool.trim()
    assert device.emulated.physical_in_use() == 0


def test_nothing_is_mapped_during_a_capture():
    """What fits is served; what would need a mapping is refused in a sentence, and works again afterwards."""
    device = Device()
    pool = make_pool(device)
    pool.free(pool.malloc(6 * MIB, 0))
    device.emulated.set_capturing(0, True)
    inside = pool.malloc(4 * MIB, 0)
    maps = device.emulated.counters()["map"]
    with pytest.raises(InvalidArgument, match="captured"):
        pool.malloc(600 * MIB, 0)
    assert device.emulated.counters()["map"] == maps and device.violations() == []
    device.emulated.set_capturing(0, False)
    pool.free(pool.malloc(600 * MIB, 0))
    pool.free(inside)
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}],
                         ids=["vmm", "alias_off", "contiguous"])
def test_beside_a_capture_a_thread_that_may_maps_for_other_streams(options):
    """Growth for streams that are not captured, with nothing asked of any stream; the limit is out of memory as ever."""
    device = Device()
    pool = make_pool(device, limit=1200 * MIB, **options)
    for stream in (0, 1):
        pool.free(pool.malloc(40 * MIB, stream))
    device.emulated.set_capturing(1, True)
    before = device.emulated.counters()
    with _core.driver.MayMapInCapture():
        held = [pool.malloc(size * MIB, 0) for size in (300, 500, 1)]
        with pytest.raises(InvalidArgument, match="captured"):
            pool.malloc(500 * MIB, 1)
        with pytest.raises(OutOfMemory):
            pool.malloc(600 * MIB, 0)
    after = device.emulated.counters()
    assert all(after[name] == before[name] for name in ("event_record", "event_query", "event_wait", "unmap"))
    assert pool.audit() == [] and device.violations() == [] and pool.stats()["num_ooms"] >= 1
    device.emulated.set_capturing(1, False)
    for block in held:
        pool.free(block)
    pool.free(pool.malloc(900 * MIB, 1))
    assert pool.audit() == [] and device.violations() == []


def test_a_guarded_block_freed_during_a_capture_goes_afterwards():
    device = Device()
    pool = make_pool(device, debug=True)
    block = pool.malloc(5000, 0)
    device.emulated.set_capturing(0, True)
    pool.free(block)
    assert pool.audit() == [] and device.violations() == []
    assert pool.stats()["pending_bytes"]["current"] == 5120
    device.emulated.set_capturing(0, False)
    pool.trim()
    assert pool.audit() == [] and device.emulated.physical_in_use() == 0


@pytest.mark.parametrize("code", [CODES.out_of_memory, CODES.failed])
def test_a_guarded_block_survives_a_driver_that_refuses(code):
    device = Device()
    pool = make_pool(device, debug=True)
    block = pool.malloc(5000, 0)
    device.faulty.fail_nth(1, False, code)
    pool.free(block)
    assert pool.audit() == []
    pool.trim()
    assert device.emulated.physical_in_use() == 0


def test_reclaimed_blocks_use_idle_main_memory_before_growing():
    device = Device(capacity=4096 * MIB, bytes=False)
    pool = make_pool(device)
    pool.free(pool.malloc(1024 * MIB, 0))
    for _ in range(4):
        pool.malloc(128 * MIB, 0, mobility="reclaimed")
    assert pool.stats()["reserved_bytes"]["all"]["current"] <= 1024 * MIB * 1.02 + 8 * MIB


def test_reserved_statistics_by_pool_follow_moved_granules():
    device = Device()
    pool = make_pool(device, alias=False, limit=64 * MIB)
    small = [pool.malloc(512 * 1024, 0) for _ in range(120)]
    for block in small:
        pool.free(block)
    large = pool.malloc(60 * MIB, 0)
    reserved = pool.stats()["reserved_bytes"]
    assert reserved["small"]["current"] + reserved["large"]["current"] == reserved["all"]["current"]
    assert reserved["large"]["current"] >= 60 * MIB
    pool.free(large)
    assert pool.audit() == []


@pytest.mark.parametrize("size", [2 * MIB, 4 * MIB, 8 * MIB, 20 * MIB, 50 * MIB, 100 * MIB])
def test_every_second_block_freed_can_be_had_as_one(size):
    """The classic fragmentation test, under a limit."""
    total = 4000 * MIB // size * size
    device = Device(capacity=8192 * MIB, bytes=False)
    pool = make_pool(device, limit=total)
    blocks = [pool.malloc(size, 0) for _ in range(total // size)]
    for block in blocks[::2]:
        pool.free(block)
    free = len(blocks[::2]) * size
    pool.free(pool.malloc(free * 9 // 10, 0))
    assert pool.audit() == []


def test_a_region_that_is_no_longer_used_is_dropped_without_another_stitch():
    """Views must not stay for ever after one odd iteration: they are looked for every few thousand mallocs."""
    device = Device(capacity=4096 * MIB, bytes=False)
    pool = make_pool(device, limit=512 * MIB)
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(32)]
    for block in blocks[::2]:
        pool.free(block)
    stitched = pool.malloc(200 * MIB, 0)
    pool.free(stitched)
    granules = pool.stats()["segment"]["all"]["current"]
    assert pool.stats()["num_stitches"] == 1 and pool.stats()["views"] > granules
    for _ in range(75_000):
        pool.free(pool.malloc(700, 0))
    assert pool.stats()["views"] == pool.stats()["segment"]["all"]["current"]
    assert pool.audit() == [] and device.violations() == []


ENDS = """
from dymem import _core
from dymem.errors import OutOfMemory

MIB = 1 << 20
pool = _core.pool.Pool(_core.driver.make_emulated(capacity=64 * MIB), limit=8 * MIB)

class Callback:
    def __call__(self, wanted):
        pool.set_reclaim_callback(None)  # the pool's call has the last of it now
        return 0

    def __del__(self):
        print("ended", pool.stats()["num_ooms"])  # takes the pool's lock

pool.set_reclaim_callback(Callback())
pool.set_reclaim_callback(Callback())
try:
    pool.malloc(9 * MIB, 0)
except OutOfMemory:
    print("out of memory")
"""


def test_a_callback_ends_without_the_lock(python):
    """Whoever takes its place, and when it takes its own away: what ends there may need the pool, or the GIL."""
    run = python("-c", ENDS, timeout=60)
    assert run.stdout.split("\n") == ["ended 0", "ended 0", "out of memory", ""], run.stderr
