"""Driver call number N fails, once or for good, for N = 1, 2, … until a run passes clean.

After every failure: the audit is empty, no byte is lost, the pool serves again once the driver does, and when all is
freed the device holds nothing. The run under test grows, splits, stitches, crosses streams and trims.
"""

import itertools
import random

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB, UNIT, Held, Model

from dymem.errors import DriverError, OutOfMemory

CALLS_MAX = 2000
pytestmark = pytest.mark.slow


class Script:
    """One run: every step may raise; what was not done is skipped, and the rest goes on."""

    def __init__(self, device, pool):
        self.model = Model(device, pool, sampled=True)
        self.failures = 0

    def attempt(self, call):
        try:
            return call()
        except (OutOfMemory, DriverError):
            self.failures += 1
            assert self.model.pool.audit() == []
            return None

    def malloc(self, size, stream=0, mobility="untagged"):
        return self.attempt(lambda: self.model.malloc(size, stream, mobility))

    def free(self, held):
        """Never fails: it runs in destructors. What the driver cannot tell yet is asked again later."""
        if held is not None:
            self.model.free(held)
            assert self.model.pool.audit() == []

    def record_stream(self, held, stream):
        if held is not None:
            self.attempt(lambda: self.model.record_stream(held, stream))

    def run(self):
        model = self.model
        small = [self.malloc(3000 + 512 * i) for i in range(6)]
        large = [self.malloc(n * MIB // 2 + 512, mobility=m)
                 for n, m in zip((3, 9, 5, 7, 12, 4), itertools.cycle(("untagged", "temporary", "movable", "reclaimed")))]
        for held in large[::2]:
            self.free(held)
        stitched = self.malloc(11 * MIB)  # fits no hole: what is idle lies in several
        self.free(small[1])
        self.record_stream(large[1], 7)
        model.enqueue(7, 100)
        self.free(large[1])
        side = [self.malloc(2 * MIB, 7), self.malloc(700, 7)]
        model.advance(50)
        again = self.malloc(5 * MIB)
        model.advance(100)
        crossed = self.malloc(4 * MIB, 8)
        self.attempt(model.trim)
        self.free(stitched)
        for held in side:
            self.free(held)
        more = [self.malloc(n * MIB) for n in (6, 1, 9)]
        for held in (again, crossed, *more):
            self.free(held)
        self.attempt(model.trim)

    def finish(self):
        """The driver works again: the pool must too."""
        model = self.model
        for held in model.live.values():
            model.verify(held)
        block = model.malloc(3 * MIB, 0)
        model.free(block)
        model.end()


CONFIGS = [
    pytest.param({}, id="vmm"),
    pytest.param({"alias": False}, id="remap"),
    pytest.param({"grow_ratio": 0.0, "grow_slack": 0}, id="tight"),
    pytest.param({"limit": 34 * MIB}, id="limit"),
    pytest.param({"backing": "contiguous"}, id="contiguous"),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("code", [CODES.out_of_memory, CODES.failed], ids=["exhausted", "failed"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_every_call_fails_in_turn(config, code, forever):
    for nth in range(1, CALLS_MAX):
        device = Device()
        pool = make_pool(device, **config)
        device.faulty.fail_nth(nth, forever, code)
        script = Script(device, pool)
        script.run()
        failed = device.faulty.failures()
        device.faulty.disarm()
        script.finish()
        assert pool.audit() == []
        assert device.violations() == []
        del script, pool
        assert device.emulated.physical_in_use() == 0, f"leaked after call {nth}"
        assert device.emulated.mappings() == 0
        if not failed:
            assert nth > 3, "the run made hardly any driver call: it tests nothing"
            return
    pytest.fail(f"still failing at driver call {CALLS_MAX}")


def test_a_pool_that_cannot_start_says_so():
    """Failing while the pool is made leaves nothing behind either."""
    for nth in range(1, 50):
        device = Device()
        device.faulty.fail_nth(nth, False, CODES.failed)
        try:
            pool = make_pool(device)
        except DriverError as error:
            assert str(error)
        else:
            device.faulty.disarm()
            pool.free(pool.malloc(1 * MIB, 0))
            del pool
        assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0
        if device.faulty.failures() == 0:
            return
    pytest.fail("making a pool takes 50 driver calls")


@pytest.mark.parametrize("code", [CODES.out_of_memory, CODES.failed], ids=["exhausted", "failed"])
def test_looking_at_what_has_finished_never_fails(code):
    """Between streams the pool looks now and then; a driver that refuses to tell has not finished, and that is all."""
    for nth in range(1, CALLS_MAX):
        device = Device()
        pool = make_pool(device)
        model = Model(device, pool)
        theirs = model.malloc(MIB, 7)  # a second stream is known
        mine = model.malloc(MIB, 0)
        model.free(model.malloc(MIB, 0))  # what is asked for from now on is there
        model.enqueue(7, 40_000_000)
        model.record_stream(mine, 7)
        model.free(mine)  # waits for an event: there is something to look for
        device.faulty.fail_nth(nth, False, code)
        for _ in range(100):
            model.advance(1_000_000)  # epochs are due again and again
            model.free(model.malloc(MIB, 0))
        failed = device.faulty.failures()
        device.faulty.disarm()
        model.free(theirs)
        model.end()
        assert pool.audit() == [] and device.violations() == []
        assert pool.stats()["pending_bytes"]["current"] == 0
        if not failed:
            break
    assert nth > 20, "hardly any call was made: this tests nothing"


def test_granules_that_moved_before_a_move_failed_are_counted_where_they_are():
    """Without aliases a request is met by moving idle granules together, from other arenas, too."""
    states = set()
    for nth in range(1, 40):
        device = Device()
        pool = make_pool(device, alias=False, limit=8 * MIB)
        model = Model(device, pool)
        held = [model.malloc(size, 0) for size in (1024, 2 * MIB, 2 * MIB, 2 * MIB)]
        for number in (0, 1, 3):
            model.free(held[number])
        device.faulty.fail_nth(nth, False, CODES.failed)
        try:
            wanted = model.malloc(6 * MIB, 0)
        except (DriverError, OutOfMemory):
            wanted = None
        failed = device.faulty.failures()
        device.faulty.disarm()
        assert pool.audit() == []
        states.add((pool.stats()["reserved_bytes"]["small"]["current"], wanted is not None))
        for block in (held[2], wanted):
            if block is not None:
                model.free(block)
        model.end()
        del model, pool
        if not failed:
            break
    assert (0, False) in states, "no call failed between two moves: this tests nothing"


@pytest.mark.parametrize("at, size", [(0, MIB), (700 * UNIT, 2 * MIB), (5 * MIB - 200 * UNIT, 200 * UNIT)])
def test_what_is_sampled_shows_bytes_that_were_given_twice(at, size):
    """Of the model above: that it can fail."""
    device = Device()
    model = Model(device, make_pool(device), sampled=True)
    held = model.malloc(5 * MIB, 0)
    model.fill(Held(99, held.address + at, size, size, 0, "untagged"))
    with pytest.raises(AssertionError, match="lost its bytes"):
        model.verify(held)


def test_a_granule_given_back_by_half_is_in_no_region_that_it_left():
    """It lies in several regions; one lets go of it, the next is refused. Then it is used again, and all sleeps."""
    halves = 0
    for seed, nth in itertools.product((20, 548, 549, 550), range(4, 24)):
        draw = random.Random(seed)
        device = Device(bytes=False)
        pool = make_pool(device)
        held = []
        for _ in range(draw.randint(30, 90)):
            if held and draw.random() < 0.5:
                pool.free(held.pop(draw.randrange(len(held))))
            else:
                held.append(pool.malloc(draw.choice([3, 5, 8, 13, 20, 30, 45, 60, 90]) * MIB, 0))
            if len(held) > 14:
                pool.free(held.pop(draw.randrange(len(held))))
        device.faulty.fail_nth(nth, False, CODES.failed)
        try:
            pool.trim()
        except DriverError:
            halves += 1
        device.faulty.disarm()
        held += [pool.malloc(draw.choice([2, 4, 8, 16]) * MIB, 0) for _ in range(12)]
        pool.sleep(keep=[], drop_untagged=True)
        assert pool.audit() == [] and device.violations() == []
        pool.wake()
        for address in held:
            pool.free(address)
        del pool
        assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0
    assert halves > 20, "hardly any call failed: this tests nothing"
