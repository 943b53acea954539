"""Absurd arguments of every call of the pool: a TypeError or InvalidArgument in a sentence, and a pool that goes on."""

import math

import pytest

from devices import Device, make_pool
from pool_model import MIB

from dymem import _core
from dymem.errors import InvalidArgument, OutOfMemory

class Thing:
    def __repr__(self) -> str:  # names of tests must not have addresses in them
        return "thing"


THING = Thing()
NO_INT = [None, 1.5, "x", b"x", [], {}, math.nan, math.inf, THING]
NOT_IN_64_BITS = [-1, 1 << 64, 1 << 200]


@pytest.fixture
def device():
    return Device()


def calls(pool, block):
    """Every call that takes a number, on one argument."""
    return {
        "malloc bytes": lambda n: pool.malloc(n, 0), "malloc stream": lambda n: pool.malloc(1, n), "free": pool.free,
        "record_stream address": lambda n: pool.record_stream(n, 0), "pin": pool.pin, "unpin": pool.unpin,
        "record_stream stream": lambda n: pool.record_stream(block, n), "set_limit": pool.set_limit,
        "find": pool.find, "owns": pool.owns, "largest_free": pool.largest_free,
    }


@pytest.mark.parametrize("value", NO_INT + NOT_IN_64_BITS, ids=repr)
def test_what_is_no_number_of_64_bits_is_refused_by_every_call(device, value):
    pool = make_pool(device)
    block = pool.malloc(MIB, 0)
    for name, call in calls(pool, block).items():
        with pytest.raises(InvalidArgument if value in NOT_IN_64_BITS else TypeError, match="must be") as caught:
            call(value)
        assert "\n" not in str(caught.value), name
    assert pool.audit() == [] and pool.limit() == 0 and pool.stats()["allocation"]["all"]["allocated"] == 1
    pool.free(block)


@pytest.mark.parametrize("key", ["limit", "backing", "alias", "wait", "debug", "grow_ratio", "grow_slack"])
@pytest.mark.parametrize("value", [None, b"x", [], {}, math.nan, THING], ids=repr)
def test_options_of_the_wrong_kind_are_named(device, key, value):
    with pytest.raises(TypeError, match=f"^{key} must be"):
        make_pool(device, **{key: value})


@pytest.mark.parametrize("ratio", [-1, -1e-9, 1.01, 1 << 64, math.inf])
def test_a_ratio_that_would_overflow_is_refused(device, ratio):
    with pytest.raises(InvalidArgument, match="0 to 1"):
        make_pool(device, grow_ratio=ratio)


@pytest.mark.parametrize("slack", [1 << 46, (1 << 63) + 1, (1 << 64) - 1])
def test_a_slack_without_end_means_growing_before_stitching(slack):
    """The budget must not wrap around."""
    pool = make_pool(Device(bytes=False), grow_slack=slack)
    blocks = [pool.malloc(16 * MIB, 0) for _ in range(16)]
    for block in blocks[::2]:
        pool.free(block)
    pool.malloc(100 * MIB, 0)
    assert pool.stats()["num_stitches"] == 0 and pool.stats()["views"] == pool.stats()["segment"]["all"]["current"]


@pytest.mark.parametrize("callback", [1, -1.5, "x", [], THING], ids=repr)
def test_a_callback_that_cannot_be_called_is_refused_when_it_is_set(device, callback):
    pool = make_pool(device, limit=4 * MIB)
    with pytest.raises(TypeError, match="callable"):
        pool.set_reclaim_callback(callback)
    with pytest.raises(OutOfMemory):
        pool.malloc(8 * MIB, 0)


@pytest.mark.parametrize("told", [None, "x", 1.5, -1, 1 << 64], ids=repr)
def test_what_a_callback_returns_must_be_bytes(device, told):
    pool = make_pool(device, limit=4 * MIB)
    pool.set_reclaim_callback(lambda wanted: told)
    with pytest.raises((TypeError, InvalidArgument), match="what a reclaim callback returns must be"):
        pool.malloc(8 * MIB, 0)
    assert pool.audit() == []
    pool.free(pool.malloc(MIB, 0))


@pytest.mark.parametrize("tags", ["kv_cache", b"kv", [1], [None], 7, 1.5], ids=repr)
def test_tags_are_a_list_of_names(device, tags):
    pool = make_pool(device)
    block = pool.malloc(MIB, 0)
    for call in (lambda: pool.sleep(tags=tags), lambda: pool.sleep(keep=tags), lambda: pool.wake(tags=tags)):
        with pytest.raises(TypeError):
            call()
    assert pool.stats()["asleep_bytes"] == 0 and pool.audit() == []
    pool.free(block)


@pytest.mark.parametrize("name", [1, None, 1.5, ""], ids=repr)
def test_absurd_names_of_tags(name):
    with pytest.raises((TypeError, InvalidArgument)):
        _core.pool.tag_number(name)


@pytest.mark.parametrize("times", [1, 300])
def test_resets_in_any_state_keep_counters_true(device, times):
    pool = make_pool(device, limit=64 * MIB)
    for i in range(times):
        block = pool.malloc(i * 700, i % 3)
        pool.record_stream(block, 5)
        pool.reset_peak_stats()
        pool.free(block)
        pool.reset_accumulated_stats()
    stats = pool.stats()
    for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "allocation"):
        one = stats[name]["all"]
        assert one["current"] >= 0 and one["peak"] >= one["current"]
        assert min(one["allocated"], one["freed"]) >= 0, name
    assert pool.audit() == []
