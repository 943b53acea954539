"""What survives a limit in a new pool survives it in one that has seen the same work and was emptied, or nearly so.

A pool remembers the peak it once held; under a limit that must not make it grow early where it should stitch.
"""

import pytest
from devices import Device, Machine, make_pool

from dymem.replaying import replay_recording
from dymem.stress.execute import run
from dymem.stress.patterns import PATTERNS
from dymem.stress.program import program_of

SCALE = 4 << 30


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
