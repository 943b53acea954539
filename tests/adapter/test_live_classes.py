"""Allocations of a running program have the classes of the profiled iteration: PyTorch's adapter over the emulated driver.

A step is six layers forward and backward, each with workspace, a tensor saved for backward, and a gradient on its way.
"""

import pytest

pytestmark = pytest.mark.torch

STEP = """
import threading
from dymem.mobility import Profile, classes, follow, following_stats, stop_following

pool = _core.abi.pool(0)
NAMES = ("untagged", "movable", "temporary", "reclaimed")
told = []  # the class of each allocation of a step, in order

def take(size, device=0, stream=0):
    data = _torch.allocate_on(size, device, stream)
    told.append(next(b["mobility"] for b in _core.abi.pool(device).blocks() if b["address"] == data.address))
    return data

class Layer(torch.autograd.Function):
    held = []

    @staticmethod
    def forward(ctx, x, i, place):
        ctx.place = place
        take(2 * MiB, *place).free()
        Layer.held.append(take((1 + i % 3) * MiB, *place))
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        gradient = take(1 * MiB + 512, *ctx.place)
        Layer.held.pop().free()
        gradient.free()
        return grad, None, None

weights = torch.ones(4, requires_grad=True)

def step(place=(0, 0), between=None):
    told.clear()
    x = weights
    for i in range(6):
        if i == 3 and between:
            between()
        x = Layer.apply(x, i, place)
    x.sum().backward()
    return list(told)

def profiled(*arguments):
    step(*arguments)
    with Profile() as profile:
        step(*arguments)
    return profile.facts
ALL = ["temporary", "movable"] * 6 + ["temporary"] * 6
NOTHING = ["untagged"] * 18
"""


def test_from_the_next_iteration_on(script):
    script(STEP + """
assert following_stats() == dict.fromkeys(following_stats(), 0)
facts = profiled()
assert [NAMES[c] for c in classes(facts)] == ALL
assert step() == NOTHING and follow(facts) is True
for _ in range(20):
    assert step() == ALL
size = sum(a.bytes for a in facts.allocations)
assert following_stats() == {"following": True, "allocations": 360, "tagged": 360, "departures": 0, "streams": 1,
                             "allocated_bytes": 20 * size, "tagged_bytes": 20 * size}, following_stats()
stop_following()
assert step() == NOTHING and following_stats()["allocations"] == 360 and not following_stats()["following"]
stop_following()
follow(facts, rule="paper")
assert [NAMES[c] for c in classes(facts, "paper")] == step() != ALL
assert pool.audit() == []
""")


def test_departures_are_untagged_and_taken_up_again(script):
    script(STEP + """
follow(profiled())
def between():
    for _ in range(3):
        take(64 * 1024)
assert step() == ALL
departed = step(between=between)
assert departed[:6] == ALL[:6] and "untagged" in departed[6:9], departed
after = list(zip(departed[9:], ALL[6:]))  # what was there before is older by three now: that departs once more
assert all(tag in (meant, "untagged") for tag, meant in after) and sum(tag == meant for tag, meant in after) >= 6, after
assert following_stats()["departures"] >= 1
step()
assert step() == ALL
told.clear()
try:
    step(between=lambda: 1 / 0)  # an iteration that ends in an exception
except ZeroDivisionError:
    pass
while Layer.held: Layer.held.pop().free()
for _ in range(3): last = step()
assert last == ALL and pool.audit() == []
""")


def test_out_of_memory_is_no_step(script):
    """Neither where the program catches it, nor where a callback makes room within the request."""
    script(STEP + """
follow(profiled())
spare = []
def make_room():
    while spare: spare.pop().free()
    return True
def between():
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(1 << 40))
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(62 * MiB))
for _ in range(3):
    assert step(between=between) == ALL
assert following_stats()["departures"] == 0
_torch.set_free_callback(make_room)
spare.append(_torch.allocate_on(40 * MiB))
tall = _torch.allocate_on(40 * MiB)   # what it needed went within it
assert not spare
tall.free()
step(); step()
assert step() == ALL and pool.audit() == []
""")


