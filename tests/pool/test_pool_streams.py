"""The stream rules one by one, with a clock that stands still: who may reuse whose block, and when."""

import pytest

from devices import Device, make_pool
from pool_model import MIB, Model

from dymem.errors import OutOfMemory

A, B, C = 11, 12, 13


@pytest.fixture(params=[{}, {"alias": False}, {"backing": "contiguous"}], ids=["vmm", "remap", "contiguous"])
def setting(request):
    """The backing is a matter of where memory comes from; the rules are the same."""
    device = Device(capacity=1 << 30)
    pool = make_pool(device, **request.param)
    return device, pool, Model(device, pool)


def pending(pool):
    return pool.stats()["pending_bytes"]["current"]


def test_own_stream_reuses_at_once(setting):
    device, pool, model = setting
    model.enqueue(A, 1000)
    first = model.malloc(8 * MIB, A)
    model.free(first)
    grown = pool.stats()["num_device_alloc"]
    second = model.malloc(8 * MIB, A)
    assert pool.stats()["num_device_alloc"] == grown and pending(pool) == 0
    model.free(second)
    model.end()


def test_another_stream_waits_for_the_work(setting):
    """While A's work runs, B gets other memory; once it is done, B gets A's before the pool grows."""
    device, pool, model = setting
    model.free(model.malloc(512, B))  # both streams are known
    model.enqueue(A, 1000)
    block = model.malloc(24 * MIB, A)
    model.free(block)
    early = model.malloc(24 * MIB, B)  # check_origin would notice A's bytes
    model.free(early)
    model.advance(5000)
    model.trim()
    model.check(pending_exact=True)
    model.end()


def test_finished_blocks_serve_other_streams_before_growth(setting):
    device, pool, model = setting
    model.free(model.malloc(512, B))
    for _ in range(4):
        model.free(model.malloc(24 * MIB, A))
    grown = pool.stats()["reserved_bytes"]["all"]["current"]
    model.advance(10_000_000)
    for _ in range(3):  # the pool may learn of it late, not never
        model.free(model.malloc(1024, A))
        model.advance(10_000_000)
    model.free(model.malloc(24 * MIB, B))
    assert pool.stats()["reserved_bytes"]["all"]["current"] <= grown + 2 * MIB
    model.end()


def test_recorded_stream_keeps_the_block_pending(setting):
    device, pool, model = setting
    block = model.malloc(6 * MIB, A)
    model.enqueue(B, 1000)
    model.record_stream(block, B)
    model.free(block)
    assert pending(pool) == 6 * MIB
    stats = pool.stats()
    assert stats["active_bytes"]["all"]["current"] == 6 * MIB and stats["allocated_bytes"]["all"]["current"] == 0
    other = model.malloc(6 * MIB, A)  # not even its own stream may have it
    model.check()
    model.advance(999)
    model.look()
    assert pending(pool) == 6 * MIB
    model.advance(1)
    model.look()
    assert pending(pool) == 0
    model.free(other)
    model.end()


def test_recording_the_own_stream_means_nothing(setting):
    device, pool, model = setting
    block = model.malloc(MIB, A)
    model.enqueue(A, 1000)
    model.record_stream(block, A)
    model.free(block)
    assert pending(pool) == 0
    model.check(pending_exact=True)
    model.end()


def test_every_recorded_stream_counts(setting):
    device, pool, model = setting
    block = model.malloc(6 * MIB, A)
    model.enqueue(B, 100)
    model.enqueue(C, 500)
    for stream in (B, C, B):
        model.record_stream(block, stream)
    model.free(block)
    model.advance(200)
    model.look()
    assert pending(pool) == 6 * MIB
    model.advance(300)
    model.look()
    assert pending(pool) == 0
    model.end()


def test_work_enqueued_after_the_free_is_not_waited_for(setting):
    device, pool, model = setting
    block = model.malloc(6 * MIB, A)
    model.record_stream(block, B)
    model.enqueue(B, 100)
    model.free(block)
    model.enqueue(B, 1_000_000)
    model.advance(100)
    model.look()
    assert pending(pool) == 0
    model.end()


def test_at_the_limit_pending_blocks_are_waited_for_not_failed(setting):
    """Better late than out of memory: the clock is moved by the wait itself."""
    device, pool, model = setting
    pool.set_limit(32 * MIB)
    block = model.malloc(24 * MIB, A)
    model.enqueue(B, 700)
    model.record_stream(block, B)
    model.free(block)
    address = pool.malloc(24 * MIB, A)
    assert device.emulated.now() >= 700
    assert pool.stats()["num_ooms"] == 0 and pool.stats()["num_alloc_retries"] >= 1
    pool.free(address)
    assert pool.audit() == []


