"""D1 to D8 of allocator/driver/driver.hpp, over every driver. One rule a section; refusals change nothing."""

import os
import subprocess
import sys
import threading

import pytest

from dymem._core import driver as drivers

Code = drivers.Code
MIB = 1 << 20


def pattern(n, seed):
    return bytes((seed * 31 + i * 7) & 0xFF for i in range(n))


# --- the device


def test_describes_itself(rig):
    free, total = rig.memory()
    assert 0 < free <= total
    assert rig.device == 0 and rig.has_vmm
    assert rig.unit == 2 * MIB
    inner = "cuda" if "cuda" in rig.kind else "emulated"
    assert rig.name in (inner, f"checked({inner})", f"faulty({inner})")


def test_clock_does_not_run_backwards(rig):
    before = rig.now()
    assert rig.now() >= before


# --- D1: a granule is mapped whole or not at all, at several addresses at once


@pytest.mark.parametrize("units", [1, 2, 16])
def test_maps_granules_of_several_sizes(rig, units):
    base = rig.ok_reserve(units)
    rig.ok_map(base, rig.ok_create(units), units)
    first, last = pattern(64, 1), pattern(64, 2)
    rig.ok_write(base, first)
    rig.ok_write(base + units * rig.unit - 64, last)
    rig.ok_read(base, first)
    rig.ok_read(base + units * rig.unit - 64, last)


def test_what_a_failed_call_was_told_can_be_read(rig):
    base = rig.ok_reserve(1)
    rig.refuses(rig.driver.map(base, rig.unit, 12345678))
    told = drivers.last_failure()
    call, _, number = told.partition(": ")
    assert "map" in call.lower() and number.isdigit()
    rig.ok_map(base, rig.ok_create(1))
    assert drivers.last_failure() == told, "a call that went well says nothing"


def test_aliases_show_the_same_bytes(rig):
    handle = rig.ok_create(2)
    bases = [rig.ok_reserve(4) for _ in range(3)]
    for base in bases:
        rig.ok_map(base + rig.unit, handle, 2)
    for i, base in enumerate(bases):
        data = pattern(256, i)
        rig.ok_write(base + 2 * rig.unit - 128, data)
        for other in bases:
            rig.ok_read(other + 2 * rig.unit - 128, data)


def test_alias_in_one_reservation_keeps_bytes_after_the_first_view_is_gone(rig):
    handle = rig.ok_create()
    base = rig.ok_reserve(2)
    rig.ok_map(base, handle)
    rig.ok_write(base, pattern(32, 5))
    rig.ok_map(base + rig.unit, handle)
    rig.ok_unmap(base)
    rig.ok_read(base + rig.unit, pattern(32, 5))


def test_bytes_survive_moving_to_another_address(rig):
    handle = rig.ok_create()
    base = rig.ok_reserve(2)
    rig.ok_map(base, handle)
    rig.ok_write(base + 100, pattern(32, 6))
    rig.ok_unmap(base)
    rig.ok_map(base + rig.unit, handle)
    rig.ok_read(base + rig.unit + 100, pattern(32, 6))


def test_neighbours_read_as_one_piece(rig):
    base = rig.ok_reserve(3)
    for i in range(3):
        rig.ok_map(base + i * rig.unit, rig.ok_create())
    across = pattern(rig.unit + 128, 7)
    rig.ok_write(base + rig.unit - 64, across)
    rig.ok_read(base + rig.unit - 64, across)


def test_refuses_part_of_a_granule(rig):
    base, handle = rig.ok_reserve(4), rig.ok_create(2)
    rig.refuses(rig.map(base, rig.unit, handle))
    rig.refuses(rig.map(base, 3 * rig.unit, handle))
    rig.refuses(rig.map(base, 0, handle))
    rig.ok_map(base, handle, 2)


