"""The adapter for facts of real models on the CPU, and small operator logs written by hand."""

import pytest

from dymem.mobility.reading import (ALLOC, BEGIN, END, ENTRY, FREED, GRAD, HELD, INPUT, LEAF, NODE, facts_of)

NOT = (1 << 64) - 1  # no number, no sequence number


@pytest.fixture(scope="session")
def adapter(first_build):
    """dymem._torch, without installing it."""
    torch = pytest.importorskip("torch")
    from dymem import _adapter_build

    patch = pytest.MonkeyPatch()
    patch.setenv("DYMEM_CACHE", str(first_build.cache))
    yield _adapter_build.load(torch)
    patch.undo()


class Log:
    """An operator log, entry by entry; addresses and names are whatever one likes to call them."""

    def __init__(self, host=False, thread=1):
        self.rows, self.names, self.streams = [], [], []
        self.host, self.main, self.count = host, thread, 0
        self.addresses, self.sizes = {}, {}

    def at(self, name):
        return self.addresses.setdefault(name, 4096 * (1 + len(self.addresses)))

    def index(self, table, value):
        if value not in table:
            table.append(value)
        return table.index(value)

    def add(self, kind, flags=0, thread=None, name=0, a=0, b=0, c=0):
        self.rows.append(ENTRY.pack(kind, flags, thread or self.main, name, a, b, c))
        return self

    def begin(self, name, flags=GRAD, seq=NOT, thread=None, forward=0):
        return self.add(BEGIN, flags, thread, self.index(self.names, name), seq, forward)

    def end(self, thread=None):
        return self.add(END, thread=thread)

    def given(self, *names, leaf=False, thread=None):
        for name in names:
            self.add(INPUT, LEAF if leaf else 0, thread, 0, self.at(name), self.sizes.get(name, 64))
        return self

    def alloc(self, name, size=64, stream=0, thread=None, device=0):
        self.sizes[name] = size
        self.count += 1
        return self.add(ALLOC, device, thread, self.index(self.streams, stream), self.at(name), size, self.count - 1)

    def free(self, name, thread=None, device=0):
        return self.add(FREED, device, thread, 0, self.at(name), 0, NOT)

    def held(self, name, size=64, number=NOT, device=0):
        return self.add(HELD, device, None, self.index(self.streams, 0), self.at(name), size, number)

    def op(self, name, given=(), makes=(), **more):
        """A whole operator that is given this and allocates that."""
        thread = more.get("thread")
        self.begin(name, **more).given(*given, thread=thread)
        for made in makes:
            self.alloc(made, thread=thread)
        return self.end(thread)

    def node(self, name, given=(), makes=(), frees=(), saved=(), forward=1, **more):
        """A node of autograd as the engine runs it: given gradients, it works on them and on what was saved; what it frees
        goes after it has made what it makes."""
        thread = more.get("thread")
        self.begin("autograd::engine::evaluate_function: " + name, 0, thread=thread)
        self.begin(name, NODE, forward=forward, **more).given(*given, thread=thread)
        if saved or makes:
            self.begin("aten::some_backward", 0, thread=thread).given(*given, *saved, thread=thread)
            for made in makes:
                self.alloc(made, thread=thread)
            self.end(thread)
        self.end(thread)
        for gone in frees:
            self.free(gone, thread=thread)
        return self.end(thread)

    def facts(self, lost=0, displaced=False):
        return facts_of({"entries": b"".join(self.rows), "names": self.names, "streams": self.streams or [0],
                         "thread": self.main, "host": self.host, "lost": lost, "displaced": displaced})


@pytest.fixture
def log():
    return Log
