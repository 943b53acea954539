"""The contiguous backing: one best fit over one range, slabs that are taken, told of, limited and given back.

Every test asks the device how much is held: slabs are physical, marks are not.
"""

import pytest

from devices import CODES, GIB, Device, make_pool
from pool_model import MIB, UNIT

from dymem.errors import DriverError, InvalidArgument, OutOfMemory


def slabs(device, capacity=GIB, **options):
    device = device or Device(capacity=capacity, bytes=False)
    return device, make_pool(device, backing="contiguous", **options)


def held(pool):
    return pool.stats()["slab_bytes"]["current"]


def reserved(pool):
    return pool.stats()["reserved_bytes"]["all"]["current"]


# --- how large slabs are


def test_nothing_is_taken_before_the_first_request():
    device, pool = slabs(None)
    assert device.emulated.physical_in_use() == 0
    pool.malloc(1, 0)
    assert device.emulated.physical_in_use() == held(pool) > 0


def test_a_quarter_of_what_is_free_stays_with_other_tenants():
    device = Device(capacity=GIB, bytes=False)
    device.emulated.take_memory(600 * MIB)
    _, pool = slabs(device)
    free = device.free_memory()
    pool.malloc(1, 0)
    assert held(pool) == free * 3 // 4
    assert device.free_memory() == free // 4


@pytest.mark.parametrize("limit", [2 * MIB, 34 * MIB, 100 * MIB + 1, 900 * MIB])
def test_a_limit_is_one_slab_of_that_size(limit, capfd):
    device, pool = slabs(None, limit=limit)
    while reserved(pool) + 2 * MIB <= limit:
        pool.malloc(2 * MIB, 0)
    assert held(pool) == limit // (2 * MIB) * 2 * MIB == device.emulated.physical_in_use()
    with pytest.raises(OutOfMemory):
        pool.malloc(2 * MIB, 0)
    assert pool.stats()["segment"]["all"]["current"] == 1 and capfd.readouterr().err == ""


def test_a_request_larger_than_three_quarters_gets_its_slab():
    device, pool = slabs(None)
    pool.malloc(1000 * MIB, 0)
    assert held(pool) == 1000 * MIB


@pytest.mark.parametrize("size", [GIB + 1, 1 << 40, 1 << 46])
def test_what_no_slab_can_hold_is_out_of_memory_and_takes_nothing(size):
    device, pool = slabs(None)
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(size, 0)
    assert caught.value.figures["reserved"] == 0 and device.emulated.physical_in_use() == 0
    pool.free(pool.malloc(MIB, 0))
    assert pool.audit() == [] and device.violations() == []


# --- where blocks go


def test_reserved_is_how_far_up_the_slab_was_used():
    _, pool = slabs(None)
    blocks = [pool.malloc(n, 0) for n in (1, 700, 3 * MIB + 5)]
    mark = 512 + 1024 + 3 * MIB + 512
    assert reserved(pool) == mark and blocks[2] + 3 * MIB + 512 - blocks[0] == mark
    for block in blocks:
        pool.free(block)
    assert reserved(pool) == mark
    pool.free(pool.malloc(mark, 0))
    assert reserved(pool) == mark
    pool.free(pool.malloc(mark + 1, 0))
    assert reserved(pool) == mark + 512


def holes(pool, sizes, stream=0, between=UNIT):
    """Free runs of these sizes in address order, each behind a held block; a held one at the end."""
    free = []
    for size in sizes:
        pool.malloc(between, stream)
        free.append(pool.malloc(size, stream))
    pool.malloc(between, stream)
    for block in free:
        pool.free(block)
    return free


def test_the_smallest_hole_that_holds_it_the_lowest_of_several():
    _, pool = slabs(None)
    at = holes(pool, [9 * MIB, 4 * MIB, 6 * MIB, 4 * MIB, 5 * MIB])
    mark = reserved(pool)
    assert [pool.malloc(n * MIB, 0) for n in (4, 4, 5, 6, 7)] == [at[1], at[3], at[4], at[2], at[0]]
    assert reserved(pool) == mark