def test_refuses_an_unaligned_address(rig):
    base, handle = rig.ok_reserve(4), rig.ok_create()
    rig.refuses(rig.map(base + 4096, rig.unit, handle))
    rig.refuses(rig.map(base + rig.unit // 2, rig.unit, handle))


def test_refuses_mapping_over_a_mapping(rig):
    base = rig.ok_reserve(8)
    rig.ok_map(base + 2 * rig.unit, rig.ok_create(2), 2)
    rig.ok_write(base + 2 * rig.unit, pattern(16, 1))
    two, four = rig.ok_create(2), rig.ok_create(4)
    for at in (1, 2, 3):
        rig.refuses(rig.map(base + at * rig.unit, 2 * rig.unit, two))
    rig.refuses(rig.map(base + rig.unit, 4 * rig.unit, four))
    rig.ok_read(base + 2 * rig.unit, pattern(16, 1))
    rig.ok_map(base, two, 2)
    rig.ok_map(base + 4 * rig.unit, four, 4)


def test_refuses_what_was_not_reserved(rig):
    base, handle = rig.ok_reserve(2), rig.ok_create(2)
    if rig.kind != "cuda":  # CUDA lets a mapping run over the end, and then refuses to release the reservation
        rig.refuses(rig.map(base + rig.unit, 2 * rig.unit, handle))
    rig.ok_release(base)
    rig.refuses(rig.map(base, 2 * rig.unit, handle))


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * MIB])
def test_refuses_sizes_off_the_granularity(rig, size):
    code, handle = rig.create(size)
    rig.refuses(code)
    assert handle == 0
    code, base = rig.reserve(size)
    rig.refuses(code)
    assert base == 0


# --- D2: no access before set_access


def test_no_access_before_set_access(rig):
    base = rig.ok_reserve(2)
    rig.ok_map(base, rig.ok_create(), access=False)
    rig.ok_map(base + rig.unit, rig.ok_create(), access=True)
    if not rig.has_bytes:
        assert rig.write(base, b"x") == Code.unsupported
        return
    rig.refuses(rig.write(base, b"x"))
    code, data = rig.read(base, 1)
    rig.refuses(code)
    assert data == b""
    rig.refuses(rig.write(base + rig.unit - 1, b"xy"))  # begins without access
    assert rig.set_access(base, rig.unit) == Code.ok
    rig.ok_write(base + rig.unit - 1, b"xy")
    rig.ok_read(base + rig.unit - 1, b"xy")


def test_access_goes_with_the_mapping(rig):
    base, handle = rig.ok_reserve(1), rig.ok_create()
    rig.ok_map(base, handle)
    rig.ok_unmap(base)
    rig.ok_map(base, handle, access=False)
    if rig.has_bytes:
        rig.refuses(rig.write(base, b"x"))


def test_one_set_access_over_several_mappings(rig):
    base = rig.ok_reserve(4)
    rig.ok_map(base, rig.ok_create(), access=False)
    rig.ok_map(base + rig.unit, rig.ok_create(2), 2, access=False)
    assert rig.set_access(base, 3 * rig.unit) == Code.ok
    rig.ok_write(base + rig.unit - 8, pattern(16, 3))
    rig.refuses(rig.set_access(base, 4 * rig.unit))  # the last unit has nothing mapped


def test_a_granule_may_lie_beside_itself(rig):
    base, handle = rig.ok_reserve(6), rig.ok_create(2)
    for i in range(3):
        rig.ok_map(base + 2 * i * rig.unit, handle, 2, access=False)
    assert rig.set_access(base, 6 * rig.unit) == Code.ok
    rig.ok_write(base + 4 * rig.unit - 8, pattern(8, 1))
    rig.ok_read(base + 2 * rig.unit - 8, pattern(8, 1))
    rig.ok_read(base + 6 * rig.unit - 8, pattern(8, 1))
    rig.ok_unmap(base, 6)


def test_refuses_access_where_nothing_is_mapped(rig):
    base = rig.ok_reserve(2)
    rig.refuses(rig.set_access(base, rig.unit))
    rig.ok_map(base, rig.ok_create(), access=False)
    rig.refuses(rig.set_access(base, 0))
    rig.refuses(rig.set_access(base + rig.unit, rig.unit))


