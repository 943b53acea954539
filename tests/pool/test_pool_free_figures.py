"""What is free and stays free: statistics of free blocks, the last way out at a limit, and what the error then says."""

import random

import pytest

from devices import Device, make_pool
from pool_model import MIB

from dymem.errors import OutOfMemory

KINDS = ("all", "small", "large")


def free_figures(pool):
    stats = pool.stats()
    return {kind: stats["inactive_split_bytes"][kind] for kind in KINDS}


@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}], ids=["vmm", "remap", "contiguous"])
@pytest.mark.parametrize("seed", range(6))
def test_free_bytes_that_cannot_be_given_back_are_what_trimming_leaves(seed, options):
    rng = random.Random(seed)
    pool = make_pool(Device(bytes=False), **options)
    held = []
    for step in range(400):
        if held and rng.random() < 0.48:
            pool.free(held.pop(rng.randrange(len(held))))
        else:
            held.append(pool.malloc(rng.choice([rng.randrange(1, 900_000), rng.randrange(1, 40 * MIB)]), 0))
        if step % 80 == 79:
            figures = free_figures(pool)
            for kind in KINDS:
                figure = figures[kind]
                assert figure["peak"] >= figure["current"] == figure["allocated"] - figure["freed"] >= 0, kind
            assert figures["all"]["current"] == figures["small"]["current"] + figures["large"]["current"]
            pool.trim()
            assert {kind: figure["current"] for kind, figure in free_figures(pool).items()} == \
                {kind: figure["current"] for kind, figure in figures.items()}, "of each kind"
            stats = pool.stats()
            assert stats["reserved_bytes"]["all"]["current"] - stats["active_bytes"]["all"]["current"] == \
                figures["all"]["current"] == free_figures(pool)["all"]["current"]
    for address in held:
        pool.free(address)
    assert free_figures(pool)["all"]["current"] == 0, "all of it can be given back"


def test_at_the_limit_a_block_lies_among_small_ones_if_only_they_have_room():
    pool = make_pool(Device(), limit=2 * MIB)
    small = pool.malloc(1000, 0)
    large = pool.malloc(1500 * 1024, 0)
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(700 * 1024, 0)
    assert caught.value.figures["largest_free"] == 2 * MIB - 1024 - 1500 * 1024, "whole, and too small"
    pool.free(large)
    assert pool.malloc(600 * 1024, 0) and pool.audit() == []
    pool.free(small)
    assert pool.audit() == []


def test_during_a_capture_too_a_block_lies_where_there_is_room():
    device = Device()
    pool = make_pool(device, limit=30 * MIB)
    kept = [pool.malloc(3 * MIB, 0, mobility="reclaimed") for _ in range(10)]
    pool.free(kept[3])
    device.emulated.set_capturing(0, True)
    assert pool.malloc(3 * MIB, 0) == kept[3]
    device.emulated.set_capturing(0, False)
    assert pool.audit() == []


def test_at_the_limit_a_block_lies_among_reclaimed_ones_if_only_they_have_room():
    pool = make_pool(Device(), limit=30 * MIB)
    kept = [pool.malloc(3 * MIB, 0, mobility="reclaimed") for _ in range(10)]
    pool.free(kept[3])
    assert pool.malloc(3 * MIB, 0) == kept[3] and pool.audit() == []


@pytest.mark.parametrize("options, words", [
    ({"limit": 56 * MIB, "alias": False}, "this configuration does not join"),
    ({"limit": 56 * MIB}, "beside other blocks in pieces"),
])
def test_the_next_step_is_one_that_can_be_taken(options, words):
    pool = make_pool(Device(bytes=False), **options)
    blocks = [pool.malloc(5 * MIB + 1024, 0) for _ in range(11)]
    for address in blocks[1::2]:
        pool.free(address)
    with pytest.raises(OutOfMemory) as caught:
        pool.malloc(24 * MIB, 0)
    assert words in str(caught.value), str(caught.value)
    assert ("alias:on" in str(caught.value)) == (not options.get("alias", True))


def test_a_limit_below_one_granule_says_so():
    with pytest.raises(OutOfMemory, match="less than the 2.0 MiB that memory comes in"):
        make_pool(Device(), limit=2 * MIB - 1).malloc(1000, 0)


def test_a_further_slab_is_said_three_times_at_most(capfd):
    pool = make_pool(Device(bytes=False), backing="contiguous")
    kept = pool.malloc(1400 * MIB, 0)  # most of the first slab
    for _ in range(6):
        pool.free(pool.malloc(200 * MIB, 0))
        pool.trim()
    said = capfd.readouterr().err.splitlines()
    assert len([line for line in said if "no block spans two" in line]) == 3 and said[-1].endswith("(not said again)")
    pool.free(kept)
