"""Traces written by hand: each line of a test is one event, so that the right answer can be told by reading it."""

import struct

import pytest

EVENT = struct.Struct("<qQQQBBHi")
KINDS = {"alloc": 0, "free": 1, "done": 2, "record": 3, "mark": 4, "segment_alloc": 5, "segment_free": 6}


class TraceWriter:
    """alloc, free (requested), done (completed) and record of numbered blocks; `at` moves the time, in microseconds."""

    def __init__(self):
        self.events, self.sizes = [], {}
        self.now, self.iteration = 0, -1

    def at(self, microseconds):
        self.now = microseconds * 1000
        return self

    def _add(self, kind, block, size, stream):
        self.events.append((self.now, block, size, stream, KINDS[kind], 0, 0, self.iteration))
        return self

    def alloc(self, block, size, stream=0):
        self.sizes[block] = size
        return self._add("alloc", block, size, stream)

    def free(self, block, stream=0):
        return self._add("free", block, self.sizes.get(block, 0), stream)

    def done(self, block, stream=0):
        return self._add("done", block, self.sizes.get(block, 0), stream)

    def record(self, block, stream):
        return self._add("record", block, self.sizes.get(block, 0), stream)

    def mark(self, iteration):
        self.iteration = iteration
        return self._add("mark", 0, iteration, 0)

    def segment(self, size):
        return self._add("segment_alloc" if size > 0 else "segment_free", 0, abs(size), 0)

    def bytes(self):
        return b"".join(EVENT.pack(*event) for event in self.events)


@pytest.fixture
def trace():
    return TraceWriter()
