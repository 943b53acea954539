"""A profile of what the adapter's pools are asked: beside the trace recorder, memory history, and neither."""

STEP = """
from dymem.mobility import Profile, classes

class Layer(torch.autograd.Function):  # an operator that takes memory of the pool, as one of CUDA would
    held = []

    @staticmethod
    def forward(ctx, x, keep):
        _torch.allocate_on(2 * MiB).free()
        Layer.held.append(_torch.allocate_on(4 * MiB, 0, 7))
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        Layer.held.pop().free()
        return grad, None

x = torch.ones(4, requires_grad=True)
older = _torch.allocate_on(1 * MiB)

def step():
    Layer.apply(x, True).sum().backward()

def profile():
    with Profile() as profile:
        step()
        older_now = _torch.allocate_on(512)
        older_now.free()
    return profile.facts
"""


def check(told: str, first: str) -> str:
    return STEP + told + f"""
facts = profile()
assert facts.complete, facts.notes
a, b, c = facts.allocations
assert [x.bytes for x in (a, b, c)] == [2 * MiB, 4 * MiB, 512]
assert [x.number for x in (a, b, c)] == [{first}, {first} + 1, {first} + 2], [x.number for x in (a, b, c)]
assert [(x.stream, x.place) for x in (a, b, c)] == [(0, 0), (7, 0), (0, 1)]
assert [x.role for x in (a, b, c)] == ["workspace", "saved", "other"]
assert facts.nodes[a.node].name == "Layer" == facts.nodes[b.node].name and c.node is None
assert facts.nodes[b.freed_by].name == "LayerBackward" and b.freed_in == 1
assert facts.older == [], "nothing used it"
with Profile() as last:
    older.free()
(o,) = last.facts.older
assert o.bytes == 1 * MiB and o.freed is not None
pool = _core.abi.pool(0)
assert pool.audit() == []
"""


def test_beside_the_recorder(script):
    script(check("step()\nbefore = 3", "before") + """
assert o.number == 0
trace = _core.abi.recorder(0)
count = len(trace.events()) // 40
_torch.allocate_on(512).free()
assert len(trace.events()) // 40 == count + 2, "it goes on recording"
assert count == 1 + 4 + 4 + 2 + 1
""", conf="driver='emulated', emulated_capacity='64MiB', trace=True")


def test_without_a_recorder_numbers_begin_at_0(script):
    script(check("step()", "0") + """
assert o.number is None
again = profile()
assert [x.number for x in again.allocations] == [0, 1, 2]
""")


def test_beside_memory_history(script):
    script(check("_torch.record_history(True)\nstep()", "3") + """
_torch.record_history(False)
assert profile().complete
""", conf="driver='emulated', emulated_capacity='64MiB', trace=True")


def test_history_switched_on_meanwhile_is_said(script):
    script(STEP + """
with Profile() as p:
    step()
    _torch.record_history(True)
    step()
assert not p.facts.complete and "history" in p.facts.notes[0] and set(classes(p.facts)) == {0}
_torch.record_history(False)
step()
assert profile().complete and _core.abi.pool(0).audit() == []
""")


def test_history_switched_meanwhile_leaves_the_recorder(script):
    """A trace goes on, and numbers of blocks with it, whatever comes and goes while an iteration is profiled."""
    script(STEP + """
from dymem.trace.snapshot import ALLOC, EVENT
def numbers():
    return [e[1] for e in EVENT.iter_unpack(_core.abi.recorder(0).events()) if e[4] == ALLOC]
for first in (True, False):
    with Profile() as p:
        step()
        _torch.record_history(first)
        step()
    assert not p.facts.complete
    step()
assert numbers() == list(range(1 + 3 * 2 * 2)), numbers()
assert profile().complete and _core.abi.pool(0).audit() == []
""", conf="driver='emulated', emulated_capacity='64MiB', trace=True")


def test_profiles_used_wrongly(script):
    script(STEP + """
from dymem.errors import InvalidArgument
p = Profile()
raises(InvalidArgument, lambda: p.__exit__(None, None, None), "has not begun")
with p:
    raises(InvalidArgument, p.__enter__, "already")
    raises(InvalidArgument, lambda: Profile().__exit__(None, None, None), "has not begun")
    step()
assert p.facts.complete and len(p.facts.allocations) == 2
raises(InvalidArgument, lambda: p.__exit__(None, None, None), "has ended")
assert len(p.facts.allocations) == 2
dropped = Profile()
dropped.__enter__()
del dropped
assert not _torch.op_log.running() and profile().complete
""")


