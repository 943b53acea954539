"""Every allocator of the comparison on the card: it serves, keeps its cap, fails as running out of memory, tells its figures."""

import json

import pytest

from dymem.rivals import ALLOCATORS, USAGE

MIB = 1 << 20
CAP = 768 * MIB
PROGRAM = """
import json, sys
import torch
from dymem.rivals import ALLOCATORS, exhausted
from dymem.rivals.call_cost import call_ns
rival, cap = ALLOCATORS[sys.argv[1]], int(sys.argv[2]) or None
rival.install(cap)
torch.cuda.init()
rival.limit(cap)
held = [torch.ones(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
assert all(int(x.min()) == int(x.max()) == 1 for x in held)  # no large temporary
told = {"backend": torch.cuda.memory.get_allocator_backend(), "failed": False}
if cap:
    try:
        held += [torch.ones(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    except Exception as error:
        assert exhausted(error), repr(error)
        told["failed"] = True
    held = held[:8]
torch.cuda.synchronize()
told["usage"] = rival.usage()
told["call_ns"] = None if cap else call_ns()
print(json.dumps(told))
"""


def told_by(python, name, cap):
    if reason := ALLOCATORS[name].missing():
        pytest.skip(reason)
    from dymem.rivals import child_environment

    run = python("-c", PROGRAM, name, cap, env=child_environment(ALLOCATORS[name], cap or None), timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("name", ALLOCATORS)
def test_it_serves_and_tells_its_figures(python, name):
    told = told_by(python, name, 0)
    usage = told["usage"]
    assert set(usage) == set(USAGE)
    assert 512 * MIB <= usage["live_peak_bytes"] <= usage["occupied_peak_bytes"] <= 520 * MIB
    assert usage["occupied_peak_bytes"] <= usage["reserved_peak_bytes"] <= 2 * 1024 * MIB
    assert told["call_ns"] is None or 10 < told["call_ns"] < 1e6
    wanted = {"native": "native", "expandable": "native", "async": "cudaMallocAsync"}
    assert told["backend"] == wanted.get(name, "pluggable" if name.startswith("rmm") else "dymem")


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("name", ALLOCATORS)
def test_it_keeps_its_cap(python, name):
    told = told_by(python, name, CAP)
    assert told["failed"], "it took more than its cap"
    assert told["usage"]["reserved_peak_bytes"] <= CAP
