"""Facts on the card: the programs of tests/mobility, their tensors on the GPU, under dymem. Each list of programs is one
process; a minute in all."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

START = f"""
sys.path.insert(0, {str(Path(__file__).resolve().parent.parent / "mobility")!r})
HOST, DEVICE = False, "cuda"
from dymem.mobility import Profile, classes, profile_iteration
from programs import PROGRAMS
from test_models import check_sound, lifetimes
torch.set_default_device(DEVICE)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
"""
# A backward on the card has a thread of its own, which lets go of its last tensors a moment before or after the program goes on:
# that may tell another life of one or two.
START += """
def alike(name, first, second):
    assert len(first) == len(second), (name, len(first), len(second))
    differing = [pair for pair in zip(first, second) if pair[0] != pair[1]]
    assert len(differing) <= (0 if HOST else 2), (name, differing)
"""
# PyTorch's engine goes by numbers that each thread gives the nodes it makes. Those of a first backward are made by the card's
# thread, whose numbers rise at a pace of their own: how they mix with the forward's changes from step to step.
START += """
from collections import Counter
def same_blocks(name, first, second):
    differing = (Counter(first) - Counter(second)) + (Counter(second) - Counter(first))
    assert differing.total() <= 4, (name, differing)
"""
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

SAME = """
for name in sys.argv[1:]:
    plain = PROGRAMS[name]()
    losses = [plain().hex() for _ in range(5)]
    del plain
    step = PROGRAMS[name]()
    told = [step().hex(), step().hex()]
    profiles = []
    for _ in range(2):
        with Profile(HOST) as profile:
            told.append(step().hex())
        profiles.append(profile)
    told.append(step().hex())
    assert told == losses, (name, told, losses)
    for profile in profiles:
        check_sound(profile.facts)
    first, second = (profile.facts for profile in profiles)
    assert [n for n in second.segments if n == "B"] == [n for n in first.segments if n == "B"]
    if name == "double_backward":
        same_blocks(name, lifetimes(first), lifetimes(second))
    elif name != "changing_depth":
        alike(name, lifetimes(first), lifetimes(second))
        for rule in ("lifetime", "paper"):
            alike(name, classes(first, rule), classes(second, rule))
    if not HOST:
        sound()
"""


@pytest.mark.parametrize("names", [
    ["residual", "inception", "transformer", "accumulated", "custom_function", "shared_weights", "frozen"],
    ["checkpointed", "checkpointed_reentrant", "views_in_place", "several_backwards", "double_backward", "adversarial"],
    ["foreign_optimizer", "inference", "offloaded", "backward_on_its_own_thread", "changing_depth"]])
def test_training_is_not_changed_and_repeats(on_card, names):
    on_card(START + SAME, *names, **ENVIRONMENT)


def test_beside_the_trace(on_card):
    """Numbers are those of the trace; what it recorded of the iteration is what the facts say, and what the iterations before
    and after it did, which nobody watched."""
    on_card(START + """
from dymem.trace.snapshot import ALLOC, EVENT
step = PROGRAMS["residual"]()
step(), step()
def recorded(run):
    before = len(_core.abi.recorder(0).events())
    run()
    return list(EVENT.iter_unpack(_core.abi.recorder(0).events()[before:]))
def watched():
    global profile
    with Profile(HOST) as profile:
        step()
plain, events, after = recorded(step), recorded(watched), recorded(step)
told = [(e[1], e[2], e[3]) for e in events if e[4] == ALLOC]
assert told == [(a.number, a.bytes, a.stream) for a in profile.facts.allocations]
def shape(events):  # numbers from the iteration's own first
    first = min(e[1] for e in events if e[4] == ALLOC)
    return [(e[1] - first if e[1] >= first else -1, e[2], e[3], e[4]) for e in events]
assert shape(plain) == shape(events) == shape(after), "watching changes neither what is allocated nor when it is freed"
sizes = sorted(a.bytes for a in profile.facts.allocations if a.role == "gradient")
assert len(sizes) == sum(a.role == "parameter" for a in profile.facts.older), "a gradient for each parameter"
""", DYMEM_CONF="trace:on", **ENVIRONMENT)


def test_a_graph_that_is_replayed_meanwhile(on_card):
    """Memory of captured graphs is not the pool's: nothing is said of it, and the rest is complete."""
    on_card(START + """
x = torch.ones(64, 64)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    (x @ x).relu()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x @ x).relu()
step = PROGRAMS["residual"]()
step()
def both():
    graph.replay()
    return step()
loss, facts = profile_iteration(both)
check_sound(facts)
assert facts.segments[:3] == ["F", "B", "O"] and float(y[0, 0]) == 64
""", **ENVIRONMENT)


def test_a_capture_within_a_profile(on_card):
    on_card(START + """
step = PROGRAMS["residual"]()
step()
x = torch.ones(64, 64)
with Profile() as profile:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    step()
assert profile.facts.complete and float(y[0, 0]) == 2
sound()
""", **ENVIRONMENT)


def test_two_streams(on_card):
    on_card(START + """
side = torch.cuda.Stream()
step = PROGRAMS["residual"]()
def both():
    with torch.cuda.stream(side):
        x = torch.ones(1 << 20).exp()
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    return step() + float(x[0])
both(), both()
facts = profile_iteration(both)[1]
streams = {a.stream for a in facts.allocations}
assert len(streams) == 2 and facts.complete
for stream in streams:
    assert [a.place for a in facts.allocations if a.stream == stream] == list(range(sum(
        a.stream == stream for a in facts.allocations)))
""", **ENVIRONMENT)