def test_at_the_limit_another_streams_block_is_had_in_order(setting):
    """A's work is unfinished and nothing else is left: B is made to wait for A, or the host waits. Never corruption."""
    device, pool, model = setting
    pool.set_limit(32 * MIB)
    pool.free(pool.malloc(512, B))
    model.enqueue(A, 700)
    model.free(model.malloc(24 * MIB, A))
    address = pool.malloc(24 * MIB, B)
    waited_on_host = device.emulated.now() >= 700
    assert waited_on_host or pool.stats()["num_stream_waits"] >= 1
    pool.free(address)
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("asking", [A, B, C])
def test_at_the_limit_a_pending_block_serves_any_stream(setting, asking):
    """Once waited for, the block is nobody's: neither its own stream nor the recorded one has a claim on it."""
    device, pool, model = setting
    pool.set_limit(32 * MIB)
    model.free(model.malloc(512, C))
    block = model.malloc(24 * MIB, A)
    model.enqueue(A, 300)
    model.enqueue(B, 700)
    model.record_stream(block, B)
    model.free(block)
    model.free(model.malloc(24 * MIB, asking))
    assert pool.stats()["num_ooms"] == 0
    model.end()


@pytest.mark.parametrize("finished_first", [True, False], ids=["the finished run is lower", "the own run is lower"])
def test_a_large_block_takes_what_only_its_stream_may_have(setting, finished_first):
    """Of two free runs, what is finished is left for streams that could not have the other one, wherever each lies."""
    device, pool, model = setting
    small = model.malloc(512, B)
    low, between, high = model.malloc(32 * MIB, A), model.malloc(2 * MIB, A), model.malloc(32 * MIB, A)
    model.free(model.malloc(512 * 1024, B))  # B does work of its own: it would miss what A takes
    finished, own = (low, high) if finished_first else (high, low)
    model.enqueue(A, 1000)
    model.free(finished)
    model.advance(10_000_000)
    for _ in range(64):  # the pool looks at the clock now and then, and learns that A's work is done
        model.free(model.malloc(512, A))
        model.advance(1_000_000)
    model.enqueue(A, 1_000_000_000)
    model.free(own)
    grown = pool.stats()["num_device_alloc"]
    mine = model.malloc(32 * MIB, A)
    other = model.malloc(32 * MIB, B)
    shift = 512 if pool.stats()["slab_bytes"]["current"] else 0  # small blocks share the range
    assert abs(mine.address - own.address) <= shift and abs(other.address - finished.address) <= shift
    assert pool.stats()["num_device_alloc"] == grown
    for block in (mine, other, between, small):
        model.free(block)
    model.end()


