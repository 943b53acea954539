"""Facts of real models, profiled on the CPU: training is not changed, and what is told agrees with what PyTorch's own hooks
and graph tell of the same iteration."""

import collections
import gc
import os
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from programs import PROGRAMS, Scale, classifier, images, trained  # noqa: E402

from dymem.errors import InvalidArgument  # noqa: E402
from dymem.mobility import MOVABLE, TEMPORARY, UNTAGGED, Facts, Profile, classes, profile_iteration  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def one_thread(adapter):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def profiled(name: str, warm: int = 1) -> Facts:
    step = PROGRAMS[name]()
    for _ in range(warm):
        step()
    gc.collect()
    return profile_iteration(step, host=True)[1]


def check_sound(facts: Facts) -> None:
    """What holds of the facts of any program."""
    assert facts.complete and not facts.notes
    assert [n.index for n in facts.nodes] == list(range(len(facts.nodes)))
    assert all(a.at < b.at for a, b in zip(facts.nodes, facts.nodes[1:]))
    assert all(n.end > n.at for n in facts.nodes), "everything that began has ended"
    for n in facts.nodes:
        assert n.phase == facts.segments[n.segment] or n.phase != "B"
        assert all(facts.allocations[i].node == n.index and facts.allocations[i].freed is None
                   or facts.allocations[i].freed > n.end for i in n.makes)
        assert n.forward is None or facts.nodes[n.forward].at < n.at
    for a in facts.allocations:
        assert a.freed is None or a.freed > a.at
        assert a.freed_in is None or a.freed_in >= a.segment
        assert all(facts.nodes[i].end > a.at for i in a.users), "nobody uses what is not there yet"
        assert a.freed is None or all(facts.nodes[i].at < a.freed for i in a.users), "nor what is gone"
        assert a.role != "workspace" or a.freed < facts.nodes[a.node].end
        assert not a.fork or len(a.users) > 1
    assert [a.place for a in facts.allocations] == list(range(len(facts.allocations))), "one stream: the host's"
    assert Facts.from_json(facts.to_json()) == facts
    assert len(classes(facts)) == len(classes(facts, "paper")) == len(facts.allocations)


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_is_not_changed(name):
    plain = PROGRAMS[name]()
    losses = [plain() for _ in range(4)]
    watched = PROGRAMS[name]()
    told = [watched()]
    for _ in range(2):
        with Profile(host=True) as profile:
            told.append(watched())
        check_sound(profile.facts)
    told.append(watched())
    assert [loss.hex() for loss in told] == [loss.hex() for loss in losses]


def lifetimes(facts: Facts) -> list[tuple]:
    return [(a.bytes, a.phase, a.role, a.kind) for a in facts.allocations]


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("threads_beside", "changing_depth")])
def test_next_iteration_is_of_the_same_classes(name):
    """What the facts are for: the n-th allocation of one iteration is of the class that the n-th of the last one was."""
    step = PROGRAMS[name]()
    step(), step()
    first, second = (profile_iteration(step, host=True)[1] for _ in range(2))
    assert lifetimes(first) == lifetimes(second)
    for rule in ("lifetime", "paper"):
        assert classes(first, rule) == classes(second, rule)


# --- against what PyTorch tells of itself


