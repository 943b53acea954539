"""Devices for tests of the pool: checked(faulty(emulated)), so that every call is policed and any can be made to fail."""

from __future__ import annotations

from dymem import _core
from dymem.errors import OutOfMemory

GIB = 1 << 30
CODES = _core.driver.Code


class Device:
    """The emulated device under its decorators, with the handles a test needs on each."""

    def __init__(self, capacity: int = 2 * GIB, bytes: bool = True, **options):
        self.emulated = _core.driver.make_emulated(capacity=capacity, bytes=bytes, **options)
        self.faulty = _core.driver.make_faulty(self.emulated)
        self.checked = _core.driver.make_checked(self.faulty)
        self.advance_to = self.emulated.advance_to
        self.set_busy_until = self.emulated.set_busy_until
        self.set_lag = self.emulated.set_lag
        self.violations = self.checked.violations

    def free_memory(self) -> int:
        return self.emulated.memory()[0]

    def write(self, address: int, data):
        code = self.checked.write(address, data)
        assert code == CODES.ok, f"writing {len(data)} bytes at {address:#x}: {code}"

    def read(self, address: int, n: int):
        code, data = self.checked.read(address, n)
        assert code == CODES.ok, f"reading {n} bytes at {address:#x}: {code}"
        return data


def make_pool(device: Device, **options):
    return _core.pool.Pool(device.checked, **options)


class Block:
    def __init__(self, pool, address):
        self.pool, self.address = pool, address

    def __del__(self):
        self.pool.free(self.address)


class Machine:
    """What dymem.stress.execute.run() asks of a device, over a pool: accounting only, so nothing is read or written."""

    def __init__(self, pool):
        self.pool = pool

    def begin(self): ...
    def wait(self): ...

    def make(self, size, stream):
        return Block(self.pool, self.pool.malloc(size, stream))

    def results(self, count):
        return [0] * count

    def exhausted(self, error):
        return isinstance(error, OutOfMemory)
