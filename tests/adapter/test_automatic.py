"""mobility:auto: programs that know nothing of it are profiled for one iteration and followed from then on.

The models train on the CPU with PyTorch's modules and optimizers; each layer also takes memory of the emulated pool as it would
on a GPU: workspace, a tensor saved for backward, a gradient on its way.
"""

import pytest

pytestmark = pytest.mark.torch

AUTO = "driver='emulated', emulated_capacity='256MiB', mobility='auto'"
PROGRAM = """
import threading
from dymem.mobility import Profile, automatic, follow, following_stats, stop_following

torch.manual_seed(0)
torch.set_num_threads(1)
pool = _core.abi.pool(0)
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
told = []

def take(size, stream=0):
    data = _torch.allocate_on(size, 0, stream)
    told.append(next(b["mobility"] for b in pool.blocks() if b["address"] == data.address))
    return data

class Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, i):
        take(2 * MiB).free()
        ctx.kept = take((1 + i % 3) * 64 * 1024)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        gradient = take(MiB + 512)
        ctx.kept.free()
        gradient.free()
        return grad, None

class Net(torch.nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))
        self.within = None

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            if i == 3 and self.within:
                self.within()
            if torch.is_grad_enabled():
                x = Take.apply(layer(x), i)
            else:
                x = layer(x)
                for size in (MiB, 2 * MiB, 2 * MiB):
                    take(size).free()
        return x

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def batch():
    return net(torch.ones(4, 8)).pow(2).sum()

def optimize(optimizer, parameters=3):
    for i in range(parameters):
        a, b = take(4096), take(4096)
        a.free()
        b.free()
    optimizer.step()
    optimizer.zero_grad()

def step(micro=1):
    told.clear()
    for _ in range(micro):
        loss = batch()
        loss.backward()
    optimize(optimizer)
    return loss.item()

def until_profiling():
    for _ in range(100):
        step()
        if automatic._search.state == "profiling": break

def over():
    # Nothing is left in Python, and all that is allocated is followed.
    assert automatic._search.state == "ended" and following_stats()["following"], automatic._search.state
    assert not hooks and not _torch.searching.on() and not _torch.op_log.running()
    assert dymem.memory_stats()["mobility.following"] == 1

ALL = ["temporary", "movable"] * 6 + ["temporary"] * 6 + ["temporary"] * 6
"""


def test_an_unmodified_program_is_followed(script):
    """As one that is not, in what it computes."""
    code = PROGRAM + """
losses = [step() for _ in range(6)]
if automatic._search is not None:
    assert told == ALL, told
    over()
for _ in range(20):
    losses.append(step())
    assert told == (ALL if following_stats()["following"] else ["untagged"] * 24)
assert following_stats()["departures"] <= 1 and pool.audit() == []
print([loss.hex() for loss in losses])
"""
    followed = script(code, conf=AUTO)
    assert followed.err == ""
    plain = script(code, conf=AUTO.replace("auto", "off"))
    assert followed.out == plain.out and followed.out.count("0x") == 26


def test_off_nothing_is_there(script):
    script(PROGRAM + """
for _ in range(8): step()
assert automatic._search is None and not hooks and not _torch.searching.on() and not following_stats()["following"]
dymem.iteration()
stop_following()
assert dymem.memory_stats()["mobility.following"] == 0
""", conf="driver='emulated', emulated_capacity='256MiB'")


@pytest.mark.parametrize("micro", [2, 5])
def test_accumulated_gradients(script, micro):
    """The profile is of all micro-batches and the optimizer's step."""
    said = script(PROGRAM + f"""
for _ in range(6): step(micro={micro})
over()
for _ in range(5):
    step(micro={micro})
    assert told == ALL[:18] * {micro} + ALL[18:]
assert following_stats()["departures"] <= 1
""", conf=AUTO)
    assert said.err == ""


def test_two_networks_in_turn(script):
    """As in a GAN: an iteration has two steps of optimizers."""
    script(PROGRAM + """
other = Net(4)
second = torch.optim.Adam(other.parameters())
def both():
    told.clear()
    batch().backward()
    optimize(optimizer)
    other(torch.ones(4, 8)).sum().backward()
    optimize(second, parameters=7)
for _ in range(8): both()
over()
both()
assert told == ALL + ["temporary", "movable"] * 4 + ["temporary"] * 4 + ["temporary"] * 14, told
assert following_stats()["departures"] <= 1
""", conf=AUTO)