def test_a_hole_of_any_size_comes_before_the_run_at_the_mark():
    """That run goes on as long as the slab does: what is taken of it is missed by larger requests."""
    _, pool = slabs(None)
    hole, _, last = pool.malloc(64 * MIB, 0), pool.malloc(1, 0), pool.malloc(8 * MIB, 0)
    pool.free(hole)
    pool.free(last)
    assert pool.malloc(4 * MIB, 0) == hole
    assert pool.malloc(8 * MIB, 0) == last, "unless it fits exactly"
    pool.free(last)
    mark = reserved(pool)
    assert pool.malloc(70 * MIB, 0) == last, "what fits nowhere begins there"
    assert reserved(pool) == mark + 62 * MIB


def test_small_blocks_lie_in_the_same_range():
    _, pool = slabs(None)
    (hole,) = holes(pool, [MIB])
    assert pool.malloc(100, 0) == hole
    assert pool.malloc(MIB - 512, 0) == hole + 512


# --- further slabs


def test_further_slabs_come_with_one_line_each_and_no_block_spans_two(capfd):
    device, pool = slabs(None)
    blocks = [pool.malloc(100 * MIB, 0) for _ in range(7)]
    assert pool.stats()["segment"]["all"]["current"] == 1 and capfd.readouterr().err == ""
    blocks.append(pool.malloc(100 * MIB, 0))  # 68 MiB are left of the first
    assert pool.stats()["segment"]["all"]["current"] == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("dymem: ") and "768.0 MiB" in line and "128.0 MiB" in line and "limit" in line
    assert held(pool) == device.emulated.physical_in_use() == 896 * MIB
    assert reserved(pool) == 800 * MIB
    small = pool.malloc(50 * MIB, 0)  # in the slab with the least room that holds it
    assert abs(small - blocks[6]) == 100 * MIB
    assert pool.audit() == [] and device.violations() == []


def test_the_next_slab_needs_no_more_than_there_is(capfd):
    device, pool = slabs(None)
    pool.malloc(768 * MIB, 0)
    pool.malloc(250 * MIB, 0)  # more than half of the rest: exactly that
    assert held(pool) == 1018 * MIB
    with pytest.raises(OutOfMemory):
        pool.malloc(8 * MIB, 0)
    assert held(pool) == 1018 * MIB and pool.audit() == []


def test_a_limit_bounds_all_slabs_together():
    device, pool = slabs(None, limit=100 * MIB)
    pool.malloc(90 * MIB, 0)
    pool.set_limit(150 * MIB)
    pool.malloc(40 * MIB, 0)  # 50 MiB more
    assert held(pool) == 150 * MIB
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(12 * MIB, 0)
    assert caught.value.figures["limit"] == 150 * MIB and caught.value.figures["reserved"] == 130 * MIB
    pool.malloc(10 * MIB, 0)


def test_a_limit_lowered_below_the_slab_stops_the_mark():
    device, pool = slabs(None)
    first = pool.malloc(100 * MIB, 0)
    pool.set_limit(120 * MIB)
    pool.malloc(20 * MIB, 0)
    with pytest.raises(OutOfMemory):
        pool.malloc(512, 0)
    pool.set_limit(50 * MIB)
    with pytest.raises(OutOfMemory):
        pool.malloc(512, 0)
    pool.free(first)
    assert pool.malloc(60 * MIB, 0) == first, "what is reserved already may be used"
    pool.set_limit(0)
    pool.malloc(200 * MIB, 0)
    assert pool.audit() == [] and device.emulated.physical_in_use() == held(pool)


# --- giving back


def test_trim_gives_wholly_idle_slabs_back():
    device, pool = slabs(None)
    low = pool.malloc(700 * MIB, 0)
    high = pool.malloc(100 * MIB, 0)
    assert pool.trim() == 0
    pool.free(low)
    assert pool.trim() == 700 * MIB
    assert held(pool) == device.emulated.physical_in_use() == 128 * MIB
    pool.free(high)
    assert pool.trim() == 100 * MIB
    assert held(pool) == reserved(pool) == device.emulated.physical_in_use() == 0
    pool.free(pool.malloc(900 * MIB, 0))
    assert pool.audit() == [] and device.violations() == []


