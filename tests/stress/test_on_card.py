"""The card's side of `dymem stress`, torch's CUDA calls replaced: the order of what it asks, and that bytes arrive."""

import types

import pytest

from dymem.stress import PATTERNS, Script
from dymem.stress.execute import run
from dymem.stress.program import program_of

pytestmark = pytest.mark.torch
MIB = 1 << 20


@pytest.fixture
def card(monkeypatch):
    """A Card whose tensors lie in the host's memory, and the list of what it asked of CUDA."""
    torch = pytest.importorskip("torch")
    from dymem.stress.on_card import Card

    asked = []

    class Stream:
        def __init__(self):
            self.number = len(streams)
            streams.append(self)

        def wait_stream(self, other):
            asked.append(("wait_stream", self.number, other.number))

        def record_event(self):
            asked.append(("event", self.number))
            return types.SimpleNamespace(synchronize=lambda: asked.append(("synchronized",)))

    streams, empty, zeros = [], torch.empty, torch.zeros
    for name, stub in {"set_device": lambda device: None, "default_stream": lambda device: Stream(), "Stream": Stream,
                       "set_stream": lambda stream: asked.append(("on", stream.number)),
                       "_sleep": lambda cycles: asked.append(("sleep", cycles)), "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **more: zeros(*shape, **more))
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: asked.append(("record_stream", stream.number)))
    made = Card()
    made.asked = asked
    return made


@pytest.mark.parametrize("name", ["comb", "cross_stream_pending", "kv_cache_growth"])
def test_every_byte_that_was_written_is_read(card, name):
    outcome = run(program_of(PATTERNS[name].script(256 * MIB).recording(name)), card)
    assert outcome.oom is None and outcome.damaged == 0 and outcome.readings > 20


def test_a_fill_reaches_all_of_a_block(card):
    for size in (1, 512, 4096, 4097, 5 * MIB + 3):
        block, _ = token = card.make(size, 0)
        block.zero_()
        card.fill(token, 7)
        marked = block.nonzero()
        assert len(marked) == min(size, 4096)
        assert marked[-1] >= size - 1 - size // 2048, "its end is left out"
        assert int(marked.diff(dim=0).max() if size > 1 else 1) <= max(1, size // 4096)


def test_another_stream_waits_works_and_reads_before_it_is_done(card):
    script = Script()
    block = script.alloc(MIB)
    script.use_on(block, 7)
    script.free(block, done_after_ms=4)
    script.wait(30)
    run(program_of(script.recording("x")), card)
    assert [entry[0] for entry in card.asked] == ["wait_stream", "record_stream", "on", "sleep", "event", "synchronized"]
    assert card.asked[0] == ("wait_stream", 1, 0) and 2e5 < card.asked[3][1] < 1e6  # 0.4 ms


def test_memory_that_runs_out_is_told_from_other_errors(card):
    import torch

    assert card.exhausted(torch.OutOfMemoryError("CUDA out of memory")) and card.exhausted(MemoryError())
    assert not card.exhausted(RuntimeError("illegal memory access")) and not card.exhausted(ValueError())