def test_inference_and_foreign_optimizers_are_found_without_marks(script):
    said = script(PROGRAM + """
automatic.FIRST_LOOK = 64
_torch.searching.wake_at(64)
del optimizer
@torch.no_grad()
def infer():
    told.clear()
    held = take(4096)
    net(torch.ones(2, 8))
    held.free()
for _ in range(120): infer()
over()
infer()
assert "untagged" not in told and len(told) == 19
assert following_stats()["departures"] <= 2, following_stats()
""", conf=AUTO)
    assert said.err == ""
    said = script(PROGRAM + """
automatic.FIRST_LOOK = 64
_torch.searching.wake_at(64)
del optimizer
def step():  # an optimizer that PyTorch does not know
    told.clear()
    batch().backward()
    with torch.no_grad():
        for p in net.parameters():
            update = take(8192)
            p -= 0.01 * p.grad
            p.grad = None
            update.free()
for _ in range(150): step()
over()
step()
# It begins where backward has ended: before any operator, so that the first update is of no part of the iteration.
assert told[:18] + told[19:] == ALL[:18] + ["temporary"] * 11, told
assert following_stats()["departures"] <= 2 and pool.audit() == []
""", conf=AUTO)
    assert said.err == ""


def test_a_validation_before_training_is_not_followed(script):
    script(PROGRAM + """
automatic.FIRST_LOOK = 64
_torch.searching.wake_at(64)
with torch.no_grad():
    for _ in range(200): net(torch.ones(2, 8))
assert automatic._search.state == "looking" and automatic._search.before > 0
for _ in range(40): step()
over()
assert told == ALL
""", conf=AUTO)


def test_the_user_marks_iterations(script):
    """Marks are believed instead of optimizers; and they are in a trace."""
    script(PROGRAM + """
for _ in range(8):
    dymem.iteration()
    step(); step()
over()
from dymem.trace.snapshot import ALLOC, EVENT, MARK
events = list(EVENT.iter_unpack(_core.abi.recorder(0).events()))
assert [e[2] for e in events if e[4] == MARK] == list(range(8))
told.clear()
step(); first = list(told)
assert first == ALL and step() and told == ALL
""", conf=AUTO + ", trace=True")


def test_an_iteration_that_fails_is_not_followed(script):
    """An exception, or memory that runs out, in the profiled one: one line each, and another attempt."""
    said = script(PROGRAM + """
def broken(error):
    until_profiling()
    net.within = error
    try:
        step()
    except (ZeroDivisionError, torch.OutOfMemoryError):
        pass
    net.within = None
    step()
    assert not following_stats()["following"] and set(told) == {"untagged"}
gone = lambda: 1 / 0
broken(gone)
def caught():
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(1 << 40))
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(255 * MiB))
broken(caught)
for _ in range(12): step()
over()
assert step() and told == ALL and pool.audit() == []
""", conf=AUTO)
    lines = said.err.splitlines()
    assert len(lines) == 2 and "another attempt" in lines[0] and "not like those before" in lines[0], said.err
    assert "memory ran out in the profiled iteration" in lines[1]


def test_it_gives_up_after_some_attempts(script):
    said = script(PROGRAM + """
def caught():
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(255 * MiB))
net.within = caught
for _ in range(40): step()
assert automatic._search.state == "ended" and not hooks and not _torch.searching.on()
assert not following_stats()["following"] and pool.audit() == []
""", conf=AUTO)
    lines = said.err.splitlines()
    assert len(lines) == automatic_attempts() and "last of 3 attempts; all stays untagged" in lines[-1], said.err


def automatic_attempts():
    from dymem.mobility import automatic

    return automatic.ATTEMPTS


def test_what_does_not_repeat_is_given_up(script):
    said = script(PROGRAM + """
import random
automatic.STEPS_MAX = automatic.FIRST_LOOK = 4096
r, held = random.Random(1), []
for _ in range(3000):
    held.append(take(512 * r.randint(1, 2)))
    if r.random() < 0.97: held.pop(-1 - r.randrange(min(9, len(held)))).free()
    if r.random() < 0.01: optimizer.step()
for _ in range(3): step()
assert automatic._search.state == "ended" and not hooks and not _torch.searching.on()
assert set(told) == {"untagged"}
""", conf=AUTO)
    assert said.err.count("\n") == 1 and "no iterations were recognised within" in said.err, said.err


def test_a_model_that_changes(script):
    """Layers left out by chance; then for good: where it departs it is untagged, and training goes on."""
    said = script(PROGRAM + """
import random
r, whole = random.Random(5), list(net.layers)
for _ in range(60):
    net.layers = torch.nn.ModuleList(layer for layer in whole if r.random() < 0.9)
    step()
net.layers = torch.nn.ModuleList(whole[:2])
for _ in range(5): step()
assert pool.audit() == [] and automatic._search.state in ("ended", "looking", "profiling")
""", conf=AUTO)
    assert said.err.count("\n") <= 3, said.err


