"""What only the emulation has: capacity and other tenants, costs, two modes, a device without VMM, and speed."""

import ctypes
import faulthandler
import os
import resource
import signal
import time

import pytest

from dymem import errors
from dymem._core import driver as drivers

Code = drivers.Code
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
UNIT = 2 * MIB


def ok(answer):
    """The value of a call that must have gone well."""
    code, value = answer if isinstance(answer, tuple) else (answer, None)
    assert code == Code.ok
    return value


# --- capacity


def test_holds_as_much_as_the_device_has(emulated):
    handles = [ok(emulated.create(UNIT)) for _ in range(GIB // UNIT)]
    assert emulated.memory() == (0, GIB)
    assert emulated.create(UNIT) == (Code.out_of_memory, 0)
    assert emulated.slab_alloc(1) == (Code.out_of_memory, 0)
    ok(emulated.destroy(handles[0]))
    ok(emulated.create(UNIT))


def test_other_tenants_take_memory_and_give_it_back(emulated):
    held = ok(emulated.create(100 * UNIT))
    emulated.take_memory(GIB - 101 * UNIT)
    assert emulated.memory() == (UNIT, GIB)
    assert emulated.physical_in_use() == 100 * UNIT
    assert emulated.create(2 * UNIT) == (Code.out_of_memory, 0)
    with pytest.raises(errors.InvalidArgument, match="take less"):
        emulated.take_memory(UNIT + 1)
    emulated.give_memory(UNIT)
    ok(emulated.create(2 * UNIT))
    with pytest.raises(errors.InvalidArgument, match="give back less"):
        emulated.give_memory(GIB)
    ok(emulated.destroy(held))


def test_address_space_is_bounded():
    emulated = drivers.make_emulated(bytes=False, address_space=8 * UNIT)
    base = ok(emulated.reserve(6 * UNIT))
    assert emulated.reserve(3 * UNIT) == (Code.out_of_memory, 0)
    ok(emulated.release_addresses(base, 6 * UNIT))
    ok(emulated.reserve(8 * UNIT))


@pytest.mark.parametrize("granularity", [0, 1, 2048, 3 * 4096, 2 * MIB + 1])
def test_refuses_an_impossible_granularity(granularity):
    with pytest.raises(errors.InvalidArgument, match="power of two"):
        drivers.make_emulated(granularity=granularity)


def test_another_granularity():
    emulated = drivers.make_emulated(granularity=64 << 10)
    base = ok(emulated.reserve(128 << 10))
    assert base % (64 << 10) == 0
    ok(emulated.map(base, 64 << 10, ok(emulated.create(64 << 10))))
    assert emulated.create(32 << 10) == (Code.invalid, 0)


# --- costs: those of docs/decisions/0001, by the number of handles


def cost_ns(emulated, call):
    before = emulated.counters()["memory_time_ns"]
    result = call()
    return emulated.counters()["memory_time_ns"] - before, result


@pytest.mark.parametrize("units", [1, 16, 512])
def test_charges_the_cost_model(units):
    emulated = drivers.make_emulated(bytes=False)
    size, mib = units * UNIT, units * 2
    base = ok(emulated.reserve(size))
    spent, answer = cost_ns(emulated, lambda: emulated.create(size))
    assert spent == round((15 + 0.033 * mib) * 1000)
    handle = ok(answer)
    assert cost_ns(emulated, lambda: ok(emulated.map(base, size, handle)))[0] == round((1.5 + 0.004 * mib) * 1000)
    assert cost_ns(emulated, lambda: ok(emulated.set_access(base, size)))[0] == round((38 + 0.075 * mib) * 1000)
    assert cost_ns(emulated, lambda: ok(emulated.unmap(base, size)))[0] == round((26 + 0.036 * mib) * 1000)
    assert cost_ns(emulated, lambda: ok(emulated.destroy(handle)))[0] == round((14 + 0.5 * mib) * 1000)
    assert emulated.now() == 0, "costs go to the counters, not to the clock"


def test_one_call_over_several_mappings_is_charged_for_each():
    emulated = drivers.make_emulated(bytes=False)
    base = ok(emulated.reserve(8 * UNIT))
    for i in range(8):
        ok(emulated.map(base + i * UNIT, UNIT, ok(emulated.create(UNIT))))
    before = emulated.counters()
    assert cost_ns(emulated, lambda: ok(emulated.set_access(base, 8 * UNIT)))[0] == 8 * 38150
    assert cost_ns(emulated, lambda: ok(emulated.unmap(base, 8 * UNIT)))[0] == 8 * 26072
    after = emulated.counters()
    assert (after["set_access"] - before["set_access"], after["unmap"] - before["unmap"]) == (1, 1)


def test_refused_calls_cost_nothing(emulated):
    before = emulated.counters()
    emulated.create(3)
    emulated.create(2 * GIB)
    emulated.map(0, UNIT, 1)
    emulated.unmap(UNIT, UNIT)
    assert emulated.counters() == before


# --- figures


def test_counts_views():
    emulated = drivers.make_emulated(bytes=False)
    base = ok(emulated.reserve(16 * UNIT))
    handle = ok(emulated.create(2 * UNIT))
    for i in range(5):
        ok(emulated.map(base + 2 * i * UNIT, 2 * UNIT, handle))
    ok(emulated.unmap(base, 6 * UNIT))
    assert (emulated.mappings(), emulated.mappings_max()) == (2, 5)
    assert (emulated.mapped_addresses(), emulated.physical_in_use()) == (4 * UNIT, 2 * UNIT)


# --- bytes


def touch_in_a_child(address):
    """The signal that reading `address` ends a child process with; 0 = none."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the fault is expected: no traceback
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(address, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_touching_without_access_faults(emulated):
    base = ok(emulated.reserve(2 * UNIT))
    assert touch_in_a_child(base) == signal.SIGSEGV
    ok(emulated.map(base, UNIT, ok(emulated.create(UNIT))))
    assert touch_in_a_child(base) == signal.SIGSEGV
    ok(emulated.set_access(base, UNIT))
    assert touch_in_a_child(base) == 0
    assert touch_in_a_child(base + UNIT) == signal.SIGSEGV
    ok(emulated.unmap(base, UNIT))
    assert touch_in_a_child(base) == signal.SIGSEGV


def test_an_exported_granule_can_be_mapped_by_another(emulated):
    first, second = ok(emulated.create(UNIT)), ok(emulated.create(UNIT))
    base = ok(emulated.reserve(2 * UNIT))
    ok(emulated.map(base, UNIT, first))
    ok(emulated.map(base + UNIT, UNIT, second))
    ok(emulated.set_access(base, 2 * UNIT))
    ok(emulated.write(base + UNIT, b"from the second"))
    fd = ok(emulated.export_handle(second))
    with os.fdopen(fd, "rb") as file:  # positioned where the granule begins
        assert file.read(15) == b"from the second"


def test_new_granules_read_as_zeros(emulated):
    base = ok(emulated.reserve(UNIT))
    for _ in range(3):
        handle = ok(emulated.create(UNIT))
        ok(emulated.map(base, UNIT, handle))
        ok(emulated.set_access(base, UNIT))
        assert ok(emulated.read(base, 64)) == bytes(64)
        ok(emulated.write(base, b"x" * 64))
        ok(emulated.unmap(base, UNIT))
        ok(emulated.destroy(handle))


def test_host_memory_comes_back(emulated):
    def shared_memory():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssShmem")) << 10

    size = 64 * MIB
    base = ok(emulated.reserve(size))
    start = shared_memory()
    for _ in range(4):
        handle = ok(emulated.create(size))
        ok(emulated.map(base, size, handle))
        ok(emulated.set_access(base, size))
        ok(emulated.write(base, bytes(size)))
        assert shared_memory() - start >= size * 0.9
        ok(emulated.unmap(base, size))
        ok(emulated.destroy(handle))
        assert shared_memory() - start < size // 4


# --- accounting only


def test_accounting_needs_no_bytes():
    emulated = drivers.make_emulated(bytes=False, capacity=64 * TIB)
    base = ok(emulated.reserve(32 * TIB))
    assert base >= 0x10_0000_0000
    ok(emulated.map(base, 32 * TIB, ok(emulated.create(32 * TIB))))
    ok(emulated.set_access(base, 32 * TIB))
    assert emulated.write(base, b"x") == Code.unsupported
    assert emulated.read(base, 1 << 40) == (Code.unsupported, b"")
    assert emulated.export_handle(1) == (Code.unsupported, 0)


def test_same_calls_same_addresses():
    def addresses():
        emulated = drivers.make_emulated(bytes=False)
        taken = [ok(emulated.reserve(n * UNIT)) for n in (5, 1, 7, 3)]
        ok(emulated.release_addresses(taken[1], UNIT))
        ok(emulated.release_addresses(taken[2], 7 * UNIT))
        return taken + [ok(emulated.reserve(n * UNIT)) for n in (8, 2, 9)]

    first = addresses()
    assert first == addresses()
    assert first[4] == first[1], "the hole that two neighbours left takes what fits"


def test_reservations_never_touch():
    """Nobody may rely on runs across reservations: a card gives them no order either."""
    emulated = drivers.make_emulated(bytes=False)
    ranges = sorted((ok(emulated.reserve(n * UNIT)), n * UNIT) for n in (4, 1, 2, 8))
    for (base, size), (following, _) in zip(ranges, ranges[1:]):
        assert base + size < following


def test_thousands_of_views_are_quick():
    """Cost per call must not grow with what exists: of 20,000 views it is a few times that of 500 at the most, in the
    processor's time, which other processes take nothing of."""
    emulated = drivers.make_emulated(bytes=False)
    count = 20_000
    base = ok(emulated.reserve(count * UNIT))
    handle = ok(emulated.create(UNIT))

    def each(count):
        start = time.process_time()
        for i in range(count):
            emulated.map(base + i * UNIT, UNIT, handle)
            emulated.set_access(base + i * UNIT, UNIT)
        assert emulated.mappings() == count
        for i in range(count):
            emulated.unmap(base + i * UNIT, UNIT)
        assert emulated.mappings() == 0
        return (time.process_time() - start) / count

    few, many = (min(each(n) for _ in range(5)) for n in (500, count))
    assert many < 6 * few


# --- a device without virtual memory management


@pytest.mark.parametrize("with_bytes", [True, False])
def test_without_vmm_only_slabs(with_bytes):
    emulated = drivers.make_emulated(vmm=False, bytes=with_bytes, capacity=GIB)
    assert not emulated.has_vmm
    assert emulated.reserve(UNIT) == emulated.create(UNIT) == (Code.unsupported, 0)
    assert emulated.export_handle(1) == (Code.unsupported, 0)
    for call in (emulated.set_access, emulated.unmap, emulated.release_addresses):
        assert call(UNIT, UNIT) == Code.unsupported
    assert emulated.map(UNIT, UNIT, 1) == emulated.destroy(1) == Code.unsupported
    slab = ok(emulated.slab_alloc(GIB - UNIT))
    assert emulated.memory() == (UNIT, GIB)
    if with_bytes:
        ok(emulated.write(slab + GIB - UNIT - 4, b"last"))
        assert ok(emulated.read(slab + GIB - UNIT - 4, 4)) == b"last"
    ok(emulated.slab_free(slab))
    assert emulated.memory() == (GIB, GIB)
