"""Fault injection, and the loop that it is for: call number N fails, and nothing may be lost for any N."""

import os

import pytest

from dymem import errors
from dymem._core import driver as drivers

Code = drivers.Code
GIB = 1 << 30


@pytest.fixture
def faulty(emulated):
    return drivers.make_faulty(emulated)


def calls_that_can_fail(driver):
    """Each of them once, in an order in which all succeed."""
    unit = driver.granularity
    code, base = driver.reserve(unit)
    yield "reserve", code
    code, handle = driver.create(unit)
    yield "create", code
    yield "map", driver.map(base, unit, handle)
    yield "set_access", driver.set_access(base, unit)
    code, event = driver.event_create()
    yield "event_create", code
    yield "event_record", driver.event_record(event, 0)
    yield "event_query", driver.event_query(event)
    yield "event_wait", driver.stream_wait(0, event)
    yield "event_synchronize", driver.event_synchronize(event)
    yield "unmap", driver.unmap(base, unit)
    yield "destroy", driver.destroy(handle)
    code, slab = driver.slab_alloc(unit)
    yield "slab_alloc", code
    yield "slab_free", driver.slab_free(slab)


CALLS = 13


def test_disarmed_it_changes_nothing(faulty):
    assert [code for _, code in calls_that_can_fail(faulty)] == [Code.ok] * CALLS
    assert (faulty.calls(), faulty.failures()) == (CALLS, 0)


def test_other_calls_are_not_counted(faulty):
    unit = faulty.granularity
    _, base = faulty.reserve(unit)
    _, event = faulty.event_create()
    faulty.fail_nth(1, forever=True)
    before = faulty.calls()
    assert faulty.release_addresses(base, unit) == faulty.event_destroy(event) == Code.ok
    assert faulty.is_capturing(0) is False and faulty.memory() == (GIB, GIB)
    assert (faulty.calls(), faulty.failures()) == (before, 0)


@pytest.mark.parametrize("as_", [Code.failed, Code.out_of_memory])
@pytest.mark.parametrize("nth", range(1, CALLS + 1))
def test_the_nth_call_fails_once_before_it_reaches_the_device(faulty, nth, as_):
    faulty.fail_nth(nth, as_=as_)
    for number, (name, code) in enumerate(calls_that_can_fail(faulty), 1):
        if number < nth:
            assert code == Code.ok, name
        if number == nth:
            assert code == as_, name
            reached = faulty.inner.counters().get(name, 0)  # slabs are not counted by the device
            assert reached == 0, name
            break
    assert faulty.failures() == 1
    faulty.slab_alloc(faulty.granularity)
    assert faulty.failures() == 1, "once"


def test_forever_means_until_disarmed(faulty):
    unit = faulty.granularity
    faulty.fail_nth(3, forever=True, as_=Code.out_of_memory)
    codes = [faulty.create(unit)[0] for _ in range(6)]
    assert codes == [Code.ok] * 2 + [Code.out_of_memory] * 4
    faulty.disarm()
    assert faulty.create(unit)[0] == Code.ok
    assert faulty.failures() == 4


def test_counts_from_the_arming_and_rearming_replaces(faulty):
    unit = faulty.granularity
    faulty.create(unit)
    faulty.fail_nth(1)
    faulty.fail_nth(2)
    assert [faulty.create(unit)[0] for _ in range(3)] == [Code.ok, Code.failed, Code.ok]


def test_refuses_nonsense(faulty):
    with pytest.raises(errors.InvalidArgument, match="counted from 1"):
        faulty.fail_nth(0)
    for code in (Code.ok, Code.not_ready, Code.invalid, Code.unsupported):
        with pytest.raises(errors.InvalidArgument, match="out_of_memory or as failed"):
            faulty.fail_nth(1, as_=code)


def test_what_shares_with_other_processes_can_fail_too(faulty):
    unit = faulty.granularity
    _, handle = faulty.create(unit)
    _, fd = faulty.export_handle(handle)
    _, slab = faulty.slab_alloc(unit)
    _, ticket = faulty.export_slab(slab)
    calls = [lambda: faulty.export_handle(handle)[0], lambda: faulty.import_handle(fd, unit)[0],
             lambda: faulty.export_slab(slab)[0], lambda: faulty.open_slab(ticket)[0]]
    for call in calls:
        for as_ in (Code.failed, Code.out_of_memory):
            faulty.fail_nth(1, as_=as_)
            assert call() == as_
        assert call() == Code.ok
    os.close(fd)


class Failed(Exception):
    pass


class Script:
    """Builds a region of three granules, one of them with a second view, fences it with an event, takes it down again.

    Whatever it made is on `undo`; a failure undoes all of it, newest first. An undoing unmap that fails is kept for
    later, as a pool must keep it.
    """

    def __init__(self, driver):
        self.driver, self.unit, self.undo = driver, driver.granularity, []

    def must(self, answer, undo=None):
        code, value = answer if isinstance(answer, tuple) else (answer, None)
        if code != Code.ok:
            raise Failed
        if undo:
            self.undo.append((lambda: undo(value)) if isinstance(answer, tuple) else undo)
        return value

    def run(self):
        d, unit = self.driver, self.unit
        base = self.must(d.reserve(8 * unit), lambda at: d.release_addresses(at, 8 * unit))
        handles = [self.must(d.create(unit), d.destroy) for _ in range(3)]
        for i, handle in enumerate(handles):
            self.must(d.map(base + i * unit, unit, handle), lambda i=i: d.unmap(base + i * unit, unit))
        self.must(d.set_access(base, 3 * unit))
        self.must(d.map(base + 5 * unit, unit, handles[0]), lambda: d.unmap(base + 5 * unit, unit))
        self.must(d.set_access(base + 5 * unit, unit))
        event = self.must(d.event_create(), d.event_destroy)
        self.must(d.event_record(event, 0))
        self.must(d.write(base + 5 * unit, b"alias"))
        assert d.read(base, 5) == (Code.ok, b"alias")

    def roll_back(self):
        while self.undo:
            if self.undo[-1]() != Code.ok:
                return False
            self.undo.pop()
        return True


@pytest.mark.parametrize("as_", [Code.failed, Code.out_of_memory])
@pytest.mark.parametrize("forever", [False, True])
def test_nothing_is_lost_whichever_call_fails(forever, as_):
    emulated = drivers.make_emulated(capacity=GIB)
    police = drivers.make_checked(emulated)
    faulty = drivers.make_faulty(police)
    failed_runs, nth = 0, 0
    while True:
        nth += 1
        faulty.fail_nth(nth, forever=forever, as_=as_)
        before = faulty.failures()
        script = Script(faulty)
        try:
            script.run()
        except Failed:
            failed_runs += 1
        undone = script.roll_back()
        faulty.disarm()
        assert undone or script.roll_back(), "what could not be undone then can be now"
        assert police.violations() == [] and police.leaks() == []
        assert (emulated.physical_in_use(), emulated.mappings()) == (0, 0)
        assert emulated.memory() == (GIB, GIB)
        if faulty.failures() == before:
            break
    # reserve, 3 creates, 4 maps, 2 set_access, event_create, event_record; then the rollback's 4 unmaps and 3 destroys;
    # then clean.
    assert (failed_runs, nth) == (12, 20)
