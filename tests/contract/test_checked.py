"""The contract police: every kind of violation is planted once, must not reach the device, and is named."""

import gc

import pytest

from dymem._core import driver as drivers

Code = drivers.Code
GIB = 1 << 30


class Scene:
    """A checked device with one reservation of 8 units, one handle of 2 mapped at its start, and an event."""

    def __init__(self, **options):
        self.emulated = drivers.make_emulated(capacity=GIB, **options)
        self.police = drivers.make_checked(self.emulated)
        self.unit = self.police.granularity
        _, self.base = self.police.reserve(8 * self.unit)
        _, self.handle = self.police.create(2 * self.unit)
        _, self.spare = self.police.create(self.unit)
        self.police.map(self.base, 2 * self.unit, self.handle)
        _, self.event = self.police.event_create()
        assert self.police.violations() == []

    def state(self):
        counters = self.emulated.counters()
        counters.pop("event_query")
        return (counters, self.emulated.memory(), self.emulated.mappings(), self.emulated.mapped_addresses())


def after(first, then):
    """A violation that needs a legal step before it: the step is not part of what must change nothing."""
    def plant(scene):
        first(scene)
        return lambda: then(scene)
    return plant


def plain(call):
    return lambda scene: lambda: call(scene)


VIOLATIONS = {
    "reserve-odd-size": (plain(lambda s: s.police.reserve(5)[0]), "reserve(5): D1: the size is no multiple"),
    "create-nothing": (plain(lambda s: s.police.create(0)[0]), "create(0): D1: a size of zero"),
    "map-in-part": (plain(lambda s: s.police.map(s.base + 4 * s.unit, s.unit, s.handle)), "mapped whole or not at all"),
    "map-over": (plain(lambda s: s.police.map(s.base + s.unit, s.unit, s.spare)), "something is mapped in the range"),
    "map-unaligned": (plain(lambda s: s.police.map(s.base + 4096, s.unit, s.spare)), "not aligned"),
    "map-unreserved": (plain(lambda s: s.police.map(s.base + 8 * s.unit, s.unit, s.spare)), "not reserved"),
    "map-unknown-handle": (plain(lambda s: s.police.map(s.base + 4 * s.unit, s.unit, 77)), "handle 77): D4: no such"),
    "map-destroyed-handle": (after(lambda s: s.police.destroy(s.handle), lambda s: s.police.map(
        s.base + 4 * s.unit, 2 * s.unit, s.handle)), "D4: the handle was destroyed already"),
    "access-unmapped": (plain(lambda s: s.police.set_access(s.base + 2 * s.unit, s.unit)), "D3: no mapping begins"),
    "access-in-part": (plain(lambda s: s.police.set_access(s.base, s.unit)), "D3: the range ends inside a mapping"),
    "unmap-in-part": (plain(lambda s: s.police.unmap(s.base, s.unit)), "D3: the range ends inside a mapping"),
    "unmap-a-tail": (plain(lambda s: s.police.unmap(s.base + s.unit, s.unit)), "D3: no mapping begins"),
    "unmap-a-gap": (plain(lambda s: s.police.unmap(s.base, 3 * s.unit)), "D3: a part of the range is not mapped"),
    "unmap-twice": (after(lambda s: s.police.unmap(s.base, 2 * s.unit), lambda s: s.police.unmap(
        s.base, 2 * s.unit)), "D3: no mapping begins"),
    "destroy-twice": (after(lambda s: s.police.destroy(s.spare), lambda s: s.police.destroy(s.spare)),
                      "destroyed already"),
    "destroy-twice-mapped": (after(lambda s: s.police.destroy(s.handle), lambda s: s.police.destroy(s.handle)),
                             "D4: the handle was destroyed already"),
    "export-unknown": (plain(lambda s: s.police.export_handle(99)[0]), "export_handle(handle 99): D4"),
    "import-negative": (plain(lambda s: s.police.import_handle(-1, s.unit)[0]), "D10: a descriptor is not negative"),
    "import-off-size": (plain(lambda s: s.police.import_handle(0, 5)[0]), "D1: the size is no multiple"),
    "export-slab-unknown": (plain(lambda s: s.police.export_slab(s.base)[0]), "no slab begins at this address"),
    "close-slab-unknown": (plain(lambda s: s.police.close_slab(s.base)), "D10: no slab was opened at this address"),
    "release-in-use": (plain(lambda s: s.police.release_addresses(s.base, 8 * s.unit)), "D5: something is still"),
    "release-in-part": (plain(lambda s: s.police.release_addresses(s.base, 4 * s.unit)), "D5: the size is not what"),
    "release-inside": (plain(lambda s: s.police.release_addresses(s.base + s.unit, s.unit)), "D5: no reservation"),
    "write-without-access": (plain(lambda s: s.police.write(s.base, b"x")), "D2: a part of the range was given no"),
    "read-unmapped": (plain(lambda s: s.police.read(s.base + 2 * s.unit, 1)[0]), "D2: a part of the range is not"),
    "peer-is-self": (plain(lambda s: s.police.set_peer_access(s.base, 2 * s.unit, 0)), "D2: a peer is another device"),
    "slab-of-nothing": (plain(lambda s: s.police.slab_alloc(0)[0]), "slab_alloc(0): a size of zero"),
    "slab-free-unknown": (plain(lambda s: s.police.slab_free(s.base)), "no slab begins at this address"),
    "event-unknown": (plain(lambda s: s.police.event_record(1234, 0)), "event_record(event 1234): D7: no such event"),
    "event-query-destroyed": (after(lambda s: s.police.event_destroy(s.event), lambda s: s.police.event_query(s.event)),
                              "D7: no such event"),
    "event-sync-destroyed": (after(lambda s: s.police.event_destroy(s.event),
                                   lambda s: s.police.event_synchronize(s.event)), "D7: no such event"),
    "event-wait-destroyed": (after(lambda s: s.police.event_destroy(s.event),
                                   lambda s: s.police.stream_wait(0, s.event)), "D7: no such event"),
    "event-destroy-twice": (after(lambda s: s.police.event_destroy(s.event),
                                  lambda s: s.police.event_destroy(s.event)), "D7: no such event"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_names_a_planted_violation(name):
    plant, sentence = VIOLATIONS[name]
    scene = Scene()
    call = plant(scene)
    assert scene.police.violations() == [], "the preparation itself is legal"
    before = scene.state()
    assert call() == Code.invalid
    assert scene.state() == before, "the device was not reached"
    assert len(scene.police.violations()) == 1
    assert sentence in scene.police.violations()[0]
    assert scene.police.last_violation() == scene.police.violations()[0]


@pytest.mark.parametrize("how", ["asked", "recorded", "waited"])
@pytest.mark.parametrize("call", ["event_query", "map", "unmap"])
def test_nothing_of_that_kind_while_a_capture_is_under_way(how, call):
    scene = Scene()
    calls = {"event_query": lambda: scene.police.event_query(scene.event),
             "map": lambda: scene.police.map(scene.base + 4 * scene.unit, scene.unit, scene.spare),
             "unmap": lambda: scene.police.unmap(scene.base, 2 * scene.unit)}
    scene.emulated.set_capturing(9, True)
    if how == "asked":
        assert scene.police.is_capturing(9)
    elif how == "recorded":
        assert scene.police.event_record(scene.event, 9) == Code.ok
    else:
        assert scene.police.stream_wait(9, scene.event) == Code.ok
    assert calls[call]() == Code.invalid
    assert "a graph capture is under way" in scene.police.last_violation()
    assert scene.police.last_violation().startswith(call)
    scene.emulated.set_capturing(9, False)
    assert calls[call]() == Code.ok
    assert len(scene.police.violations()) == 1


def test_a_stream_it_never_saw_does_not_matter():
    scene = Scene()
    scene.emulated.set_capturing(9, True)
    assert scene.police.unmap(scene.base, 2 * scene.unit) == Code.ok


def test_lists_what_leaked():
    scene = Scene()
    _, slab = scene.police.slab_alloc(scene.unit)
    leaks = scene.police.leaks()
    for piece in (f"handle {scene.handle} of {2 * scene.unit} bytes was not destroyed",
                  f"handle {scene.handle} is still mapped at {scene.base:#x}",
                  f"the reservation of {8 * scene.unit} bytes at {scene.base:#x} was not released",
                  f"the slab of {scene.unit} bytes at {slab:#x} was not freed",
                  f"event {scene.event} was not destroyed"):
        assert piece in leaks
    assert len(leaks) == 6  # the spare handle, too
    scene.police.unmap(scene.base, 2 * scene.unit)
    scene.police.destroy(scene.handle)
    scene.police.destroy(scene.spare)
    scene.police.release_addresses(scene.base, 8 * scene.unit)
    scene.police.slab_free(slab)
    scene.police.event_destroy(scene.event)
    assert scene.police.leaks() == []
    assert scene.police.violations() == []


def test_exhaustion_is_no_violation():
    scene = Scene()
    scene.emulated.take_memory(scene.emulated.memory()[0])
    assert scene.police.create(scene.unit) == (Code.out_of_memory, 0)
    assert scene.police.violations() == []
    assert len(scene.police.leaks()) == 5  # as before


def test_a_failed_call_leaves_the_books_alone():
    """D8 through a fault below: what failed did not happen, so trying again is legal."""
    emulated = drivers.make_emulated(capacity=GIB)
    faulty = drivers.make_faulty(emulated)
    police = drivers.make_checked(faulty)
    unit = police.granularity
    _, base = police.reserve(unit)
    _, handle = police.create(unit)
    for call in (lambda: police.map(base, unit, handle), lambda: police.set_access(base, unit),
                 lambda: police.unmap(base, unit)):
        faulty.fail_nth(1)
        assert call() == Code.failed
        assert call() == Code.ok
    assert police.violations() == []


def test_a_driver_that_refuses_what_is_allowed_is_named_too():
    scene = Scene()
    scene.emulated.destroy(scene.spare)  # behind its back
    assert scene.police.map(scene.base + 4 * scene.unit, scene.unit, scene.spare) == Code.invalid
    assert "the driver refuses what the contract allows" in scene.police.last_violation()


def test_the_violations_are_bounded_and_can_be_cleared():
    scene = Scene()
    for i in range(1100):
        scene.police.create(i * scene.unit + 1)
    assert len(scene.police.violations()) == 1000
    assert f"create({1099 * scene.unit + 1})" in scene.police.last_violation()
    scene.police.clear_violations()
    assert (scene.police.violations(), scene.police.last_violation()) == ([], "")


def test_the_wrapped_driver_stays_reachable_and_alive():
    emulated = drivers.make_emulated(capacity=GIB)
    faulty = drivers.make_faulty(drivers.make_checked(emulated))
    assert faulty.name == "faulty(checked(emulated))"
    assert faulty.inner.inner is emulated
    assert isinstance(faulty.inner, drivers.CheckedDriver)
    del emulated
    gc.collect()
    faulty.inner.inner.advance_to(5)
    assert faulty.now() == 5


def test_there_must_be_something_to_wrap():
    for make in (drivers.make_checked, drivers.make_faulty):
        with pytest.raises(TypeError):
            make(None)
