"""What users report that is no program of allocations: empty_cache in a loop, deadlocks, pinned memory of twice the size."""

import threading

import pytest

from devices import GIB, Device, make_pool
from pool_model import MIB

from dymem.errors import OutOfMemory


def one_step(pool):
    """Twenty activations, each made with a workspace; in reverse order they go."""
    saved = []
    for number in range(20):
        scratch = pool.malloc(40 * MIB)
        saved.append(pool.malloc((30 + number) * MIB))
        pool.free(scratch)
    for address in reversed(saved):
        pool.free(address)


def test_giving_memory_back_in_a_loop_is_cheap():
    """transformers#31372, #50190. One look when nothing is idle; else in proportion to what is given back, and no waiting."""
    device = Device(capacity=16 * GIB, bytes=False)
    pool = make_pool(device)
    kept = [pool.malloc(size * MIB) for size in (300, 200, 500)]
    for _ in range(3):
        one_step(pool)
        pool.trim()
    reserved = lambda: pool.stats()["reserved_bytes"]["all"]["current"]  # noqa: E731
    assert reserved() <= 1000 * MIB * 1.05, "idle memory stays"
    before = device.emulated.counters()
    for _ in range(1000):
        assert pool.trim() == 0
    assert device.emulated.counters() == before, "nothing is idle, and the driver is called all the same"
    for _ in range(20):
        before = device.emulated.counters()
        one_step(pool)
        given = pool.trim()
        after = device.emulated.counters()
        assert 700 * MIB < given < 1000 * MIB
        spent_us = (after["memory_time_ns"] - before["memory_time_ns"]) / 1e3
        assert spent_us < 5_000 * given / GIB, "giving back and taking again costs more than 5 ms a GiB"
        assert pool.stats()["num_stream_waits"] == pool.stats()["num_ooms"] == 0
    for address in kept:
        pool.free(address)
    assert pool.audit() == [] and device.violations() == []


def test_a_callback_that_waits_for_another_thread_of_python():
    """pytorch#97833, #50925: the callback needs the GIL and another thread that itself allocates; nobody holds a lock."""
    device = Device(capacity=64 * MIB)
    pool = make_pool(device)
    cache = [pool.malloc(8 * MIB) for _ in range(4)]
    trouble = []

    def reclaim(wanted):
        """Asks a thread to free; that thread must get into the pool meanwhile."""

        def free():
            try:
                block = cache.pop()
            except IndexError:  # another callback's thread had the last one
                return
            pool.stats()
            pool.free(pool.malloc(512))
            pool.free(block)

        had = len(cache)
        thread = threading.Thread(target=free)
        thread.start()
        thread.join(timeout=60)
        if thread.is_alive():
            trouble.append("the pool is locked while its callback runs")
        return (had - len(cache)) * 8 * MIB

    pool.set_reclaim_callback(reclaim)
    served, failed = [], []
    together = threading.Barrier(4)

    def work(stream):
        first = pool.malloc(10 * MIB, stream)  # all four at once, which is more than the cache leaves
        together.wait(timeout=60)
        pool.free(first)
        for number in range(40):
            try:
                address = pool.malloc((2 + number % 5) * 4 * MIB, stream)
            except OutOfMemory:
                failed.append(stream)
                continue
            pool.stats()  # takes the lock, with the GIL in hand before and after
            served.append(stream)
            pool.free(address)

    threads = [threading.Thread(target=work, args=(stream,), daemon=True) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    assert not trouble and served and len(cache) < 4, "the callback was never needed"
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("mib", [5, 65, 130])
def test_no_more_is_pinned_than_is_kept(mib):
    """pytorch#95823 and others: 2.08 GiB are asked and 4 are pinned, since sizes are rounded to powers of two."""
    device = Device(capacity=2 * GIB)
    pool = make_pool(device)
    address = pool.malloc(mib * MIB)
    pool.sleep()
    pinned = pool.stats()["host_bytes"]
    assert mib * MIB <= pinned <= mib * MIB * 17 // 16 + 2 * MIB
    pool.wake()
    assert pool.free_host_slabs() == pinned
    pool.free(address)