def test_no_bytes_outside_mappings(rig):
    base = rig.ok_reserve(2)
    rig.ok_map(base, rig.ok_create())
    if rig.has_bytes:
        rig.refuses(rig.write(base + rig.unit - 1, b"xy"))
        code, _ = rig.read(base + rig.unit, 1)
        rig.refuses(code)
        assert rig.write(base + rig.unit, b"") == Code.ok  # nothing asked, nothing refused


# --- D3: whole mappings only


def test_unmaps_several_adjacent_mappings_in_one_call(rig):
    base = rig.ok_reserve(6)
    for i in range(4):
        rig.ok_map(base + i * rig.unit, rig.ok_create())
    rig.ok_unmap(base + rig.unit, 2)
    rig.ok_map(base + rig.unit, rig.ok_create(2), 2)
    rig.ok_unmap(base, 4)
    rig.ok_map(base, rig.ok_create(6), 6)


def test_refuses_part_of_a_mapping(rig):
    base = rig.ok_reserve(4)
    rig.ok_map(base, rig.ok_create(4), 4)
    rig.ok_write(base, pattern(16, 2))
    rig.refuses(rig.unmap(base, rig.unit))
    rig.refuses(rig.unmap(base + rig.unit, rig.unit))
    rig.refuses(rig.unmap(base + 3 * rig.unit, rig.unit))
    rig.refuses(rig.unmap(base, 0))
    rig.ok_read(base, pattern(16, 2))


def test_refuses_unmapping_a_gap(rig):
    base = rig.ok_reserve(3)
    rig.ok_map(base, rig.ok_create())
    rig.ok_map(base + 2 * rig.unit, rig.ok_create())
    rig.ok_write(base, pattern(16, 2))
    if rig.kind != "cuda":  # CUDA unmaps what there is in the range, be it nothing
        rig.refuses(rig.unmap(base, 3 * rig.unit))
        rig.refuses(rig.unmap(base + rig.unit, rig.unit))
    rig.ok_read(base, pattern(16, 2))  # a refused call left both in place
    rig.ok_unmap(base)
    rig.ok_unmap(base + 2 * rig.unit)


# --- D4: bytes go back with the last of handle and mappings


def free_bytes(rig):
    return rig.memory()[0]


@pytest.mark.alone
@pytest.mark.parametrize("handle_first", [True, False])
def test_bytes_go_back_with_the_last_reference(rig, handle_first):
    units = 32
    base = rig.ok_reserve(2 * units)
    rig.ok_map(base, rig.ok_create())  # a context, if the card needs one, is paid for before we look
    rig.ok_unmap(base)
    before = free_bytes(rig)
    handle = rig.ok_create(units)
    rig.ok_map(base, handle, units)
    rig.ok_map(base + units * rig.unit, handle, units)
    held = before - free_bytes(rig)
    assert held == units * rig.unit, "an alias costs nothing, a granule its size"
    if handle_first:
        rig.ok_destroy(handle)
        assert before - free_bytes(rig) == held
    rig.ok_unmap(base, units)
    assert before - free_bytes(rig) == held
    rig.ok_unmap(base + units * rig.unit, units)
    if not handle_first:
        assert before - free_bytes(rig) == held
        rig.ok_destroy(handle)
    assert free_bytes(rig) == before


def test_bytes_readable_after_destroy_while_mapped(rig):
    base, handle = rig.ok_reserve(1), rig.ok_create()
    rig.ok_map(base, handle)
    rig.ok_destroy(handle)
    rig.ok_write(base, pattern(16, 9))
    rig.ok_read(base, pattern(16, 9))