def test_child_that_leaves_a_profile(script):
    """The code after a fork is the child's too: it goes on, without facts."""
    script(STEP + """
from dymem.errors import InvalidArgument
try:
    with Profile() as p:
        pid = os.fork()
        if pid:
            step()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if not pid:
        raises(InvalidArgument, lambda: p.facts, "no facts yet")
finally:
    if not pid:
        os._exit(sys.exc_info()[0] is not None)
assert p.facts.complete and len(p.facts.allocations) == 2
""")


def test_out_of_memory_inside(script):
    script(STEP + """
try:
    with Profile() as p:
        step()
        _torch.allocate_on(1 << 40)
except torch.OutOfMemoryError:
    pass
assert p.facts.notes == ["the iteration ended in OutOfMemoryError; its allocations stay untagged."]
assert p.ran_out and profile().complete
def caught():
    try:
        _torch.allocate_on(1 << 40)
    except torch.OutOfMemoryError:
        pass
caught()  # before it
for again in (False, True):
    with p:
        step()
        if not again:
            caught()
        step()
    if not again:
        assert p.ran_out and not p.facts.complete and len(p.facts.notes) == 1, p.facts.notes
        assert "memory ran out" in p.facts.notes[0] and "untagged" in p.facts.notes[0]
assert not p.ran_out and p.facts.complete and not p.facts.notes
for fails in (False, True):  # what a program does to its statistics says nothing of that
    with p:
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        if fails:
            caught()
        step()
    assert p.ran_out == fails and p.facts.complete != fails
""")


def test_threads_beside(script):
    script(STEP + """
import threading
stop = False
def work():
    while not stop:
        _torch.allocate_on(64 * 1024, 0, 9).free()
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for _ in range(20):
    facts = profile()
    mine = [a for a in facts.allocations if a.stream != 9]
    assert [a.bytes for a in mine] == [2 * MiB, 4 * MiB, 512] and [a.place for a in mine] == [0, 0, 1]
    assert all(a.node is None for a in facts.allocations if a.stream == 9)
stop = True
for t in threads: t.join()
assert _core.abi.pool(0).audit() == []
""")


def test_recording_with_facts(script, root, tmp_path):
    """bench/record_facts.py's loop, over a step that takes memory of an emulated device."""
    script(STEP + f"""
sys.path.insert(0, {str(root / "bench")!r})
import json
import record_facts
from dymem.rivals import ALLOCATORS
from dymem.rivals.history import History
from dymem.trace import load
from dymem.mobility import Facts, NAMES
from dymem.trace.snapshot import ALLOC, EVENT

history = History(ALLOCATORS["dymem"])
def training(i):
    history.phase("F")
    y = Layer.apply(x, True).sum()
    history.phase("B")
    y.backward()
    return 1.0

for own in (False, True):
    _core.abi.recorder(0).clear()
    facts, seconds, losses = record_facts.run(training, 5, 2, own, history, lambda: None)
    assert sorted(facts) == ([2, 3, 4] if own else [2]) and len(seconds) == 5 and losses == ["0x1.0000000000000p+0"] * 5
    events, told = record_facts.with_classes(_core.abi.recorder(0).events(), facts, "lifetime", own)
    _core.trace.write({str(tmp_path / 'made.dymem')!r}, events)
    (made,) = load({str(tmp_path / "made.dymem")!r})
    rows = [(e[7], chr(e[6]), NAMES[e[5]]) for e in EVENT.iter_unpack(made.events) if e[4] == ALLOC]
    plain, classed = ["untagged", "untagged"], ["temporary", "movable"]
    after = classed if own else plain
    assert rows == [(i, "F", name) for i in range(5) for name in (plain if i < 2 else after if i == 2 else classed)], rows
    assert told == ({{}} if own else {{"tagged_share": 1.0, "iterations_after": 2}})
assert record_facts.profile_cost([9, 9, 3, 2, 2], [2]) == 1.5 and record_facts.profile_cost([1, 1, 1], [2]) is None
""", conf="driver='emulated', emulated_capacity='64MiB', trace=True")
