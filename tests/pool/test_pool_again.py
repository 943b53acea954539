"""What survives a limit in a new pool survives it in one that has seen the same work and was emptied, or nearly so.

A pool remembers the peak it once held; under a limit that must not make it grow early where it should stitch.
"""

import pytest
from devices import Device, make_pool

from dymem.errors import OutOfMemory
from dymem.replaying import replay_recording
from dymem.stress.execute import run
from dymem.stress.patterns import PATTERNS
from dymem.stress.program import program_of

SCALE = 4 << 30


class Block:
    def __init__(self, pool, address):
        self.pool, self.address = pool, address

    def __del__(self):
        self.pool.free(self.address)


class Machine:
    """execute.Device over a pool: accounting only, so nothing is read or written."""

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


@pytest.mark.parametrize("name, again", [("comb", 1.018), ("train_eval", 1.010), ("growing_batch", 1.009),
                                         ("variable_lengths", 1.012), ("checkerboard", 1.003)])
def test_a_pool_that_has_been_here_before_needs_no_more(name, again):
    recording = PATTERNS[name].script(SCALE, 0).recording(name)
    occupied = replay_recording(recording)["occupied_peak_bytes"]
    program = program_of(recording)
    device = Device(capacity=4 * SCALE, bytes=False)
    pool = make_pool(device)
    machine = Machine(pool)
    for _ in range(3):
        assert run(program, machine, touch=False).oom is None
    pool.trim()
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 0
    pool.set_limit(int(occupied * again))
    assert run(program, machine, touch=False).oom is None
    assert pool.audit() == []
