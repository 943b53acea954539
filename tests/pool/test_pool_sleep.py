"""Sleeping and waking (W1 to W5 of allocator/pool/sleep.hpp), through bytes: what a block held it holds again, at the
same address, whatever aliases and streams it was reached by; and the device has everything back meanwhile."""

import contextlib
import random

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB, Model

from dymem import _core
from dymem.errors import DriverError, InvalidArgument, OutOfMemory, SleepError

KIB = 1 << 10


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def pool(device):
    return make_pool(device)


@pytest.fixture
def model(device, pool):
    return Model(device, pool)


class Tagged:
    """What `with dymem.tagged(name)` does, on the core."""

    def __init__(self, name):
        self.number = _core.pool.tag_number(name)

    def __enter__(self):
        self.before = _core.pool.set_current_tag(self.number)

    def __exit__(self, *_):
        _core.pool.set_current_tag(self.before)


def build(model, streams=(0, 7, 8)):
    """Small and large blocks on several streams, with holes between and a block stitched over them."""
    held = [model.malloc(n * 700 + 512, streams[n % len(streams)]) for n in range(12)]
    large = [model.malloc(n * MIB // 2 + 512, streams[0], m) for n, m in
             zip((3, 9, 5, 7, 12, 4), ("untagged", "temporary", "movable", "reclaimed", "untagged", "movable"))]
    for block in large[::2] + held[::3]:
        model.free(block)
    stitched = [model.malloc(11 * MIB, 0), model.malloc(6 * MIB, 0)]
    side = model.malloc(3 * MIB, 7)
    model.record_stream(side, 8)
    model.enqueue(8, 100)
    assert any(b["stitched"] for b in model.pool.blocks()), "nothing is stitched: the test means less"
    return stitched


def nap(model, **options):
    """Sleeps, looks, wakes."""
    before = model.device.emulated.physical_in_use()
    report = model.pool.sleep(**options)
    model.follow_clock()
    assert model.pool.audit() == [] and model.device.violations() == []
    return before, report


def check_asleep(model):
    stats = model.pool.stats()
    for part in ("all", "small", "large"):
        assert stats["reserved_bytes"][part]["current"] == 0
        assert stats["segment"][part]["current"] == 0
        assert stats["inactive_split_bytes"][part]["current"] == 0
    assert model.device.emulated.physical_in_use() == 0
    assert model.device.emulated.mappings() == 0


def test_everything_sleeps_and_comes_back(model):
    build(model)
    live = sum(h.size for h in model.live.values())
    before, report = nap(model)
    check_asleep(model)
    assert report["copied_bytes"] == live and report["dropped_bytes"] == 0
    assert live <= report["memory_bytes"] <= before
    assert model.pool.stats()["asleep_bytes"] == report["memory_bytes"]
    assert model.pool.stats()["host_bytes"] >= live
    woken = model.pool.wake()
    assert woken["memory_bytes"] == report["memory_bytes"] and woken["copied_bytes"] == live
    assert model.pool.stats()["asleep_bytes"] == 0
    model.check_blocks()
    for held in model.live.values():
        model.verify(held)
    model.check(pending_exact=True)
    model.end()


def test_the_second_sleep_pins_nothing_new(model):
    build(model)
    nap(model)
    pinned = model.pool.stats()["host_bytes"]
    for _ in range(3):
        model.pool.wake()
        nap(model)
        assert model.pool.stats()["host_bytes"] == pinned
    assert model.pool.free_host_slabs() == 0, "they hold contents"
    model.pool.wake()
    assert model.pool.free_host_slabs() == pinned
    assert model.pool.stats()["host_bytes"] == 0
    nap(model)
    model.pool.wake()
    model.end()


def test_dropping_copies_nothing_and_keeps_the_addresses(model):
    build(model)
    live = sum(h.size for h in model.live.values())
    _, report = nap(model, keep=[], drop_untagged=True)
    check_asleep(model)
    assert report["copied_bytes"] == 0 and report["dropped_bytes"] == live
    assert model.pool.stats()["host_bytes"] == 0
    model.pool.wake()
    for held in model.live.values():
        model.device.write(held.address, b"\1" * held.size)  # every address is usable again
        held.filled = False
    model.check(pending_exact=True)
    model.end()


def test_a_sleeping_pool_hands_out_nothing_and_takes_back(model):
    stitched = build(model)
    nap(model)
    with pytest.raises(SleepError, match="dymem.wake"):
        model.pool.malloc(1024)
    with pytest.raises(SleepError):
        model.pool.malloc(64 * MIB, 99)
    # Freed while asleep: not read (there is nothing to read), not restored, whole granules not even made again.
    before = model.pool.stats()
    gone = [stitched[0], *[h for h in model.live.values() if h not in stitched][::2]]
    for held in gone:
        held.filled = False
        model.free(held)
        assert model.pool.find(held.address) is None
        assert model.pool.audit() == []
    with pytest.raises(InvalidArgument):
        model.pool.free(gone[0].address)
    check_asleep(model)
    assert model.pool.trim() == 0
    freed = sum(h.size for h in gone)
    assert model.pool.stats()["pending_bytes"]["current"] == freed
    woken = model.pool.wake()
    assert woken["copied_bytes"] == before["allocated_bytes"]["all"]["current"] - freed
    assert woken["memory_bytes"] < before["asleep_bytes"], "the granules of the large freed block stay with the device"
    assert model.pool.stats()["pending_bytes"]["current"] == 0
    for held in model.live.values():
        model.verify(held)
    model.check(pending_exact=True)
    model.malloc(9 * MIB, 0)
    model.malloc(2 * MIB, 8)
    model.end()


def test_all_freed_while_asleep(model):
    build(model)
    nap(model)
    for held in list(model.live.values()):
        held.filled = False
        model.free(held)
    woken = model.pool.wake()
    assert woken["memory_bytes"] == 0 and woken["copied_bytes"] == 0
    assert model.device.emulated.physical_in_use() == 0
    model.check(pending_exact=True)
    model.malloc(5 * MIB, 0)
    model.end()


def test_twice_is_once(model):
    build(model)
    assert not any(model.pool.wake().values())
    nap(model)
    again = model.pool.sleep()
    assert again["memory_bytes"] == again["copied_bytes"] == 0
    check_asleep(model)
    model.pool.wake()
    assert model.pool.wake()["memory_bytes"] == 0
    model.end()


def test_an_empty_pool_sleeps_too(model):
    report = model.pool.sleep()
    assert report["memory_bytes"] == 0
    with pytest.raises(SleepError):
        model.pool.malloc(1)
    model.pool.wake()
    model.malloc(1, 0)
    model.end()


def test_pending_work_is_waited_for(model):
    held = model.malloc(4 * MIB, 3)
    model.enqueue(3, 1_000_000)
    model.enqueue(5, 2_000_000)  # a stream that the pool was never told of
    nap(model)
    assert model.now >= 2_000_000
    model.pool.wake()
    model.verify(held)
    model.end()


def test_refused_during_a_capture(model):
    build(model)
    physical = model.device.emulated.physical_in_use()
    model.device.emulated.set_capturing(7, True)
    with pytest.raises(SleepError, match="captur"):
        model.pool.sleep()
    model.device.emulated.set_capturing(7, False)
    assert model.device.emulated.physical_in_use() == physical
    nap(model)
    model.device.emulated.set_capturing(7, True)
    with pytest.raises(SleepError, match="captur"):
        model.pool.wake()
    model.device.emulated.set_capturing(7, False)
    model.pool.wake()
    model.end()


@pytest.mark.parametrize("options, why", [({"backing": "contiguous"}, "backing:vmm"), ({"debug": True}, "debug:off")])
def test_refused_where_addresses_cannot_be_kept(device, options, why):
    model = Model(device, make_pool(device, **options))
    held = model.malloc(3 * MIB, 0)
    with pytest.raises(SleepError, match=why):
        model.pool.sleep()
    model.verify(held)
    model.pool.free(held.address)


def test_a_pinned_block_keeps_the_pool_awake(model):
    build(model)
    held = next(iter(model.live.values()))
    model.pool.pin(held.address)
    with pytest.raises(SleepError, match="unpin"):
        model.pool.sleep()
    model.check(pending_exact=True)
    model.pool.unpin(held.address)
    nap(model)
    model.pool.wake()
    model.end()


def test_another_tenant_took_the_memory(model):
    build(model)
    _, report = nap(model)
    free = model.device.free_memory()
    model.device.emulated.take_memory(free - 4 * MIB)
    for _ in range(3):
        with pytest.raises(OutOfMemory, match="stays asleep") as caught:
            model.pool.wake()
        assert caught.value.figures["requested"] == report["memory_bytes"]
        check_asleep(model)
        assert model.pool.audit() == []
    model.device.emulated.give_memory(free - 4 * MIB)
    model.pool.wake()
    for held in model.live.values():
        model.verify(held)
    model.check(pending_exact=True)
    model.end()


def test_the_limit_counts_when_waking(device):
    model = Model(device, make_pool(device, limit=64 * MIB))
    build(model)
    nap(model)
    model.pool.set_limit(4 * MIB)
    with pytest.raises(OutOfMemory, match="limit"):
        model.pool.wake()
    check_asleep(model)
    model.pool.set_limit(64 * MIB)
    model.pool.wake()
    model.check(pending_exact=True)
    model.end()


def test_a_limit_below_what_is_held_does_not_keep_what_was_freed_asleep(device):
    model = Model(device, make_pool(device))
    blocks = engine(model)
    nap(model, tags=["kv"], keep=[])
    forget(blocks["kv"])
    for held in blocks["kv"]:
        model.free(held)
    model.pool.set_limit(2 * MIB)  # less than what is awake
    assert model.pool.wake()["memory_bytes"] == 0
    assert model.pool.stats()["asleep_bytes"] == 0
    model.pool.set_limit(0)
    model.end()


def test_remapping_pool_sleeps_too(device):
    model = Model(device, make_pool(device, alias=False))
    blocks = [model.malloc(n * MIB, 0) for n in (3, 5, 9, 2)]
    model.free(blocks[1])
    model.malloc(7 * MIB, 0)
    nap(model)
    check_asleep(model)
    model.pool.wake()
    model.check()
    model.end()


# --- tags


def engine(model):
    """Weights, a KV cache, and what has no tag, as a serving engine allocates them."""
    blocks = {"weights": [], "kv": [], "other": []}
    blocks["other"].append(model.malloc(300 * KIB, 0))
    with Tagged("weights"):
        blocks["weights"] += [model.malloc(n, 0) for n in (5 * MIB, 2 * KIB, 24 * MIB, 700 * KIB, 9 * MIB)]
    with Tagged("kv"):
        blocks["kv"] += [model.malloc(64 * MIB, 0), model.malloc(30 * MIB, 0), model.malloc(10 * KIB, 0)]
    blocks["other"].append(model.malloc(6 * MIB, 0))
    return blocks


def forget(blocks):
    for held in blocks:
        held.filled = False


def size(blocks):
    return sum(h.size for h in blocks)


def test_weights_are_kept_and_the_cache_is_dropped(model):
    blocks = engine(model)
    _, report = nap(model, keep=["weights"])
    check_asleep(model)
    assert report["copied_bytes"] == size(blocks["weights"]) + size(blocks["other"])
    assert report["dropped_bytes"] == size(blocks["kv"])
    forget(blocks["kv"])
    # First the weights (and what has no tag), then room for new ones, then the cache: the order of weight updates.
    first = model.pool.wake(tags=["weights"])
    assert first["copied_bytes"] == report["copied_bytes"]
    assert 0 < model.pool.stats()["asleep_bytes"] == report["memory_bytes"] - first["memory_bytes"]
    for held in blocks["weights"] + blocks["other"]:
        model.verify(held)
    fresh = model.malloc(17 * MIB, 0)
    assert model.pool.audit() == []
    second = model.pool.wake(tags=["kv"])
    assert second["copied_bytes"] == 0
    assert first["memory_bytes"] + second["memory_bytes"] == report["memory_bytes"]
    model.verify(fresh)
    for held in blocks["kv"]:
        model.device.write(held.address, b"\2" * held.size)
    model.check(pending_exact=True)
    model.end()


def test_only_the_cache_sleeps_while_others_work(model):
    blocks = engine(model)
    physical = model.device.emulated.physical_in_use()
    _, report = nap(model, tags=["kv"], keep=["weights"])
    assert report["copied_bytes"] == 0
    assert report["memory_bytes"] >= 64 * MIB
    assert report["dropped_bytes"] + report["stayed_bytes"] == size(blocks["kv"])
    assert model.device.emulated.physical_in_use() == physical - report["memory_bytes"]
    forget(blocks["kv"])
    # Training goes on in the memory that the cache gave up, and never touches a sleeping address.
    rng = random.Random(1)
    mine = []
    for _ in range(300):
        if mine and rng.random() < 0.5:
            model.free(mine.pop(rng.randrange(len(mine))))
        else:
            mine.append(model.malloc(rng.choice((600, 90 * KIB, MIB, 3 * MIB, 11 * MIB)), rng.choice((0, 4))))
        assert model.device.violations() == []
    assert model.pool.audit() == []
    model.pool.trim()
    assert model.pool.audit() == []
    for held in mine:
        model.free(held)
    woken = model.pool.wake()
    assert woken["memory_bytes"] == report["memory_bytes"]
    model.check()
    for held in blocks["weights"] + blocks["other"]:
        model.verify(held)
    model.end()


def test_one_tag_after_the_other_then_all(model):
    blocks = engine(model)
    nap(model, tags=["kv"], keep=["weights"])
    nap(model, tags=["weights"])
    nap(model)
    check_asleep(model)
    model.pool.wake(tags=[])  # what has no tag, and no more than its granules
    assert model.pool.stats()["asleep_bytes"] >= 64 * MIB
    for held in blocks["other"]:
        model.verify(held)
    model.pool.wake()
    forget(blocks["kv"])
    for held in blocks["weights"]:
        model.verify(held)
    model.check(pending_exact=True)
    model.end()


def test_freed_while_its_tag_sleeps(model):
    blocks = engine(model)
    nap(model, tags=["kv"], keep=[])
    forget(blocks["kv"])
    for held in blocks["kv"]:
        model.free(held)
    assert model.pool.audit() == []
    model.pool.wake(tags=["weights"])  # wakes nothing of weight, yet what nothing needs any more is forgotten
    assert model.pool.stats()["pending_bytes"]["current"] == 0
    assert model.pool.stats()["asleep_bytes"] == 0
    model.check(pending_exact=True)
    model.end()


def test_tags_are_few(model):
    assert _core.pool.tag_number("weights") == _core.pool.tag_number("weights") != _core.pool.tag_number("kv")
    with pytest.raises(InvalidArgument):
        _core.pool.tag_number("")
    with pytest.raises(SleepError), Tagged("kv"):
        model.pool.sleep()
        model.pool.malloc(5)
    model.pool.wake()


def test_host_memory_is_short():
    """The first host_alloc fails: nothing changes, and the slabs of the attempt go back."""
    for nth in range(1, 60):  # in a pool of its own: what the calls before it did would change the numbers
        device = Device()
        model = Model(device, make_pool(device))
        build(model)
        device.faulty.fail_nth(nth, False, CODES.out_of_memory)
        try:
            model.pool.sleep()
        except SleepError as error:
            assert "pinned host memory" in str(error)
            device.faulty.disarm()
            model.follow_clock()
            model.check(pending_exact=True)
            assert model.pool.stats()["host_bytes"] == 0
            model.end()
            return
        except DriverError:
            pass  # of another call
    pytest.fail("host memory was never asked for")


def test_a_pool_knows_the_tags_that_it_gave(pool):
    """Not those that were only entered, or whose request failed: a misspelt name would drop what it was to keep."""
    for name in ("entered only", "gone since", "refused"):
        with Tagged(name) as _, pytest.raises(OutOfMemory) if name == "refused" else contextlib.nullcontext():
            if name == "gone since":
                pool.free(pool.malloc(5000, 0))
            elif name == "refused":
                pool.malloc(1 << 40, 0)
    given = {name: pool.gave_tag(_core.pool.tag_number(name)) for name in ("entered only", "gone since", "refused")}
    assert given == {"entered only": False, "gone since": True, "refused": False} and not pool.gave_tag(0)