def test_a_stream_for_every_iteration_and_two_devices(script):
    script(STEP + """
def both(i):
    step((0, 0))
    one = list(told)
    step((1, i))
    return one + told
_core.abi.pool(1)
both(5)
with Profile() as profile:
    both(5)
follow(profile.facts)
for i in range(40):
    assert both(100 + i) == ALL + ALL
assert following_stats()["streams"] == 41 and following_stats()["departures"] == 0
assert pool.audit() == [] == _core.abi.pool(1).audit()
""", conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=2")


def test_threads_beside(script):
    script(STEP + """
facts = profiled()
stop = False
def work(stream):
    held = []
    while not stop:
        held.append(_torch.allocate_on(64 * 1024, 0, stream))
        if len(held) > 3: held.pop(0).free()
def switch():
    while not stop:
        follow(facts); following_stats(); stop_following()
threads = [threading.Thread(target=work, args=(stream,)) for stream in (9, 9, 10, 0)]
for t in threads: t.start()
follow(facts)
for _ in range(30): assert set(step()) <= set(ALL) | {"untagged"}
threads.append(threading.Thread(target=switch))
threads[-1].start()
for _ in range(30): step()
stop = True
for t in threads: t.join()
assert pool.audit() == []
follow(facts)
assert step() == ALL
""")


def test_beside_memory_history_and_the_recorder(script):
    script(STEP + """
follow(profiled())
_torch.record_history(True)
assert step() == ALL
entries = torch._C._cuda_memorySnapshot(None)["device_traces"][0]
assert sum(e["action"] == "alloc" for e in entries) == 18
stop_following()
assert step() == NOTHING and _torch.is_history_enabled()
entries = torch._C._cuda_memorySnapshot(None)["device_traces"][0]
assert sum(e["action"] == "alloc" for e in entries) == 36
_torch.record_history(False)
from dymem.trace.snapshot import ALLOC, EVENT
events = [e for e in EVENT.iter_unpack(_core.abi.recorder(0).events()) if e[4] == ALLOC]
assert [e[5] for e in events[-36:]] == [NAMES.index(name) for name in ALL + NOTHING]
""", conf="driver='emulated', emulated_capacity='64MiB', trace=True")


def test_private_pools_are_not_followed(script):
    script(STEP + """
_torch.stand_in()
_torch.init()
follow(profiled())
GRAPH = (1, 0)
theirs = []
def between():
    _torch.begin_pool(GRAPH, stream=0)
    theirs.extend(_torch.allocate_on(MiB) for _ in range(5))
    theirs.pop().free()
    _torch.end_pool(GRAPH)
assert step(between=between) == ALL
_torch.begin_pool(GRAPH, stream=7)
assert step() == ALL  # beside a capture on another stream
_torch.end_pool(GRAPH)
for data in theirs: data.free()
assert step() == ALL and following_stats()["allocations"] == 3 * 18 and following_stats()["departures"] == 0
assert pool.audit() == []
""")


def test_children_do_not_follow(script):
    script(STEP + """
follow(profiled())
held = take(MiB)
child = os.fork()
if child == 0:
    held.free()
    stop_following()
    os._exit(0 if not following_stats()["following"] else 3)
assert os.waitpid(child, 0)[1] == 0
held.free()
step()
assert step() == ALL and pool.audit() == []
""")


def test_what_cannot_be_followed_is_said(script):
    script(STEP + """
import warnings
facts = profiled()
raises(dymem.InvalidArgument, lambda: follow(facts, rule="age"), "no rule 'age'")
follow(facts)
try:
    with Profile() as broken:
        step()
        _torch.allocate_on(1 << 40)
except torch.OutOfMemoryError:
    pass
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert follow(broken.facts) is False
assert len(said) == 1 and "OutOfMemoryError" in str(said[0].message) and "untagged" in str(said[0].message)
assert "live.py" not in said[0].filename
assert step() == NOTHING and not following_stats()["following"]
with Profile() as empty:
    pass
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert follow(empty.facts) is False
assert "nothing was allocated" in str(said[0].message)
follow(facts)
assert step() == ALL
for thing in (None, empty):
    raises(dymem.InvalidArgument, lambda: follow(thing), "there are no facts in", "Facts.load")
raises(dymem.InvalidArgument, lambda: follow(facts, rule=[]), "there is no rule")
assert step() == ALL, "what was followed goes on"
""")


def test_facts_of_cpu_memory_are_not_followed(script):
    """Nor along device 0, as which their memory counts; also when they were saved and loaded."""
    script(STEP + """
import warnings
from dymem.mobility import Facts
with Profile(host=True) as profile:
    held = [torch.ones(64 + i) for i in range(40)]
    while held: held.pop()
assert profile.facts.complete and profile.facts.allocations
follow(profiled())
assert step() == ALL
for facts in (profile.facts, Facts.from_json(profile.facts.to_json())):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert follow(facts) is False
    assert len(said) == 1 and "memory of the CPU (host=True)" in str(said[0].message), said
    assert step() == NOTHING and not following_stats()["following"]
""")


def test_not_installed(script):
    script("""
from dymem.mobility import Facts, follow, following_stats, stop_following
raises(dymem.InvalidArgument, lambda: follow(Facts()), "dymem.install()")
stop_following()
assert following_stats()["following"] is False and following_stats()["tagged"] == 0
""", conf=None)