def test_refuses_a_destroyed_handle(rig):
    base, handle = rig.ok_reserve(2), rig.ok_create()
    rig.ok_map(base, handle)
    rig.ok_destroy(handle)
    rig.refuses(rig.destroy(handle))
    rig.refuses(rig.map(base + rig.unit, rig.unit, handle))
    code, fd = rig.export_handle(handle)
    if rig.has_bytes:
        rig.refuses(code)
    rig.ok_unmap(base)
    rig.refuses(rig.destroy(handle))


@pytest.mark.parametrize("handle", [0, 12345, 2**63])
def test_refuses_a_handle_that_never_was(rig, handle):
    base = rig.ok_reserve(1)
    rig.refuses(rig.map(base, rig.unit, handle))
    rig.refuses(rig.destroy(handle))


# --- D5: reservations


def test_refuses_releasing_what_was_not_reserved(rig):
    base = rig.ok_reserve(4)
    rig.refuses(rig.release_addresses(base, 2 * rig.unit))
    rig.refuses(rig.release_addresses(base + rig.unit, 3 * rig.unit))
    rig.ok_release(base)
    rig.refuses(rig.release_addresses(base, 4 * rig.unit))


def test_refuses_releasing_with_a_mapping_inside(rig):
    base = rig.ok_reserve(4)
    rig.ok_map(base + 2 * rig.unit, rig.ok_create())
    rig.ok_write(base + 2 * rig.unit, pattern(16, 4))
    rig.refuses(rig.release_addresses(base, 4 * rig.unit))
    rig.ok_read(base + 2 * rig.unit, pattern(16, 4))


def test_reservations_are_far_larger_than_the_device(rig):
    total = rig.memory()[1]
    units = 4 * total // rig.unit
    before = rig.memory()[0]
    first, second = rig.ok_reserve(units), rig.ok_reserve(units)
    assert first + units * rig.unit <= second or second + units * rig.unit <= first
    assert rig.memory()[0] == before or rig.emulated is None  # on a card, the first call makes the context


# --- D6, D7: nothing waits; events


def test_event_completes(rig):
    event = rig.ok_event()
    assert rig.event_query(event) == Code.ok  # never recorded: nothing to wait for
    assert rig.event_record(event, 0) == Code.ok
    assert rig.event_synchronize(event) == Code.ok
    assert rig.event_query(event) == Code.ok


def test_event_can_be_recorded_again(rig):
    event = rig.ok_event()
    for _ in range(3):
        assert rig.event_record(event, 0) == Code.ok
        assert rig.event_synchronize(event) == Code.ok


def test_a_new_event_knows_nothing_of_a_destroyed_one(rig):
    old = rig.ok_event()
    assert rig.event_record(old, 0) == Code.ok
    assert rig.event_destroy(old) == Code.ok
    rig.events.discard(old)
    new = rig.ok_event()
    assert new != old
    assert rig.event_query(new) == Code.ok
    assert rig.stream_wait(0, new) == Code.ok


@pytest.mark.parametrize("event", [0, 999, 2**40 + 1])
def test_refuses_an_event_that_never_was(rig, event):
    for call in (rig.event_query, rig.event_synchronize, rig.event_destroy):
        rig.refuses(call(event))
    rig.refuses(rig.event_record(event, 0))
    rig.refuses(rig.stream_wait(0, event))


def test_refuses_a_destroyed_event(rig):
    event = rig.ok_event()
    assert rig.event_destroy(event) == Code.ok
    rig.events.discard(event)
    rig.refuses(rig.event_query(event))
    rig.refuses(rig.event_destroy(event))


def test_no_capture_is_under_way(rig):
    assert rig.is_capturing(0) is False


# --- D8: failed calls change nothing, exhaustion is a code