@pytest.mark.parametrize("others, own_first", [("a little", True), ("as much", False), ("much, long ago", False)])
def test_own_memory_comes_first_only_beside_one_stream_that_does_most(others, own_first):
    """Streams that take turns as equals, and one beside streams that fell idle, keep to best fit and old addresses."""
    device = Device(capacity=64 << 30, bytes=False)
    pool = make_pool(device)
    now = 0

    def work(stream, size, times=1):
        nonlocal now
        for _ in range(times):
            pool.free(pool.malloc(size, stream))
            now += 5_000_000
            device.advance_to(now)
            for _ in range(20):  # the pool looks at the clock now and then
                pool.free(pool.malloc(512, A))

    work(B, {"a little": MIB // 2, "as much": 64 * MIB, "much, long ago": 8 << 30}[others])
    if others == "much, long ago":
        work(A, 4 << 30, times=100)
    pool.trim()
    finished, _, own = (pool.malloc(size * MIB, A) for size in (32, 2, 32))
    pool.free(finished)
    work(A, 512, times=3)
    device.set_busy_until(A, now + 1_000_000_000)
    pool.free(own)
    assert pool.malloc(32 * MIB, A) == (own if own_first else finished)
    assert pool.audit() == [] and device.violations() == []


def test_without_a_limit_no_stream_is_made_to_wait(setting):
    device, pool, model = setting
    for i in range(60):
        stream = (A, B, C)[i % 3]
        model.enqueue(stream, 50)
        block = model.malloc((i % 5 + 1) * MIB, stream)
        model.record_stream(block, (B, C, A)[i % 3])
        model.free(block)
        model.advance(20)
    assert pool.stats()["num_stream_waits"] == 0
    assert pool.stats()["num_sync_all_streams"] == 0
    model.end()


def test_late_completion_in_any_order(setting):
    """Streams finish in an order of their own; nobody's bytes are touched before."""
    device, pool, model = setting
    device.set_lag(30)
    model.lag = 30
    blocks = []
    for i in range(12):
        stream = (A, B, C)[i % 3]
        block = model.malloc((i % 4 + 1) * MIB + 512, stream)
        model.enqueue((B, C, A)[i % 3], (12 - i) * 100)
        model.record_stream(block, (B, C, A)[i % 3])
        blocks.append(block)
    for block in blocks:
        model.free(block)
        model.check()
    for _ in range(40):
        model.advance(100)
        block = model.malloc(3 * MIB, A)
        model.check()
        model.free(block)
    model.trim()
    model.check(pending_exact=True)
    assert pending(pool) == 0
    model.end()


def test_trim_waits_for_pending_blocks(setting):
    """As empty_cache does: what can be given back once the work is done is given back now."""
    device, pool, model = setting
    block = model.malloc(6 * MIB, A)
    model.enqueue(B, 1000)
    model.record_stream(block, B)
    model.free(block)
    model.trim()
    assert pending(pool) == 0 and model.now >= 1000
    model.check(pending_exact=True)


def test_no_driver_calls_while_a_graph_is_captured(setting):
    """Events, maps and unmaps are forbidden under capture; frees then must not forget what they wait for."""
    device, pool, model = setting
    block = model.malloc(6 * MIB, A)
    model.record_stream(block, B)
    other = model.malloc(6 * MIB, A)
    device.emulated.set_capturing(B, True)
    before = device.emulated.counters()
    model.enqueue(B, 100)
    pool.free(block.address)
    del model.live[block.address]
    after = device.emulated.counters()
    for name in ("event_record", "event_query", "event_wait", "map", "unmap"):
        assert after[name] == before[name], name
    assert pending(pool) == 6 * MIB
    device.emulated.set_capturing(B, False)
    device.advance_to(200)
    model.now = 200
    pool.trim()
    device.advance_to(10_000)
    pool.trim()
    assert pending(pool) == 0
    model.verify(other)
    pool.free(other.address)
    assert pool.audit() == [] and device.violations() == []


def test_single_stream_records_no_events(setting):
    device, pool, model = setting
    for i in range(50):
        model.free(model.malloc((i % 7 + 1) * MIB, A))
    counters = device.emulated.counters()
    assert counters["event_record"] == counters["event_query"] == counters["event_wait"] == 0


@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}], ids=["vmm", "alias=off", "contiguous"])
def test_a_stream_that_its_owner_destroyed_costs_no_memory_and_no_error(options):
    """Its work goes on to its end: blocks freed on it are nobody else's until the device is done, and then everybody's."""
    device = Device()
    pool = make_pool(device, limit=96 * MIB, **options)
    kept = pool.malloc(MIB, 0)
    side = [pool.malloc(20 * MIB, 7) for _ in range(4)]
    used = pool.malloc(4 * MIB, 0)
    pool.record_stream(used, 7)
    device.emulated.set_busy_until(7, device.emulated.now() + 40_000_000)
    done = device.emulated.now() + 40_000_000
    device.emulated.set_destroyed(7, True)
    for block in (*side, used):
        pool.free(block)
    small = pool.malloc(MIB, 0)  # fits elsewhere: nobody is waited for
    assert device.emulated.now() < done
    big = pool.malloc(60 * MIB, 0)  # needs what was freed on the stream that is gone
    assert device.emulated.now() >= done and pool.stats()["num_ooms"] == 0
    for block in (kept, small, big):
        pool.free(block)
    pool.trim()
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 0 or "backing" in options
    device.emulated.set_destroyed(7, False)  # a new stream with the same handle
    pool.free(pool.malloc(80 * MIB, 7))
    pool.free(pool.malloc(80 * MIB, 0))
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("streams, stitches", [((0,), 1), ((0, 1), 0)], ids=["one", "several"])
def test_where_several_streams_are_at_work_it_grows_further_before_stitching(streams, stitches):
    """Five times grow_ratio past the peak: with one stream a tenth is too little for the request, half of it is not."""
    pool = make_pool(Device(), grow_ratio=0.1, grow_slack=0)
    for stream in streams:
        pool.free(pool.malloc(1000, stream))
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(10)]
    for block in blocks[::2]:
        pool.free(block)
    before = pool.stats()["num_stitches"]
    pool.malloc(32 * MIB, 0)
    assert pool.stats()["num_stitches"] - before == stitches and pool.audit() == []