def storage_sizes(tensors) -> collections.Counter:
    """Bytes of the storages behind these tensors, each storage once."""
    return collections.Counter({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("name", ["residual", "inception", "transformer", "shared_weights"])
def test_saved_is_what_saved_tensor_hooks_see(name):
    step = PROGRAMS[name]()
    step()
    held = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]  # so no address comes twice
    older, seen = {t.untyped_storage().data_ptr() for t in held}, []

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in older:
            seen.append(tensor)
        return tensor

    with Profile(host=True) as profile, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step()
    told = collections.Counter(a.bytes for a in profile.facts.allocations if a.role == "saved")
    assert told == storage_sizes(seen) and sum(told.values()) > 5


def graph_of(loss):
    """Edges of autograd's graph: node -> nodes that it goes back to; walked from the loss."""
    edges, left = {}, [loss.grad_fn]
    while left:
        node = left.pop()
        if node in edges:
            continue
        edges[node] = [(n, i) for n, i in node.next_functions if n is not None]
        left.extend(n for n, _ in edges[node])
    return edges


@pytest.mark.parametrize("middle", ["residual", "inception"])
def test_forks_are_those_of_the_graph(middle):
    """A fork in forward is an output with several edges into it; `+` and cat are the joins."""
    from programs import Block, Inception

    torch.manual_seed(0)
    net = classifier(Block(8) if middle == "residual" else Inception(8))
    x, y = images()
    F.cross_entropy(net(x), y).backward()
    with Profile(host=True) as profile:
        loss = F.cross_entropy(net(x), y)
        edges = graph_of(loss)
        loss.backward()
    into = collections.Counter(edge for after in edges.values() for edge in after)
    forks = sorted(count for (node, _), count in into.items() if count > 1 and "AccumulateGrad" not in node.name())
    told = [a for a in profile.facts.allocations if a.fork and a.phase == "F"]
    users = sorted(sum(profile.facts.nodes[i].phase == "F" for i in a.users) for a in told)
    assert users == forks and forks


def test_inception_block_as_the_paper_says():
    facts = profiled("inception")
    tags = classes(facts, "paper")
    join = next(n for n in facts.nodes if n.name == "aten::cat")
    branches = [a for a in facts.allocations if join.index in a.users and a.phase == "F"]
    assert [a.waits for a in branches] == [True, True, True, False]
    assert [tags[a.index] for a in branches] == [TEMPORARY] * 3 + [MOVABLE]
    (fork,) = [a for a in facts.allocations if a.fork and a.phase == "F"]
    assert tags[fork.index] == TEMPORARY and sum(facts.nodes[i].phase == "F" for i in fork.users) == 4


def test_parameters_gradients_and_state():
    torch.manual_seed(0)
    net = classifier()
    step = trained(net, optimizer="adamw")
    with Profile(host=True) as profile:
        step()
    facts = profile.facts
    sizes = collections.Counter(p.untyped_storage().nbytes() for p in net.parameters())
    assert collections.Counter(a.bytes for a in facts.older if a.role == "parameter") == sizes
    assert collections.Counter(a.bytes for a in facts.allocations if a.role == "gradient") == sizes
    assert not [n for n in facts.nodes if n.kind == "accumulate" and n.makes], "gradients are taken over, not copied"
    state = collections.Counter(a.bytes for a in facts.allocations if a.role == "optimizer" and a.bytes > 8)
    assert state == sizes + sizes, "two moments"
    again = profile_iteration(step, host=True)[1]
    assert collections.Counter(a.bytes for a in again.older if a.role == "optimizer" and a.bytes > 8) == sizes + sizes


def test_gradients_that_are_kept_are_older_and_still_gradients():
    torch.manual_seed(0)
    net = classifier()
    F.cross_entropy(net(images()[0]), images()[1]).backward()
    with Profile(host=True) as profile:
        F.cross_entropy(net(images()[0]), images()[1]).backward()
    sizes = collections.Counter(p.grad.untyped_storage().nbytes() for p in net.parameters())
    assert collections.Counter(a.bytes for a in profile.facts.older if a.role == "gradient") == sizes


# --- what could confuse it


@pytest.mark.parametrize("name", ["checkpointed", "checkpointed_reentrant"])
def test_checkpoints_recompute_within_backward(name):
    facts, plain = profiled(name), profiled("transformer")
    saved = [sum(a.bytes for a in f.allocations if a.role == "saved" and a.phase == "F") for f in (facts, plain)]
    assert saved[0] < saved[1] / 2, "little is saved in forward"
    again = [n for n in facts.nodes if n.again]
    assert {"aten::linear", "aten::gelu"} <= {n.name for n in again} and {n.phase for n in again} == {"B"}
    recomputed = [a for a in facts.allocations if a.role == "saved" and a.phase == "B"]
    assert sum(a.bytes for a in recomputed) > saved[1] / 2 and all(a.short_lived for a in recomputed)


def test_accumulation_has_a_forward_and_a_backward_each():
    assert "".join(profiled("accumulated").segments).startswith("FBFBFBO")


def test_custom_function_is_one_node():
    facts = profiled("custom_function")
    (forward,) = [n for n in facts.nodes if n.name == "Scale"]
    (backward,) = [n for n in facts.nodes if n.name == "ScaleBackward"]
    assert backward.forward == forward.index and backward.phase == "B"
    assert any(facts.allocations[i].role == "saved" for i in forward.makes), "what it keeps on ctx"
    assert Scale.__name__ == forward.name


def test_nothing_is_saved_without_gradients():
    assert not {"saved", "gradient", "optimizer"} & {a.role for a in profiled("inference").allocations}
    assert profiled("inference").segments == ["F"]


def test_several_backwards_over_one_graph():
    facts = profiled("several_backwards")
    shared = [a for a in facts.allocations if a.role == "saved" and a.kind == "act"]
    assert shared and all(len({facts.nodes[i].at for i in a.users if facts.nodes[i].phase == "B"}) >= 2 for a in shared)


def test_other_threads_open_no_phase():
    assert profiled("threads_beside").segments[:3] == ["F", "B", "O"]


def test_compiled_region_is_one_node():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    compiled = torch.compile(net, backend="aot_eager")
    x = torch.randn(4, 16)

    def step():
        loss = compiled(x).square().mean()
        loss.backward()
        net.zero_grad()
        return loss.item()

    assert profile_iteration(step, host=True)[1].complete, "while it is compiled"
    step()
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    loss, facts = profile_iteration(step, host=True)
    assert counters["stats"]["unique_graphs"] == before, "nothing was compiled again"
    assert loss == step()
    forward, backward = [n for n in facts.nodes if n.kind == "custom"]
    assert forward.name.startswith("Torch-Compiled Region") and backward.name == "CompiledFunctionBackward"
    assert backward.forward == forward.index and {facts.allocations[i].role for i in forward.makes} == {"saved"}
    check_sound(facts)


def test_tensors_within_tensors():
    """A tensor that is written in Python and holds two others, as DTensor holds its part: their memory is what is used."""
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.randn(64), torch.randn(64)
    weight = torch.nn.Parameter(TwoTensor(a, b))

    def step():
        (weight * 2).exp().sum().backward()
        weight.grad = None

    step()
    facts = profile_iteration(step, host=True)[1]
    (forward,) = [n for n in facts.nodes if n.name == "aten::mul" and n.phase == "F"]
    assert [facts.allocation(i).bytes for i in forward.uses if facts.allocation(i).bytes > 8] == [256, 256], "not the number 2"
    saved = [x for x in facts.allocations if x.role == "saved" and x.bytes == 256]
    assert len(saved) == 2 and {facts.nodes[x.node].name for x in saved} == {"aten::exp"}
    check_sound(facts)


def test_exception_in_the_middle():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("on purpose")

    torch.manual_seed(0)
    net = classifier()
    with pytest.raises(ValueError, match="on purpose"):
        with Profile(host=True) as profile:
            Failing.apply(F.cross_entropy(net(images()[0]), images()[1])).backward()
    facts = profile.facts
    assert facts.notes == ["the iteration ended in ValueError; its allocations stay untagged."]
    assert facts.allocations and set(classes(facts)) == {UNTAGGED}
    assert profile_iteration(trained(net), host=True)[1].complete, "the next profile is as good as any"


def test_one_profile_at_a_time(adapter):
    with Profile(host=True) as outer:
        with pytest.raises(InvalidArgument, match="already"):
            Profile(host=True).__enter__()
        with pytest.raises(InvalidArgument, match="no facts yet"):
            _ = outer.facts
        torch.ones(4).exp()
    assert not adapter.op_log.running() and len(outer.facts.nodes) == 2
    with pytest.raises(InvalidArgument, match="no iteration"):
        adapter.op_log.stop()


def test_nothing_is_left_behind(adapter):
    """Not a callback, not a reference: a tensor of the iteration dies with it."""
    import weakref

    hooks = torch.nn.modules.module
    with Profile(host=True) as profile:
        tensor = torch.randn(8, requires_grad=True)
        gone = weakref.ref(tensor)
        tensor.exp().sum().backward()
        del tensor
        assert gone() is None
    assert not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks)
    torch.ones(4).exp()
    with Profile(host=True) as second:
        pass
    assert profile.facts.nodes and not second.facts.nodes and not second.facts.allocations


