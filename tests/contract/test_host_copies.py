"""D9 of allocator/driver/driver.hpp, over every driver: pinned host memory, and copies between it and the device."""

import ctypes

import pytest

from dymem._core import driver as drivers

Code = drivers.Code
MIB = 1 << 20


def pattern(n, seed):
    return bytes((seed * 31 + i * 7) & 0xFF for i in range(n))


def mapped(rig, units=1):
    base = rig.ok_reserve(units)
    rig.ok_map(base, rig.ok_create(units), units)
    return base


def test_host_memory_is_zeros_and_writable(rig):
    for size in (1, 4096, 5 * MIB + 123):
        base = rig.ok_host(size)
        last = (ctypes.c_char * 1).from_address(base + size - 1)
        assert last[0] == b"\0"
        last[0] = b"x"
        rig.ok_host_free(base)


def test_a_copy_brings_what_was_written_before_it(rig):
    at, host = mapped(rig), rig.ok_host(MIB)
    data = pattern(1000, 3)
    rig.ok_write(at + 512, data)
    rig.ok_copied(rig.copy_to_host(host + 64, at + 512, len(data)))
    assert rig.synchronize() == Code.ok
    if rig.has_bytes:
        assert ctypes.string_at(host + 64, len(data)) == data


def test_bytes_go_to_the_host_and_to_other_memory_and_back(rig):
    first, second, host = mapped(rig, 2), mapped(rig, 2), rig.ok_host(3 * MIB)
    data = pattern(4096, 9) * 300
    rig.ok_write(first + 4096, data)
    rig.ok_copied(rig.copy_to_host(host, first + 4096, len(data)))
    rig.ok_copied(rig.copy_to_device(second + 8192, host, len(data)))  # the same stream: after the copy before
    assert rig.synchronize() == Code.ok
    rig.ok_read(second + 8192, data)


def test_a_copy_across_granules(rig):
    base, host = rig.ok_reserve(3), rig.ok_host(6 * MIB)
    for i in range(3):
        rig.ok_map(base + i * rig.unit, rig.ok_create())
    across = pattern(rig.unit + 128, 7)
    rig.ok_write(base + rig.unit - 64, across)
    rig.ok_copied(rig.copy_to_host(host, base + rig.unit - 64, len(across)))
    assert rig.synchronize() == Code.ok
    rig.ok_unmap(base, 3)
    for i in range(3):
        rig.ok_map(base + i * rig.unit, rig.ok_create())
    rig.ok_copied(rig.copy_to_device(base + rig.unit - 64, host, len(across)))
    assert rig.synchronize() == Code.ok
    rig.ok_read(base + rig.unit - 64, across)


def test_an_event_completes_after_the_copies_before_it(rig):
    at, host, event = mapped(rig), rig.ok_host(MIB), rig.ok_event()
    rig.ok_copied(rig.copy_to_host(host, at, MIB))
    assert rig.event_record(event, 0) == Code.ok
    assert rig.event_synchronize(event) == Code.ok
    rig.ok_unmap(at)  # nothing is under way any more
    rig.ok_host_free(host)


def test_synchronize_waits_for_every_stream(rig):
    events = [rig.ok_event() for _ in range(3)]
    if rig.emulated:
        for stream in range(3):
            rig.emulated.set_busy_until(stream, 1000 * stream)
    for stream, event in enumerate(events):
        if stream == 0 or rig.emulated:  # a card has streams of its own making only
            assert rig.event_record(event, stream) == Code.ok
    assert rig.synchronize() == Code.ok
    assert all(rig.event_query(event) == Code.ok for event in events)


def test_refuses_what_is_not_pinned_or_not_mapped(rig):
    at, host = mapped(rig), rig.ok_host(4096)
    pageable = ctypes.create_string_buffer(4096)
    unmapped = rig.ok_reserve(1)
    if not rig.has_bytes:
        return
    rig.refuses(rig.copy_to_host(ctypes.addressof(pageable), at, 64))
    rig.refuses(rig.copy_to_device(at, ctypes.addressof(pageable), 64))
    rig.refuses(rig.copy_to_host(host + 4096 - 32, at, 64))  # over the end
    rig.refuses(rig.copy_to_host(host, unmapped, 64))
    rig.refuses(rig.copy_to_device(at + rig.unit - 32, host, 64))
    rig.ok_write(at, pattern(64, 1))
    rig.ok_read(at, pattern(64, 1))


def test_refuses_absurd_and_foreign_host_memory(rig):
    rig.refuses(rig.host_alloc(0)[0])
    rig.refuses(rig.host_alloc(1 << 60)[0])
    base = rig.ok_host(4096)
    rig.refuses(rig.host_free(base + 512))
    rig.ok_host_free(base)
    rig.refuses(rig.host_free(base))


@pytest.mark.parametrize("what", ["unmap", "host_free"])
def test_the_police_sees_what_a_copy_still_uses(what):
    checked = drivers.make_checked(drivers.make_emulated())
    unit = checked.granularity
    _, base = checked.reserve(unit)
    _, handle = checked.create(unit)
    assert checked.map(base, unit, handle) == checked.set_access(base, unit) == Code.ok
    _, host = checked.host_alloc(4096)
    _, event = checked.event_create()
    call = {"unmap": lambda: checked.unmap(base, unit), "host_free": lambda: checked.host_free(host)}[what]
    assert checked.copy_to_host(host, base, 4096) == Code.ok
    assert checked.event_record(event, 0) == Code.ok
    assert checked.copy_to_device(base, host, 64) == Code.ok  # after the event: it does not cover this one
    assert checked.event_synchronize(event) == Code.ok
    assert call() == Code.invalid and "under way" in checked.last_violation()
    assert checked.synchronize() == Code.ok
    assert call() == Code.ok
    leaks = checked.leaks()
    assert any("pinned host memory" in leak for leak in leaks) == (what == "unmap")


def test_the_police_forbids_copies_during_a_capture():
    emulated = drivers.make_emulated()
    checked = drivers.make_checked(emulated)
    _, base = checked.reserve(checked.granularity)
    _, handle = checked.create(checked.granularity)
    assert checked.map(base, checked.granularity, handle) == Code.ok
    assert checked.set_access(base, checked.granularity) == Code.ok
    _, host = checked.host_alloc(4096)
    emulated.set_capturing(5, True)
    checked.is_capturing(5)  # it knows the stream now
    assert checked.copy_to_host(host, base, 64) == Code.invalid
    assert checked.synchronize() == Code.invalid
    emulated.set_capturing(5, False)
    assert checked.copy_to_host(host, base, 64) == Code.ok
    assert checked.synchronize() == Code.ok


@pytest.mark.parametrize("call", ["host_alloc", "copy_to_host", "copy_to_device", "synchronize"])
def test_each_can_be_made_to_fail(call):
    faulty = drivers.make_faulty(drivers.make_emulated())
    _, base = faulty.reserve(faulty.granularity)
    _, handle = faulty.create(faulty.granularity)
    assert faulty.map(base, faulty.granularity, handle) == faulty.set_access(base, faulty.granularity) == Code.ok
    _, host = faulty.host_alloc(4096)
    run = {"host_alloc": lambda: faulty.host_alloc(4096)[0], "copy_to_host": lambda: faulty.copy_to_host(host, base, 8),
           "copy_to_device": lambda: faulty.copy_to_device(base, host, 8), "synchronize": faulty.synchronize}[call]
    faulty.fail_nth(1)
    assert run() == Code.failed
    assert run() == Code.ok