def test_exhaustion_is_a_code_and_passes(rig):
    before = rig.memory()
    code, handle = rig.create((before[1] // rig.unit + 1) * rig.unit)
    assert (code, handle) == (Code.out_of_memory, 0)
    assert rig.emulated is None or rig.memory() == before
    rig.ok_create()


def test_address_exhaustion_is_a_code(rig):
    code, base = rig.reserve(1 << 52)
    assert (code, base) == (Code.out_of_memory, 0)
    rig.ok_reserve(1)


def test_counters_count_what_went_well(rig):
    start = rig.counters()
    base = rig.ok_reserve(2)
    first, second = rig.ok_create(), rig.ok_create()
    rig.ok_map(base, first, access=False)
    rig.ok_map(base + rig.unit, second, access=False)
    assert rig.set_access(base, 2 * rig.unit) == Code.ok
    rig.refuses(rig.map(base, rig.unit, 0))
    rig.ok_unmap(base, 2)
    rig.ok_destroy(first)
    event = rig.ok_event()
    assert rig.event_record(event, 0) == rig.event_query(event) == Code.ok or "cuda" in rig.kind
    assert rig.stream_wait(0, event) == Code.ok
    delta = {key: value - start[key] for key, value in rig.counters().items()}
    assert delta.pop("memory_time_ns") > 0
    assert delta.pop("asked_again") == 0 or "cuda" in rig.kind  # a card beside which others work may have to be
    assert delta == {"reserve": 1, "create": 2, "map": 2, "set_access": 1, "unmap": 1, "destroy": 1, "event_record": 1,
                     "event_query": 1, "event_wait": 1, "memory_calls": 7}


# --- exporting, slabs, peers, threads


def test_export_gives_a_descriptor_of_its_own(rig):
    handle = rig.ok_create()
    code, fd = rig.export_handle(handle)
    if not rig.has_bytes:
        assert (code, fd) == (Code.unsupported, 0)
        return
    if code == Code.unsupported:
        pytest.skip("this device does not export memory as file descriptors")
    assert code == Code.ok
    code, second = rig.export_handle(handle)
    assert code == Code.ok and second != fd
    os.close(fd)
    os.close(second)


def export(rig, handle):
    code, fd = rig.export_handle(handle)
    if not rig.has_bytes:
        assert (code, fd) == (Code.unsupported, 0)
        pytest.skip("accounting only")
    if code == Code.unsupported:
        pytest.skip("this device does not export memory as file descriptors")
    assert code == Code.ok
    return fd


def ok_import(rig, fd, units):
    code, handle = rig.import_handle(fd, units * rig.unit)
    os.close(fd)
    assert code == Code.ok and handle
    rig.handles.add(handle)
    return handle


def test_an_imported_granule_is_the_same_memory(rig):
    ours = rig.ok_create(2)
    theirs = ok_import(rig, export(rig, ours), 2)
    assert theirs != ours
    a, b = rig.ok_reserve(2), rig.ok_reserve(4)
    rig.ok_map(a, ours, 2)
    rig.ok_map(b + rig.unit, theirs, 2)
    rig.ok_write(a + 2 * rig.unit - 64, pattern(64, 9))
    rig.ok_read(b + 3 * rig.unit - 64, pattern(64, 9))
    rig.ok_write(b + rig.unit, pattern(64, 10))
    rig.ok_read(a, pattern(64, 10))
    rig.refuses(rig.map(b, rig.unit, theirs))  # whole, as any other
    # It outlives what it was exported from, and its own handle.
    rig.ok_unmap(a, 2)
    rig.ok_destroy(ours)
    rig.ok_destroy(theirs)
    rig.ok_read(b + rig.unit, pattern(64, 10))


def test_what_is_imported_is_on_the_exporters_account(rig):
    ours = rig.ok_create(4)
    before = rig.memory()[0]
    theirs = ok_import(rig, export(rig, ours), 4)
    base = rig.ok_reserve(4)
    rig.ok_map(base, theirs, 4)
    if rig.emulated:
        assert rig.memory()[0] == before
        assert rig.emulated.physical_in_use() == 4 * rig.unit
    rig.ok_unmap(base, 4)
    rig.ok_destroy(theirs)
    rig.ok_read(rig_mapped(rig, ours, 4), bytes(16))


def rig_mapped(rig, handle, units):
    base = rig.ok_reserve(units)
    rig.ok_map(base, handle, units)
    return base


def test_import_refuses_what_was_not_exported(rig):
    fd = export(rig, rig.ok_create(2))
    for wrong in (0, 1, rig.unit + 4096):
        code, handle = rig.import_handle(fd, wrong)
        rig.refuses(code)
        assert handle == 0
    os.close(fd)
    rig.refuses(rig.import_handle(-1, rig.unit)[0])
    read, write = os.pipe()
    code, handle = rig.import_handle(read, rig.unit)
    assert code in (Code.invalid, Code.failed) and handle == 0
    if rig.kind.startswith("checked"):
        rig.clear_violations()  # a descriptor of something else is for the driver to find out
    os.close(read)
    os.close(write)


OTHER_PROCESS = """
import sys
from dymem._core import driver as drivers
kind, what, value, size, n = sys.argv[1:]
driver = drivers.make_cuda(0) if "cuda" in kind else drivers.make_emulated(vmm=what == "granule")
if what == "granule":
    code, handle = driver.import_handle(int(value), int(size))
    assert code == drivers.Code.ok, code
    code, base = driver.reserve(int(size))
    assert driver.map(base, int(size), handle) == driver.set_access(base, int(size)) == drivers.Code.ok
else:
    code, base, whole = driver.open_slab(bytes.fromhex(value))
    assert code == drivers.Code.ok and whole >= int(size), (code, whole)
code, data = driver.read(base + int(size) - int(n), int(n))
assert code == drivers.Code.ok, code
assert driver.write(base, data[::-1]) == drivers.Code.ok
if what == "slab":
    assert driver.close_slab(base) == drivers.Code.ok and driver.close_slab(base) == drivers.Code.invalid
"""


def in_another_process(rig, what, value, size, n, fds=()):
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS, rig.kind, what, str(value), str(size), str(n)],
                          pass_fds=fds, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_another_process_reads_and_writes_what_is_exported(rig):
    handle = rig.ok_create(2)
    fd = export(rig, handle)
    base = rig_mapped(rig, handle, 2)
    rig.ok_write(base + 2 * rig.unit - 64, pattern(64, 11))
    in_another_process(rig, "granule", fd, 2 * rig.unit, 64, [fd])
    os.close(fd)
    rig.ok_read(base, pattern(64, 11)[::-1])


def test_another_process_reads_and_writes_a_slab(rig):
    code, base = rig.slab_alloc(3 * rig.unit)
    assert code == Code.ok
    code, ticket = rig.export_slab(base)
    if not rig.has_bytes:
        assert (code, ticket) == (Code.unsupported, b"")
    else:
        assert code == Code.ok and len(ticket) == 64
        rig.ok_write(base + 3 * rig.unit - 64, pattern(64, 12))
        in_another_process(rig, "slab", ticket.hex(), 3 * rig.unit, 64)
        rig.ok_read(base, pattern(64, 12)[::-1])
    assert rig.slab_free(base) == Code.ok
    if rig.has_bytes:
        rig.refuses(rig.export_slab(base)[0])
    rig.refuses(rig.close_slab(base))


def test_slab(rig):
    code, base = rig.slab_alloc(5 * MIB)
    assert code == Code.ok
    rig.ok_write(base + 5 * MIB - 16, pattern(16, 8))
    rig.ok_read(base + 5 * MIB - 16, pattern(16, 8))
    if rig.has_bytes:
        rig.refuses(rig.write(base + 64 * MIB - 8, pattern(16, 8)))
    rig.refuses(rig.slab_free(base + 4096))
    assert rig.slab_free(base) == Code.ok
    rig.refuses(rig.slab_free(base))
    code, _ = rig.slab_alloc(0)
    rig.refuses(code)
    assert rig.slab_alloc(rig.memory()[1] + rig.unit) == (Code.out_of_memory, 0)


def test_slabs_stand_alone(rig):
    """Several at once, wherever they lie: each keeps its bytes when another goes, and gives back all it took."""
    _, slabs = zip(*(rig.slab_alloc(n * rig.unit) for n in (1, 3, 2)))
    assert all(base and base % 512 == 0 for base in slabs)
    ends = sorted((base, base + n * rig.unit) for base, n in zip(slabs, (1, 3, 2)))
    assert all(end <= after for (_, end), (after, _) in zip(ends, ends[1:]))
    for base, n in zip(slabs, (1, 3, 2)):
        rig.ok_write(base + n * rig.unit - 64, pattern(64, n))
    assert rig.slab_free(slabs[1]) == Code.ok
    if rig.has_bytes:
        rig.refuses(rig.read(slabs[1], 8)[0])
    for base, n in ((slabs[0], 1), (slabs[2], 2)):
        rig.ok_read(base + n * rig.unit - 64, pattern(64, n))
        assert rig.slab_free(base) == Code.ok
    code, again = rig.slab_alloc(6 * rig.unit)
    assert code == Code.ok and rig.slab_free(again) == Code.ok


def test_a_device_is_no_peer_of_itself(rig):
    base = rig.ok_reserve(1)
    rig.ok_map(base, rig.ok_create())
    rig.refuses(rig.set_peer_access(base, rig.unit, rig.device))
    rig.refuses(rig.set_peer_access(base, rig.unit, -1))


@pytest.mark.gpu
def test_a_peer_reads_and_writes_what_is_mapped_elsewhere():
    """Two real devices: access for a peer is given per mapping, for each view of a granule by itself."""
    if drivers.cuda_device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    here, there = drivers.make_cuda(0), drivers.make_cuda(1)
    unit = here.granularity
    code, base = here.reserve(3 * unit)
    assert code == Code.ok
    code, handle = here.create(unit)
    assert code == Code.ok
    views = (base, base + 2 * unit)  # two views of one granule, a hole between
    for view in views:
        assert here.map(view, unit, handle) == Code.ok and here.set_access(view, unit) == Code.ok
    code = here.set_peer_access(views[0], unit, 1)
    if code != Code.ok:
        pytest.skip(f"devices 0 and 1 are no peers of one another ({code})")
    assert here.set_peer_access(views[1], unit, 1) == Code.ok
    for number, (writer, reader) in enumerate(((here, there), (there, here))):
        for at, other in (views, views[::-1]):
            data = pattern(4096, number)
            assert writer.write(at + 512, data) == Code.ok
            assert reader.read(other + 512, 4096) == (Code.ok, data)
    for view in views:
        assert here.unmap(view, unit) == Code.ok
    assert here.destroy(handle) == Code.ok and here.release_addresses(base, 3 * unit) == Code.ok


def test_calls_from_several_threads(rig):
    """Each thread works on addresses of its own; the teardown sees that all of it came back."""
    threads, rounds = 4, 25
    base = rig.ok_reserve(threads * 2)
    failures = []

    def work(number):
        at = base + 2 * number * rig.unit
        data = pattern(64, number)
        for _ in range(rounds):
            code, handle = rig.driver.create(rig.unit)
            steps = [code, rig.driver.map(at, rig.unit, handle), rig.driver.map(at + rig.unit, rig.unit, handle),
                     rig.driver.set_access(at, 2 * rig.unit)]
            if rig.has_bytes:
                steps.append(rig.driver.write(at + 128, data))
                if rig.driver.read(at + rig.unit + 128, 64) != (Code.ok, data):
                    failures.append(f"thread {number} read something else")
            code, event = rig.driver.event_create()
            steps += [code, rig.driver.event_record(event, 0), rig.driver.event_synchronize(event),
                      rig.driver.event_destroy(event), rig.driver.unmap(at, 2 * rig.unit), rig.driver.destroy(handle)]
            if any(step != Code.ok for step in steps):
                failures.append(f"thread {number}: {steps}")
                return

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