def test_without_a_pool_it_says_what_to_do():
    with pytest.raises(InvalidArgument, match="install dymem"):
        Profile().__enter__()


def test_child_that_is_forked_meanwhile_logs_nothing(adapter):
    def child() -> bool:
        torch.ones(4).exp()
        return not adapter.op_log.running() and profile_iteration(torch.ones, 4, host=True)[1].complete

    with Profile(host=True) as profile:
        pid = os.fork()
        if not pid:
            os._exit(0 if child() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        torch.ones(4).exp()
    assert "aten::exp" in [n.name for n in profile.facts.nodes]


def on_another_thread(work, *arguments) -> list:
    """What it returned, if it raised nothing."""
    told = []
    thread = threading.Thread(target=lambda: told.append(work(*arguments)))
    thread.start()
    thread.join()
    return told


def profiler_of_pytorch_begins() -> bool:
    try:
        with torch.autograd.profiler.profile(use_kineto=True):
            return True
    except RuntimeError:
        return False


def refused_elsewhere(profile) -> None:
    with pytest.raises(InvalidArgument, match="on the thread that began it"):
        profile.__exit__(None, None, None)


def test_profile_that_ends_on_another_thread_is_refused(adapter):
    """It goes on, and can be left where it was entered: nothing of it stays there."""
    def both() -> bool:
        with Profile(host=True) as profile:
            torch.ones(4).exp()
            assert on_another_thread(refused_elsewhere, profile) == [None]
            assert adapter.op_log.running()
            torch.ones(4).sin()
        return profile.facts.complete and [n.name for n in profile.facts.nodes if n.phase == "F"][-1] == "aten::sin"

    assert on_another_thread(lambda: (both(), profiler_of_pytorch_begins())) == [(True, True)]
    assert profile_iteration(torch.ones, 4, host=True)[1].complete


def test_profile_whose_thread_is_over_ends_anywhere(adapter, recwarn):
    profile = Profile(host=True)
    assert on_another_thread(profile.__enter__) == [profile] and adapter.op_log.running()
    refused_elsewhere(profile)
    assert not adapter.op_log.running()
    with pytest.raises(InvalidArgument, match="no facts yet"):
        profile.facts
    assert on_another_thread(profile.__enter__) == [profile] and adapter.op_log.running()
    del profile
    assert not adapter.op_log.running() and not recwarn.list
    assert profile_iteration(torch.ones, 4, host=True)[1].complete and profiler_of_pytorch_begins()


def test_profile_whose_thread_is_over_ends_though_its_ident_is_anothers(adapter):
    """Idents are used again, at once and by whatever thread comes next."""
    profile, idents, wait = Profile(host=True), [], threading.Event()
    on_another_thread(lambda: (profile.__enter__(), idents.append(threading.get_ident())))
    others = []
    while len(others) < 50 and idents[0] not in [other.ident for other in others]:
        others.append(threading.Thread(target=wait.wait))
        others[-1].start()
    try:
        refused_elsewhere(profile)
        assert not adapter.op_log.running()
        if idents[0] not in [other.ident for other in others]:
            pytest.skip("no thread got the ident")
    finally:
        wait.set()
        for other in others:
            other.join()


def test_exception_whose_class_cannot_be_named(adapter):
    """Asking it may raise, and what the iteration raised is what is told."""
    class Unnamed(type):
        @property
        def __name__(cls):
            raise RuntimeError("no name")

    class Odd(Exception, metaclass=Unnamed):
        pass

    profile = Profile(host=True)
    with pytest.raises(Odd), profile:
        raise Odd
    assert not profile.facts.complete and "ended in Odd" in profile.facts.notes[0]
    profile.__enter__()
    profile.__exit__("by hand", None, None)
    assert not profile.facts.complete and "ended in exception" in profile.facts.notes[0]


def test_profile_that_is_dropped_on_another_thread_says_what_stays(adapter):
    def both() -> None:
        held = [Profile(host=True)]
        held[0].__enter__()
        assert adapter.op_log.running()
        with pytest.warns(UserWarning, match="was dropped on another thread") as said:
            assert on_another_thread(held.clear) == [None]
        assert len(said) == 1 and not adapter.op_log.running()

    assert on_another_thread(both) == [None]  # so that what stays behind goes with it
    assert profile_iteration(torch.ones, 4, host=True)[1].complete


@pytest.mark.filterwarnings("error")
def test_profile_that_is_dropped_where_it_was_entered_leaves_nothing(adapter):
    profile = Profile(host=True)
    profile.__enter__()
    del profile
    assert not adapter.op_log.running() and profiler_of_pytorch_begins()


@pytest.mark.parametrize("kineto", [True, False])
def test_beside_a_profiler_of_pytorch_it_is_refused(adapter, kineto):
    """That one takes what the thread has for a state of its own: its callbacks would work on ours."""
    with torch.autograd.profiler.profile(use_kineto=kineto) as other:
        with pytest.raises(InvalidArgument, match="a profiler of PyTorch's"):
            Profile(host=True).__enter__()
        torch.ones(4).exp()
    assert not adapter.op_log.running()
    assert "aten::exp" in [event.name for event in other.function_events]
    with Profile(host=True) as profile:
        if not kineto:  # the last of the two: torch 2.11 starts no other profiler after one that was refused
            with pytest.raises(RuntimeError, match="already enabled"):
                torch.autograd.profiler.profile(use_kineto=True).__enter__()
        torch.ones(4).exp()
    assert "aten::exp" in [n.name for n in profile.facts.nodes]


@pytest.mark.filterwarnings("ignore:dymem")
def test_thread_that_kept_an_earlier_profile_tells_the_next_one_nothing(adapter):
    """It was ended elsewhere, so this thread still reports to it; and may be profiled again."""
    told = []

    def thread() -> None:
        held = [Profile(host=True)]
        held[0].__enter__()
        on_another_thread(held.clear)
        ended.set()
        again.wait()
        kept.append(torch.ones(1000))
        done.set()
        outer.wait()
        told.append(profile_iteration(torch.ones, 4, host=True)[1].complete)

    kept, ended, again, done, outer = [], threading.Event(), threading.Event(), threading.Event(), threading.Event()
    beside = threading.Thread(target=thread)
    beside.start()
    ended.wait()
    with Profile(host=True) as profile:
        again.set()
        done.wait()
    outer.set()
    beside.join()
    assert told == [True] and 4000 not in [a.bytes for a in profile.facts.allocations]


def test_operator_that_outlives_the_profile(adapter):
    """It began under the profile and ends after it, on another thread."""
    began, go = threading.Event(), threading.Event()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            began.set()
            go.wait()
            return x + 1

    thread = threading.Thread(target=lambda: Slow.apply(torch.ones(4)))
    with Profile(host=True) as profile:
        thread.start()
        began.wait()
    go.set()
    thread.join()
    assert [n.end for n in profile.facts.nodes if n.name == "Slow"] == [-1]
