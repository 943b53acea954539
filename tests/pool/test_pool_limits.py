"""Sizes, limits, running out: one clear error, true figures, and a pool that goes on."""

import gc
import random

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB, UNIT, Model, block_bytes

from dymem import _core
from dymem.errors import InvalidArgument, OutOfMemory


@pytest.fixture(params=[{}, {"alias": False}, {"backing": "contiguous"}], ids=["vmm", "remap", "contiguous"])
def config(request):
    return request.param


@pytest.fixture
def device():
    return Device(capacity=256 * MIB)


SIZES = [0, 1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 20 * MIB, 64 * MIB, 100 * MIB]


@pytest.mark.parametrize("size", SIZES)
def test_out_of_memory_at_every_size(device, config, size):
    """Blocks of one size until the device is full; then one is freed and the next fits into its place."""
    if size < MIB:  # millions of tiny blocks are no test: leave little of the device
        device.emulated.take_memory(device.free_memory() - 4 * MIB)
    pool = make_pool(device, **config)
    blocks = []
    with pytest.raises(OutOfMemory) as caught:
        while len(blocks) < 400_000:
            blocks.append(pool.malloc(size, 0))
    figures = caught.value.figures
    assert figures["requested"] in (size, block_bytes(size))
    assert figures["live"] == len(blocks) * block_bytes(size)
    assert figures["pending"] == 0 and figures["limit"] == 0
    assert figures["device_total"] == 256 * MIB
    assert figures["reserved"] == pool.stats()["reserved_bytes"]["all"]["current"]
    assert pool.stats()["num_ooms"] == 1
    assert "out of memory" in str(caught.value) and "Tried to allocate" in str(caught.value)
    assert pool.audit() == []
    assert len(blocks) * block_bytes(size) + block_bytes(size) + 4 * MIB > figures["reserved"], "gave up with room left"
    pool.free(blocks.pop())
    blocks.append(pool.malloc(size, 0))
    for address in blocks:
        pool.free(address)
    pool.trim()
    assert pool.stats()["allocated_bytes"]["all"]["current"] == 0
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("size", [(1 << 46) + 1, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 100, -1, -512])
def test_absurd_sizes_are_refused_before_any_arithmetic(device, config, size):
    pool = make_pool(device, **config)
    with pytest.raises(InvalidArgument):
        pool.malloc(size, 0)
    assert pool.stats()["num_ooms"] == 0 and pool.audit() == []
    assert pool.malloc(1, 0)


def test_a_large_but_honest_size_is_out_of_memory(device, config):
    pool = make_pool(device, **config)
    with pytest.raises(OutOfMemory):
        pool.malloc(1 << 40, 0)
    assert pool.audit() == []


@pytest.mark.parametrize("address", [0, 1, 512, 1 << 47, (1 << 64) - 1])
def test_unknown_addresses(device, config, address):
    pool = make_pool(device, **config)
    mine = pool.malloc(5000, 0)
    for call in (pool.free, pool.pin, pool.unpin, lambda a: pool.record_stream(a, 3)):
        with pytest.raises(InvalidArgument):
            call(address)
    assert pool.find(address) is None and not pool.owns(address)
    assert pool.audit() == []
    pool.free(mine)


def test_freeing_twice(device, config):
    pool = make_pool(device, **config)
    keep = pool.malloc(3 * MIB, 0)
    gone = pool.malloc(3 * MIB, 0)
    pool.free(gone)
    for call in (pool.free, pool.pin, lambda a: pool.record_stream(a, 3)):
        with pytest.raises(InvalidArgument):
            call(gone)
    assert pool.stats()["allocation"]["all"]["current"] == 1 and pool.audit() == []
    pool.free(keep)


def test_limit_is_never_exceeded_and_can_be_moved(device, config):
    pool = make_pool(device, **config)
    pool.set_limit(32 * MIB)
    reserved = lambda: pool.stats()["reserved_bytes"]["all"]["current"]
    blocks = []
    with pytest.raises(OutOfMemory) as caught:
        while True:
            blocks.append(pool.malloc(3 * MIB, 0))
            assert reserved() <= 32 * MIB
    assert caught.value.figures["limit"] == 32 * MIB
    assert len(blocks) * 3 >= 30 - 3, "the limit leaves room that was not used"
    pool.set_limit(64 * MIB)
    blocks.append(pool.malloc(20 * MIB, 0))
    assert reserved() <= 64 * MIB
    pool.set_limit(16 * MIB)  # below what is held: nothing is taken away, nothing new is given
    with pytest.raises(OutOfMemory):
        pool.malloc(30 * MIB, 0)
    for address in blocks:
        pool.free(address)
    for _ in range(3):
        pool.free(pool.malloc(12 * MIB, 0))
    pool.trim()
    if "backing" not in config:  # what a slab was used for stays its high-water mark
        assert reserved() <= 16 * MIB
    assert pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("size", [4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB])
