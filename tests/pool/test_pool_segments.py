"""Where the pool's memory lies: Pool.segments(), and what the pool tells a recorder, agree after whatever was done.

The rules of EventSink (base/event.hpp): each byte appears at one address at a time, so that what has appeared and not
gone again is exactly what segments() lists; a block's free_completed comes once, after its free_requested.
"""

import random

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB

from dymem import _core
from dymem.errors import DymemError, OutOfMemory

CONFIGS = [
    pytest.param({}, id="vmm"),
    pytest.param({"grow_ratio": 0.0, "grow_slack": 0}, id="tight"),
    pytest.param({"alias": False}, id="remap"),
    pytest.param({"limit": 100 * MIB}, id="limit"),
    pytest.param({"backing": "contiguous"}, id="contiguous"),
    pytest.param({"debug": True}, id="debug"),
]
SIZES = (1, 700, 70_000, 900_000, 3 * MIB, 9 * MIB, 17 * MIB, 31 * MIB, 60 * MIB)


class Ranges:
    """Addresses that hold memory, as told; refuses what cannot be."""

    def __init__(self):
        self.held = {}

    def add(self, at, size):
        assert size > 0 and not self.meeting(at, size), f"{at:#x} appears twice"
        self.held[at] = size

    def meeting(self, at, size):
        return [a for a, n in self.held.items() if a < at + size and at < a + n]

    def cut(self, at, size):
        met = self.meeting(at, size)
        covered = sum(min(a + self.held[a], at + size) - max(a, at) for a in met)
        assert covered == size, f"{at:#x} goes and was not there"
        for a in met:
            n = self.held.pop(a)
            if a < at:
                self.held[a] = at - a
            if a + n > at + size:
                self.held[at + size] = a + n - at - size

    def joined(self):
        out = []
        for at in sorted(self.held):
            if out and out[-1][0] + out[-1][1] == at:
                out[-1] = (out[-1][0], out[-1][1] + self.held[at])
            else:
                out.append((at, self.held[at]))
        return out


class Told:
    """What an EventLog says, followed from the beginning."""

    def __init__(self, pool):
        self.pool, self.log = pool, _core.pool.EventLog()
        self.ranges, self.live, self.pending, self.lent = Ranges(), {}, {}, 0
        for segment in pool.segments():
            self.ranges.add(segment["address"], segment["size"])
            for block in segment["blocks"]:
                if block["state"] != "free":
                    known = self.live if block["state"] == "live" else self.pending
                    known[block["address"]] = block["requested"]
        pool.set_log(self.log)

    def follow(self):
        for what, at, size in self.log.take():
            if what in ("map", "lent_map"):
                self.ranges.add(at, size)
                self.lent += what == "lent_map"
            elif what in ("unmap", "lent_unmap"):
                self.ranges.cut(at, size)
            elif what == "alloc":
                assert at not in self.live and at not in self.pending
                self.live[at] = size
            elif what == "free_requested":
                assert self.live.pop(at) == size
                self.pending[at] = size
            else:
                assert self.pending.pop(at) == size

    def check(self):
        self.follow()
        segments, stats = self.pool.segments(), self.pool.stats()
        joined = Ranges()
        for segment in segments:
            joined.add(segment["address"], segment["size"])
            assert sum(b["size"] for b in segment["blocks"]) == segment["size"]
        assert self.ranges.joined() == joined.joined()
        assert sum(s["size"] for s in segments) == stats["reserved_bytes"]["all"]["current"] + stats["asleep_bytes"]
        blocks = {b["address"]: b for s in segments for b in s["blocks"] if b["state"] != "free"}
        for state, known in (("live", self.live), ("pending", self.pending)):
            assert {a: b["requested"] for a, b in blocks.items() if b["state"] == state} == known
        wanted = {b["address"]: b for b in self.pool.blocks() if b["state"] != "free"}
        assert {a: b["size"] for a, b in wanted.items()} == {a: b["size"] for a, b in blocks.items()}


