"""dymem.sleep() and dymem.wake() of several devices: at once, all or none, at the end of the interpreter too."""

import signal
import threading
import time

import pytest

from dymem import sleeping
from dymem.errors import SleepError

REPORT = {"changed": True, "memory_bytes": 1, "copied_bytes": 0, "dropped_bytes": 0, "stayed_bytes": 0, "copy_seconds": 0.0,
          "host_seconds": 0.0}


class Pool:
    def __init__(self, before=lambda: None):
        self.before, self.asleep = before, False

    def sleep(self, **options):
        self.before()
        self.asleep = True
        return REPORT

    def refuse_sleep(self, **options):
        pass

    def wake(self, **options):
        self.before()
        self.asleep = False
        return REPORT


@pytest.fixture
def on_pools(monkeypatch):
    def on_pools(*pools):
        monkeypatch.setattr(sleeping, "_pools", lambda device: list(enumerate(pools)))
        return pools

    return on_pools


def test_all_sleep_at_once(on_pools):
    meet = threading.Barrier(3)
    pools = on_pools(*(Pool(lambda: meet.wait(60)) for _ in range(3)))
    assert sleeping.sleep().memory_bytes == 3 and all(pool.asleep for pool in pools)
    assert sleeping.wake().devices == (0, 1, 2) and not any(pool.asleep for pool in pools)


@pytest.mark.parametrize("count", [1, 2])
def test_where_no_thread_can_start_one_sleeps_after_the_other(on_pools, monkeypatch, count):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    pools = on_pools(*(Pool() for _ in range(count)))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert sleeping.sleep().memory_bytes == count and all(pool.asleep for pool in pools)
    assert sleeping.wake().memory_bytes == count and not any(pool.asleep for pool in pools)


def test_at_the_end_of_the_interpreter(python, root):
    code = f"""
import atexit
from dymem import sleeping
class Pool:
    def sleep(self, **options):
        return {REPORT!r}
    def refuse_sleep(self, **options):
        pass
sleeping._pools = lambda device: [(0, Pool()), (1, Pool())]
atexit.register(lambda: print(sleeping.sleep().devices))
"""
    run = python("-c", code, env={"PYTHONPATH": str(root / "python")})
    assert run.stdout == "(0, 1)\n" and run.stderr == ""


def test_where_one_fails_the_others_are_woken(on_pools):
    def fail():
        raise SleepError("dymem: not this one")

    first, _, last = on_pools(Pool(), Pool(fail), Pool())
    with pytest.raises(SleepError, match="not this one"):
        sleeping.sleep()
    assert not first.asleep and not last.asleep


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_wakes_those_that_slept(on_pools, count):
    """Also one that falls asleep after it: what is under way cannot be cut short."""
    main = threading.main_thread().ident

    def interrupt():
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    pools = on_pools(*(Pool() for _ in range(count - 1)), Pool(interrupt))
    slept = []
    for pool in pools:
        pool.wake = lambda undo, pool=pool: slept.append(pool.asleep) or setattr(pool, "asleep", False)
    try:
        with pytest.raises(KeyboardInterrupt):
            sleeping.sleep()
    finally:
        signal.signal(signal.SIGINT, before)
    assert slept == [True] * count and not any(pool.asleep for pool in pools)
