"""Driver call number N of a sleep and a wake fails, once or for good, for N = 1, 2, … until a run passes clean.

After every failure the audit is empty and no byte is lost: the pool is awake as before, or asleep and wakes once the
driver works. When all is freed the device and the host hold nothing.
"""

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB, Model
from test_pool_sleep import Tagged, build, forget

from dymem.errors import DriverError, OutOfMemory, SleepError

CALLS_MAX = 500
FAULTS = [pytest.param(code, forever, id=f"{name}-{'forever' if forever else 'once'}")
          for name, code in (("exhausted", CODES.out_of_memory), ("failed", CODES.failed)) for forever in (False, True)]
pytestmark = pytest.mark.slow


def make():
    device = Device()
    model = Model(device, make_pool(device), sampled=True)
    build(model)
    with Tagged("kv"):
        cache = [model.malloc(20 * MIB, 0), model.malloc(3 * MIB, 7)]
    return device, model, cache


def attempt(call):
    """Whether it went well; a failure is one sentence."""
    try:
        call()
        return True
    except (DriverError, OutOfMemory, SleepError) as error:
        assert str(error) and "\n" not in str(error)
        return False


def finish(device, model, cache, dropped):
    """The driver works again: so does the pool, awake or asleep, and whole."""
    device.faulty.disarm()
    model.follow_clock()
    assert model.pool.audit() == []
    model.pool.wake()
    if dropped:
        forget(cache)
    for held in model.live.values():
        model.verify(held)
    model.check(pending_exact=True)
    model.malloc(5 * MIB, 0)
    model.end()
    model.pool.free_host_slabs()
    assert device.violations() == []
    assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0
    assert not any("pinned host" in leak for leak in device.checked.leaks())


@pytest.mark.parametrize("code, forever", FAULTS)
@pytest.mark.parametrize("options", [{}, {"keep": []}, {"tags": ["kv"]}], ids=["host", "drop", "tag"])
def test_every_call_of_sleep_fails_in_turn(options, code, forever):
    stuck = awake = 0
    for nth in range(1, CALLS_MAX):
        device, model, cache = make()
        device.faulty.fail_nth(nth, forever, code)
        slept = attempt(lambda: model.pool.sleep(**options))
        failed = device.faulty.failures()
        assert model.pool.audit() == []
        if not slept:
            asleep = model.pool.stats()["asleep_bytes"]
            assert device.violations() == []
            assert not asleep or forever, "one failure must not leave it asleep"
            stuck, awake = stuck + bool(asleep), awake + (not asleep)
            if asleep:  # its memory is still its own
                assert model.pool.stats()["reserved_bytes"]["all"]["current"] == device.emulated.physical_in_use()
            else:
                device.faulty.disarm()
                model.follow_clock()
                for held in model.live.values():
                    model.verify(held)
                model.malloc(MIB, 0)
        finish(device, model, cache, dropped=slept and "keep" in options)
        if not failed:
            assert awake > 3 and (bool(stuck) == forever or "tags" in options)  # the tag sleeps in one run: one unmap
            return
    pytest.fail(f"still failing at driver call {CALLS_MAX}")


@pytest.mark.parametrize("code, forever", FAULTS)
@pytest.mark.parametrize("options", [{}, {"tags": ["kv"]}], ids=["all", "tag"])
def test_every_call_of_wake_fails_in_turn(options, code, forever):
    for nth in range(1, CALLS_MAX):
        device, model, cache = make()
        report = model.pool.sleep()
        gone = cache.pop()
        gone.filled = False
        model.free(gone)
        device.faulty.fail_nth(nth, forever, code)
        woken = attempt(lambda: model.pool.wake(**options))
        failed = device.faulty.failures()
        assert model.pool.audit() == []
        if not woken:
            assert model.pool.stats()["asleep_bytes"] == report["memory_bytes"]
            assert model.pool.stats()["reserved_bytes"]["all"]["current"] == 0 or forever
            if not attempt(lambda: model.pool.wake(**options)):
                assert forever
            device.faulty.disarm()
            model.pool.wake(**options)
        finish(device, model, cache, dropped=False)
        if not failed:
            assert nth > 5
            return
    pytest.fail(f"still failing at driver call {CALLS_MAX}")


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_a_stuck_sleep_takes_frees_and_fails_again(forever):
    """Asleep in the middle for want of the driver: frees are taken, waking may fail too, nothing is lost."""
    for nth in range(1, CALLS_MAX):
        device, model, cache = make()
        device.faulty.fail_nth(nth, True, CODES.failed)
        slept = attempt(model.pool.sleep)
        if not slept and model.pool.stats()["asleep_bytes"]:
            with pytest.raises(SleepError):
                model.pool.malloc(MIB, 0)
            for held in cache + list(model.live.values())[:4]:
                held.filled = False
                if held.address in model.live:
                    model.free(held)
            device.faulty.disarm()
            device.faulty.fail_nth(2, forever, CODES.failed)
            attempt(model.pool.wake)
            assert model.pool.audit() == []
        failed = device.faulty.failures()
        finish(device, model, cache, dropped=False)
        if slept and not failed:
            return
    pytest.fail(f"still failing at driver call {CALLS_MAX}")


def test_destroying_a_sleeping_pool_leaves_nothing():
    for options in ({}, {"keep": [], "drop_untagged": True}, {"tags": ["kv"]}):
        device, model, cache = make()
        model.pool.sleep(**options)
        del model.pool
        assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0
        assert device.violations() == [] and device.checked.leaks() == []