def use(device, pool, draw, held, steps):
    for step in range(steps):
        device.advance_to(step * 1000 + use.time)
        act = draw.random()
        try:
            if act < 0.5 or not held:
                held.append(pool.malloc(draw.choice(SIZES) + draw.randrange(9), draw.choice((0, 0, 3))))
            elif act < 0.9:
                address = held.pop(draw.randrange(len(held)))
                if draw.random() < 0.2:
                    device.set_busy_until(7, step * 1000 + use.time + draw.choice((500, 90_000)))
                    pool.record_stream(address, 7)
                pool.free(address)
            elif act < 0.93:
                pool.trim()
            elif act < 0.95 and not pool_is_plain(pool):
                pool.sleep()
                if draw.random() < 0.5 and held:
                    pool.free(held.pop())
                pool.wake()
        except OutOfMemory:
            for address in [held.pop() for _ in range(len(held) // 2)]:
                pool.free(address)
        yield step
    use.time += steps * 1000


use.time = 0


def pool_is_plain(pool):
    """Neither slabs nor guarded blocks can sleep."""
    try:
        pool.sleep()
        pool.wake()
        return False
    except DymemError:
        return True


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_is_what_is_there(config, seed):
    use.time = 0
    device = Device(capacity=160 * MIB)
    pool = make_pool(device, **config)
    draw, held = random.Random(seed), []
    for _ in use(device, pool, draw, held, 40):
        pass  # before anyone listens
    told = Told(pool)
    for step in use(device, pool, draw, held, 250):
        if step % 3 == 0:
            told.check()
    told.check()
    assert told.lent > 0 or config.get("grow_slack") != 0, "nothing was stitched: the case shows little"
    for address in held:
        pool.free(address)
    device.advance_to(use.time + 10**9)
    pool.trim()
    told.check()
    assert told.live == {} and pool.audit() == [] and device.violations() == []


@pytest.mark.parametrize("config", CONFIGS)
def test_what_failed_is_not_told(config):
    """One driver call after another fails: what is told stays what is there."""
    use.time = 0
    device = Device(capacity=160 * MIB)
    pool = make_pool(device, **config)
    told, draw, held = Told(pool), random.Random(3), []
    for nth in range(1, 40):
        device.faulty.fail_nth(draw.randrange(1, 9), False, draw.choice((CODES.failed, CODES.out_of_memory)))
        try:
            for _ in use(device, pool, draw, held, 12):
                pass
        except DymemError:
            use.time += 12_000
        device.faulty.disarm()
        if told.pool.stats()["asleep_bytes"]:
            pool.wake()
        told.check()
    assert pool.audit() == [] and device.violations() == []


def test_a_recorder_can_take_the_place_of_another():
    device = Device()
    pool = make_pool(device)
    first, second = _core.pool.EventLog(), _core.pool.EventLog()
    assert not pool.replace_log(first, second), "first does not record here"
    pool.set_log(first)
    address = pool.malloc(5000, 0)
    assert pool.replace_log(first, second) and not pool.replace_log(first, second)
    pool.free(address)
    assert [e[0] for e in first.take()] == ["map", "alloc"]
    assert [e[0] for e in second.take()] == ["free_requested", "free_completed"]


def test_kept_granules_stay():
    device = Device()
    pool = make_pool(device, grow_ratio=0.0, grow_slack=0)
    held = [pool.malloc(n * MIB, 0) for n in (9, 30, 9, 30, 9)]
    pool.keep_granules()
    pool.free(held[1])
    pool.free(held[3])
    big = pool.malloc(58 * MIB, 0)
    assert not pool.find(big)["stitched"]
    reserved = pool.stats()["reserved_bytes"]["all"]["current"]
    pool.free(big)
    assert pool.trim() == 0 and pool.stats()["reserved_bytes"]["all"]["current"] == reserved
    again = pool.malloc(30 * MIB, 0)
    assert pool.stats()["reserved_bytes"]["all"]["current"] == reserved, "what stays is used again"
    pool.free(again)
    assert pool.audit() == []


SENTENCES = [
    (dict(requested=90 << 30, device_total=80 << 30, device_free=70 << 30), "alone is larger than this GPU"),
    (dict(requested=9 << 30, limit=8 << 30, device_total=80 << 30), "alone is larger than the limit"),
    (dict(requested=1 << 30, limit=8 << 30, live=2 << 30, private_pools=6 << 30, reserved=2 << 30, device_total=80 << 30,
          device_free=70 << 30), "Private pools hold most"),
    (dict(requested=2 << 30, limit=8 << 30, live=7 << 30, reserved=7 << 30, device_total=80 << 30, device_free=70 << 30),
     "does not fit under the limit"),
    (dict(requested=2 << 30, live=7 << 30, pending=3 << 30, reserved=10 << 30, device_total=10 << 30),
     "waiting for work on other streams"),
    (dict(requested=2 << 30, live=7 << 30, reserved=7 << 30, device_total=80 << 30, device_free=1 << 30),
     "72.00 GiB of the GPU belong to other processes"),
    (dict(requested=2 << 30, live=70 << 30, reserved=75 << 30, device_total=80 << 30, device_free=1 << 30),
     "5.00 GiB of what is reserved are free, but beside other blocks in pieces"),
    (dict(requested=2 << 30, live=70 << 30, reserved=75 << 30, device_total=80 << 30, device_free=1 << 30, shared=1),
     "stop sharing what need not be"),
    (dict(requested=2 << 30, live=70 << 30, reserved=75 << 30, device_total=80 << 30, device_free=1 << 30, joins=False),
     "in pieces that this configuration does not join: leave alias:on and avoid backing:contiguous"),
    (dict(requested=2 << 30, live=70 << 30, reserved=75 << 30, device_total=80 << 30, device_free=1 << 30, joins=False,
          kept=True), "since memory is registered by its address"),
    (dict(requested=512, limit=64 << 20, live=32 << 10, reserved=64 << 20, device_total=80 << 30, device_free=70 << 30,
          apart=True), "Under debug:on every block has memory of its own"),
    (dict(requested=2 << 30, live=78 << 30, reserved=78 << 30, device_total=80 << 30, device_free=1 << 30),
     "Use a smaller batch"),
]


@pytest.mark.parametrize("figures, step", SENTENCES, ids=[step for _, step in SENTENCES])
def test_running_out_says_what_to_try(figures, step):
    sentence = _core.out_of_memory_sentence(**figures)
    assert step in sentence and "\n" not in sentence
    for name in ("live", "pending", "reserved", "in private pools", "limit", "largest free block", "overhead"):
        assert f" {name} " in sentence