def test_a_pinned_slab_stays():
    """Registered with NCCL, exported through IPC, captured: the whole slab is."""
    device, pool = slabs(None)
    block = pool.malloc(MIB, 0)
    other = pool.malloc(MIB, 0)
    pool.pin(block)
    pool.free(other)
    assert pool.trim() == 0 and held(pool) == 768 * MIB
    pool.unpin(block)
    pool.free(block)
    assert pool.trim() == 2 * MIB and held(pool) == 0


def test_work_under_way_is_waited_for_before_a_slab_goes():
    device, pool = slabs(None)
    block = pool.malloc(MIB, 5)
    pool.malloc(1, 6)
    device.set_busy_until(5, 1_000_000)
    pool.free(block)
    pool.free(pool.malloc(MIB, 6))
    pool.trim()
    assert device.emulated.now() >= 1_000_000 and pool.audit() == []


def test_an_idle_slab_makes_room_for_a_larger_one():
    """Both do not fit the device; the idle one goes by itself."""
    device, pool = slabs(None)
    pool.free(pool.malloc(700 * MIB, 0))
    pool.malloc(900 * MIB, 0)
    assert held(pool) == 900 * MIB and pool.stats()["num_device_free"] == 1 and pool.stats()["num_ooms"] == 0


# --- failures


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_refused_slab_is_tried_smaller(nth):
    """Other tenants were faster, or what is free lies in pieces."""
    device, pool = slabs(None)
    device.faulty.fail_nth(nth, False, CODES.out_of_memory)
    pool.malloc(2 * MIB, 0)
    assert held(pool) == (672 * MIB if nth == 1 else 768 * MIB) == device.emulated.physical_in_use()
    pool.malloc(760 * MIB, 0) if nth > 1 else pool.malloc(350 * MIB, 0)
    assert pool.audit() == []


@pytest.mark.parametrize("code, error", [(CODES.out_of_memory, OutOfMemory), (CODES.failed, DriverError)])
@pytest.mark.parametrize("already", [0, 1])
def test_a_slab_that_cannot_be_had(code, error, already):
    device, pool = slabs(None)
    blocks = [pool.malloc(700 * MIB, 0) for _ in range(already)]
    device.faulty.disarm()
    device.faulty.fail_nth(1, True, code)
    for _ in range(3):
        with pytest.raises(error):
            pool.malloc(100 * MIB, 0)
    assert pool.audit() == [] and device.emulated.physical_in_use() == held(pool)
    device.faulty.disarm()
    blocks.append(pool.malloc(100 * MIB, 0))
    for block in blocks:
        pool.free(block)
    pool.trim()
    assert device.emulated.physical_in_use() == 0 and device.violations() == []


def test_a_capture_takes_from_the_slab_and_never_a_slab():
    device, pool = slabs(None)
    pool.free(pool.malloc(MIB, 0))
    device.emulated.set_capturing(0, True)
    pool.malloc(300 * MIB, 0)  # the mark rises without a call of the driver
    with pytest.raises(InvalidArgument, match="captured"):
        pool.malloc(600 * MIB, 0)
    assert pool.trim() == 0
    device.emulated.set_capturing(0, False)
    assert device.violations() == [] and pool.audit() == []


def test_addresses_inside_blocks_are_found_and_those_above_the_mark_are_nobodys():
    device, pool = slabs(None)
    blocks = [pool.malloc(17 * MIB + 512 * i, 0) for i in range(5)]
    for i, block in enumerate(blocks):
        for inside in (block, block + 16 * MIB, block + 17 * MIB + 512 * i - 1):
            assert pool.find(inside)["address"] == block
    assert pool.find(blocks[-1] + 40 * MIB) is None and pool.owns(blocks[-1] + 40 * MIB)
    assert pool.find(blocks[0] - 1) is None and not pool.owns(blocks[0] + 800 * MIB)