def test_freed_holes_together_serve_what_none_does_alone(size):
    """Under a limit, with nothing contiguous free: the holes lend their granules."""
    device = Device()
    pool = make_pool(device, limit=16 * size)
    model = Model(device, pool)
    blocks = [model.malloc(size, 0, fill=False) for _ in range(16)]
    for held in blocks[::2]:
        model.free(held)
    large = model.malloc(15 * size // 2, 0, fill=size <= 8 * MIB)
    model.check()
    assert pool.find(large.address)["stitched"]
    assert pool.stats()["reserved_bytes"]["all"]["current"] <= 16 * size
    model.end()
    assert device.emulated.physical_in_use() == 0


def test_reclaim_callback_is_asked_before_failing(device, config):
    pool = make_pool(device, **config)
    pool.set_limit(20 * MIB)
    cache = [pool.malloc(6 * MIB, 0) for _ in range(3)]
    asked = []

    def reclaim(wanted):
        asked.append(wanted)
        if not cache:
            return 0
        pool.free(cache.pop())
        return 6 * MIB

    pool.set_reclaim_callback(reclaim)
    block = pool.malloc(6 * MIB, 0)
    assert len(asked) == 1 and asked[0] >= 6 * MIB and len(cache) == 2
    assert pool.stats()["num_alloc_retries"] >= 1 and pool.stats()["num_ooms"] == 0
    pool.free(block)
    with pytest.raises(OutOfMemory):
        pool.malloc(64 * MIB, 0)
    assert not cache and pool.audit() == []
    pool.set_reclaim_callback(lambda wanted: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pool.malloc(64 * MIB, 0)
    assert pool.audit() == []
    pool.free(pool.malloc(MIB, 0))


def test_pinned_memory_is_never_given_back_or_lent(device):
    pool = make_pool(device)
    model = Model(device, pool)
    pinned = model.malloc(4 * MIB, 0)
    pool.pin(pinned.address)
    neighbours = [model.malloc(4 * MIB, 0) for _ in range(4)]
    for held in neighbours:
        model.free(held)
    pool.trim()
    model.verify(pinned)
    for n in (30, 9, 3):
        model.malloc(n * MIB, 0)
    model.verify(pinned)
    assert pool.find(pinned.address)["address"] == pinned.address
    pool.unpin(pinned.address)
    with pytest.raises(InvalidArgument):
        pool.unpin(pinned.address)
    model.end()


def test_same_calls_same_addresses(config):
    """On one stream the pool is deterministic: relative addresses depend on nothing but the calls."""

    def run():
        pool = make_pool(Device(bytes=False), **config)
        blocks, addresses = [], []
        for i in range(400):
            if i % 3 == 2:
                pool.free(blocks.pop(i * 7 % len(blocks)))
            else:
                blocks.append(pool.malloc((i * 2654435761) % (3 * MIB), 0))
                addresses.append(blocks[-1])
        return addresses

    assert run() == run()


def test_warm_iterations_make_no_driver_call():
    device = Device(capacity=1 << 34, bytes=False)
    pool = make_pool(device)
    sizes = [(i * 40503 % 97 + 1) * MIB // 4 for i in range(60)]

    def iteration():
        blocks = [pool.malloc(n, 0) for n in sizes]
        for address in blocks[::-1][::2] + blocks[::-1][1::2]:
            pool.free(address)

    for _ in range(3):
        iteration()
    before = device.emulated.counters()
    for _ in range(5):
        iteration()
    assert device.emulated.counters() == before
    assert pool.stats()["reserved_bytes"]["all"]["peak"] <= 1.02 * sum(sizes) + 8 * MIB


def test_a_dropped_pool_leaves_nothing(device, config):
    pool = make_pool(device, **config)
    for n in (1, 5, 9):
        pool.malloc(n * MIB, 0)
    pool.record_stream(pool.malloc(MIB, 0), 4)
    del pool
    gc.collect()
    assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0
    assert device.violations() == []


@pytest.mark.parametrize("options, part", [({"limt": 3}, "limit, backing"), ({"backing": "heap"}, "contiguous"), ({"limit": -1}, "0 to")])
def test_wrong_options_name_the_right_ones(device, options, part):
    with pytest.raises(InvalidArgument, match=part):
        make_pool(device, **options)


def test_wrong_mobility(device):
    with pytest.raises(InvalidArgument, match="temporary"):
        make_pool(device).malloc(5, 0, "sticky")


def test_debug_mode_keeps_every_block_apart():
    """One mapping a block, with unmapped guard pages around it."""
    device = Device(capacity=256 * MIB)
    pool = make_pool(device, debug=True)
    model = Model(device, pool)
    blocks = sorted((model.malloc(n, 0) for n in (100, 5000, 3 * MIB, 512)), key=lambda h: h.address)
    for low, high in zip(blocks, blocks[1:]):
        between = range(low.address + low.size, high.address)
        assert len(between) > 0
        assert device.checked.read(low.address + low.size, 8)[0] != CODES.ok
        assert device.checked.read(low.address, low.size + 8)[0] != CODES.ok
    device.checked.clear_violations()  # those reads were violations on purpose
    model.end()


@pytest.mark.parametrize("first", [1, 3 * MIB, 20 * MIB])
@pytest.mark.parametrize("alias", [True, False])
def test_a_full_device_serves_what_lies_idle_with_what_is_left(alias, first):
    """What the device refuses as one piece is made of idle granules and of what it still has."""
    device = Device(capacity=64 * MIB)
    pool = make_pool(device, alias=alias)
    pool.free(pool.malloc(first, 0))
    block = pool.malloc(64 * MIB, 0)
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 64 * MIB
    pool.free(block)
    assert pool.audit() == [] and device.violations() == []


def test_a_request_beyond_all_addresses_is_out_of_memory():
    pool = _core.pool.Pool(_core.driver.make_emulated(capacity=1 << 50, bytes=False))
    with pytest.raises(OutOfMemory):
        pool.malloc(1 << 45, 0)
    pool.free(pool.malloc(3 * MIB, 0))
    assert pool.audit() == []


@pytest.mark.parametrize("smallest, largest, limit", [(24, 200, 0), (24, 200, 2200 * MIB), (24, 200, 2600 * MIB),
                                                     (100, 900, 0)])
def test_sizes_that_never_recur_get_more_room_but_a_limit_stands(smallest, largest, limit):
    """Where every large block has another size the pool stitches less and grows further: 25 % at the most, or not at all."""
    pool = make_pool(Device(capacity=16 << 30, bytes=False), limit=limit)
    choose, held, occupied, peak = random.Random(5), [], 0, 0
    for _ in range(1000):
        size = choose.randrange(smallest, largest) * MIB + choose.randrange(2048) * UNIT
        while occupied + size > 2000 * MIB:
            address, freed = held.pop(choose.randrange(len(held)))
            pool.free(address)
            occupied -= freed
        held.append((pool.malloc(size, 0), size))
        occupied += size
        peak = max(peak, occupied)
        reserved = pool.stats()["reserved_bytes"]["all"]["current"]
        assert reserved <= (limit or 1.25 * peak + 2 * MIB)
    if not limit or limit > 1.25 * peak:
        assert reserved > 1.05 * peak, "it stitched on and on"
    assert pool.audit() == []


@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}], ids=["vmm", "alias_off", "contiguous"])
def test_what_a_callback_frees_on_another_stream_is_waited_for(options):
    """Its last work has not ended when the callback returns: the host waits before memory is said to be out."""
    device = Device()
    device.emulated.set_lag(50_000_000)
    pool = make_pool(device, limit=64 * MIB, **options)
    cache = [pool.malloc(8 * MIB, 1) for _ in range(4)]
    held = pool.malloc(24 * MIB, 0)
    bytes_freed = []

    def reclaim(wanted):
        for block in cache:
            pool.free(block)
        bytes_freed.append(len(cache) * 8 * MIB)
        cache.clear()
        return bytes_freed[-1]

    pool.set_reclaim_callback(reclaim)
    other = pool.malloc(30 * MIB, 0)
    assert bytes_freed == [32 * MIB] and pool.stats()["num_ooms"] == 0
    for block in (held, other):
        pool.free(block)
    assert pool.audit() == [] and device.violations() == []
