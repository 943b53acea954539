"""What a call changes besides its own block: views that running work still uses, records of free blocks, addresses."""

from random import Random

from devices import Device, make_pool
from pool_model import MIB

from dymem import _core
from dymem.errors import OutOfMemory

S, SIDE = 11, 12


def test_a_pending_block_hides_no_later_use_of_its_region():
    """A region's views stay while work enqueued after a pending block of it was freed may still use them."""
    device = Device(capacity=1 << 30, bytes=False)
    pool = make_pool(device)
    blocks = [pool.malloc(8 * MIB, S) for _ in range(8)]
    for block in blocks[::2]:
        pool.free(block)
    pool.free(pool.malloc(32 * MIB, S))  # one region of four views
    first, second = pool.malloc(12 * MIB, S), pool.malloc(12 * MIB, S)
    assert all(b["stitched"] for b in pool.blocks() if b["address"] in (first, second))
    pool.trim()  # the fourth granule goes: what is left of the region goes with its last block

    device.set_busy_until(SIDE, 100_000_000)
    pool.record_stream(first, SIDE)
    pool.free(first)  # pending; its own stream has finished soon
    for now in range(10_000_000, 60_000_000, 5_000_000):
        device.advance_to(now)
        for _ in range(8):
            pool.free(pool.malloc(512, S))
    device.set_busy_until(S, 1_000_000_000)
    pool.free(second)  # used until then
    views = pool.stats()["views"]
    for now in range(110_000_000, 160_000_000, 5_000_000):
        device.advance_to(now)
        for _ in range(8):
            pool.free(pool.malloc(512, S))
    stats = pool.stats()
    assert stats["pending_bytes"]["current"] == 0
    assert stats["views"] == views
    assert pool.audit() == [] and device.violations() == []


def test_a_recorder_may_come_and_go_in_mid_run():
    device = Device(capacity=1 << 30, bytes=False)
    pool = make_pool(device)
    blocks = [pool.malloc(8 * MIB, S) for _ in range(3)]
    pool.free(blocks[1])
    reserved = pool.stats()["reserved_bytes"]["all"]["current"]
    for recorder in (_core.trace.Recorder(100), None):
        pool.set_recorder(recorder)
        assert pool.audit() == []
        again = pool.malloc(8 * MIB, S)
        assert again == blocks[1]
        pool.free(again)
    assert pool.stats()["reserved_bytes"]["all"]["current"] == reserved


def test_a_region_grows_no_further_than_its_addresses():
    """Granules made larger than needed still have to fit what is left of the addresses of the region they extend."""
    for seed in (1612, 2252):
        random = Random(seed)
        device = Device(capacity=300 * MIB, bytes=False)
        pool = make_pool(device)
        held = []
        for _ in range(300):
            if random.random() < 0.5 + 0.1 * random.random() or not held:
                try:
                    held.append(pool.malloc(random.randrange(MIB // 2, MIB << random.randrange(1, 6)), 0))
                except OutOfMemory:
                    for _ in range(4):
                        pool.free(held.pop(random.randrange(len(held))))
            else:
                pool.free(held.pop(random.randrange(len(held))))
        assert device.violations() == []