def test_beside_a_profiler_of_pytorchs(script):
    said = script(PROGRAM + """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as theirs:
    for _ in range(8): step()
assert any("Linear" in e.key or "addmm" in e.key for e in theirs.key_averages())
for _ in range(4): step()
over()
assert told == ALL
""", conf=AUTO)
    assert said.err.count("dymem") == 0, said.err


def test_beside_threads(script):
    """On a stream of their own they disturb nothing; on the same one nothing may be found, and nothing breaks."""
    script(PROGRAM + """
stop = False
def work(stream):
    held = []
    while not stop:
        held.append(_torch.allocate_on(64 * 1024, 0, stream))
        if len(held) > 3: held.pop(0).free()
        import time; time.sleep(0.001)
threads = [threading.Thread(target=work, args=(9,)) for _ in range(2)]
for t in threads: t.start()
for _ in range(60): step()
stop = True
for t in threads: t.join()
over()
assert step() and told == ALL and pool.audit() == []
""", conf=AUTO)
    script(PROGRAM + """
stop = False
def work():
    while not stop: _torch.allocate_on(64 * 1024).free()
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start()
for _ in range(20): step()
stop = True
for t in threads: t.join()
for _ in range(30): step()
assert pool.audit() == []
""", conf=AUTO)


def test_training_in_a_thread(script):
    script(PROGRAM + """
def train():
    for _ in range(10): step()
t = threading.Thread(target=train)
t.start(); t.join()
for _ in range(2): step()
over()
assert told == ALL
""", conf=AUTO)


def test_graphs_under_capture(script):
    """What a private pool takes is no step: the iteration in which one is captured is profiled as any other."""
    script(PROGRAM + """
_torch.stand_in()
_torch.init()
GRAPH = (1, 0)
def capture():
    _torch.begin_pool(GRAPH, stream=7)
    kept = _torch.allocate_on(MiB, 0, 7)
    kept.free()
    _torch.end_pool(GRAPH)
until_profiling()
net.within = capture
step()
net.within = None
for _ in range(3): step()
over()
assert told == ALL and pool.audit() == []
""", conf=AUTO)


def test_children(script):
    """Forked while it searches, and while it profiles: a child does nothing, and the parent goes on."""
    script(PROGRAM + """
def fork():
    child = os.fork()
    if child == 0:
        optimizer.step()
        dymem.iteration()
        with Profile(host=True): pass
        assert not _torch.searching.on() and not following_stats()["following"]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
step(); fork()
until_profiling()
fork()
for _ in range(4): step()
over()
assert told == ALL
""", conf=AUTO)


def test_it_stands_aside(script):
    """For who profiles or follows by hand, whatever it was doing."""
    script(PROGRAM + """
until_profiling()
with Profile() as mine:
    step()
assert mine.facts.complete
for _ in range(20): step()
assert not hooks and not _torch.searching.on() and not following_stats()["following"]
assert set(told) == {"untagged"}
follow(mine.facts)
step(); step()
assert told == ALL
""", conf=AUTO)
    script(PROGRAM + """
for _ in range(6): step()
over()
stop_following()
step()
assert set(told) == {"untagged"}
""", conf=AUTO)


def test_it_stands_aside_once_another_thread_is_done_with_it(script):
    script(PROGRAM + """
import threading
from dymem.mobility import automatic
search = automatic._search
inside, go_on = threading.Event(), threading.Event()
def slow():
    inside.set()
    go_on.wait()
    assert search.state != "ended"
other = threading.Thread(target=search.guarded, args=(slow,))
other.start()
inside.wait()
mine = threading.Thread(target=stop_following)
mine.start()
threading.Timer(0.2, go_on.set).start()
mine.join()
assert search.state == "ended"
other.join()
""", conf=AUTO)


def test_it_does_not_stand_aside_for_what_cannot_be_followed(script):
    """Nothing would be followed then, ever."""
    script(PROGRAM + """
from dymem.mobility import Allocation, Facts
until_profiling()
raises(dymem.InvalidArgument, lambda: follow(None), "there are no facts")
raises(IndexError, lambda: follow(Facts(allocations=[Allocation(5, None, 0, 0, 0, 512, at=1)])))
assert automatic._search.state == "profiling"
for _ in range(4): step()
over()
assert told == ALL
""", conf=AUTO)


def test_an_error_of_its_own_is_no_error_of_the_program(script):
    said = script(PROGRAM + """
def broken(self, now): raise RuntimeError("a fault")
automatic.Search.look = broken
for _ in range(8): step()
assert automatic._search.state == "ended" and not hooks
""", conf=AUTO)
    assert said.err.count("\n") == 1 and "RuntimeError: a fault" in said.err and "untagged" in said.err
