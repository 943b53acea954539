"""One rig for every driver: the contract suite runs unchanged over the emulation, its decorators and the real card.

A rig is a driver with what a test needs to know of it (does it keep bytes, what is emulated underneath), calls that
must go well (`ok_…`), and a teardown that gives back what the test left, then asks the device whether all of it came
back.
"""

import functools
import gc

import pytest

from dymem._core import driver as drivers

Code = drivers.Code
GIB = 1 << 30
KINDS = ["bytes", "accounting", "checked", "faulty", "cuda", "checked-cuda"]


@functools.cache
def hold_the_context():
    """Kept until the end: making a context for every test would take longer than the tests."""
    driver = drivers.make_cuda(0)
    driver.memory()
    return driver


def make(kind, **options):
    """(driver, the emulated driver underneath or None)"""
    if kind in ("cuda", "checked-cuda"):
        if drivers.cuda_device_count() == 0:
            pytest.skip("needs an NVIDIA GPU")
        hold_the_context()
        driver = drivers.make_cuda(0)
        if not driver.has_vmm:
            pytest.skip("this device has no virtual memory management")
        return (drivers.make_checked(driver) if kind == "checked-cuda" else driver), None
    emulated = drivers.make_emulated(bytes=kind != "accounting", **options)
    wrap = {"checked": drivers.make_checked, "faulty": drivers.make_faulty}.get(kind)
    return (wrap(emulated) if wrap else emulated), emulated


class Rig:
    def __init__(self, kind, driver, emulated):
        self.kind, self.driver, self.emulated = kind, driver, emulated
        self.has_bytes = kind != "accounting"
        self.unit = driver.granularity
        self.ranges, self.handles, self.views, self.events, self.pinned = {}, set(), {}, set(), set()

    def __getattr__(self, name):
        return getattr(self.driver, name)

    # Calls that must go well, remembered for the teardown.

    def ok_reserve(self, units):
        code, base = self.driver.reserve(units * self.unit)
        assert code == Code.ok and base and base % self.unit == 0
        self.ranges[base] = units * self.unit
        return base

    def ok_create(self, units=1):
        code, handle = self.driver.create(units * self.unit)
        assert code == Code.ok and handle
        self.handles.add(handle)
        return handle

    def ok_map(self, at, handle, units=1, access=True):
        assert self.driver.map(at, units * self.unit, handle) == Code.ok
        self.views[at] = units * self.unit
        if access:
            assert self.driver.set_access(at, units * self.unit) == Code.ok

    def ok_unmap(self, at, units=1):
        assert self.driver.unmap(at, units * self.unit) == Code.ok
        for view in [v for v in self.views if at <= v < at + units * self.unit]:
            del self.views[view]

    def ok_destroy(self, handle):
        assert self.driver.destroy(handle) == Code.ok
        self.handles.discard(handle)

    def ok_release(self, base):
        assert self.driver.release_addresses(base, self.ranges.pop(base)) == Code.ok

    def ok_event(self):
        code, event = self.driver.event_create()
        assert code == Code.ok and event
        self.events.add(event)
        return event

    def ok_host(self, size):
        code, base = self.driver.host_alloc(size)
        assert code == Code.ok and base and base % 4096 == 0
        self.pinned.add(base)
        return base

    def ok_host_free(self, base):
        assert self.driver.host_free(base) == Code.ok
        self.pinned.discard(base)

    def ok_copied(self, code):
        """A copy that the contract allows; where there are no bytes, that is what the driver says."""
        assert code == (Code.ok if self.has_bytes else Code.unsupported)

    def ok_write(self, at, data):
        """Bytes go in where bytes exist; where they do not, that is what the driver says."""
        assert self.driver.write(at, data) == (Code.ok if self.has_bytes else Code.unsupported)

    def ok_read(self, at, expected):
        code, data = self.driver.read(at, len(expected))
        if self.has_bytes:
            assert (code, data) == (Code.ok, expected)
        else:
            assert (code, data) == (Code.unsupported, b"")

    def refuses(self, code):
        """The call broke the contract, and the police, if any, says so once."""
        assert code == Code.invalid
        if self.kind.startswith("checked"):
            assert len(self.driver.violations()) == 1, self.driver.violations()
            self.driver.clear_violations()

    def close(self):
        for event in self.events:
            assert self.driver.event_destroy(event) == Code.ok
        if self.pinned:
            assert self.driver.synchronize() == Code.ok
        for base in self.pinned:
            assert self.driver.host_free(base) == Code.ok
        for at, size in self.views.items():
            assert self.driver.unmap(at, size) == Code.ok
        for handle in self.handles:
            assert self.driver.destroy(handle) == Code.ok
        for base, size in self.ranges.items():
            assert self.driver.release_addresses(base, size) == Code.ok
        if self.kind.startswith("checked"):
            assert self.driver.violations() == []
            assert self.driver.leaks() == []
        if self.emulated:
            assert self.emulated.physical_in_use() == 0
            assert self.emulated.mappings() == 0
            assert self.emulated.mapped_addresses() == 0


@pytest.fixture(params=[pytest.param(k, marks=pytest.mark.gpu) if "cuda" in k else k for k in KINDS])
def kind(request):
    return request.param


@pytest.fixture
def rig(kind):
    rig = Rig(kind, *make(kind))
    yield rig
    rig.close()
    gc.collect()


@pytest.fixture
def open_rig():
    """For tests that need many rigs: open_rig(kind, **emulated options)."""
    return lambda kind, **options: Rig(kind, *make(kind, **options))


@pytest.fixture
def emulated():
    return drivers.make_emulated(capacity=GIB)
