"""Hypothesis drives the C++ pool on an emulated device with real bytes; pool_model.py says what must hold.

Streams overlap, work finishes late, limits move, blocks are pinned, aliases come and go: after every step the audit is
empty, the driver's contract kept, the statistics equal the model's, and no block has lost a byte.
"""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, precondition, rule
import pytest

from devices import Device, make_pool
from pool_model import MIB, UNIT, Model, block_bytes

from dymem.errors import InvalidArgument, OutOfMemory

STREAMS = st.sampled_from([0, 7, 8])
SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 1 * MIB),
    st.integers(1, 12).map(lambda n: n * MIB // 2 + 512),
    st.integers(1, 12 * MIB),
    st.sampled_from([UNIT, UNIT + 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 6 * MIB, 10 * MIB]),
)
MOBILITY = st.sampled_from(["untagged", "movable", "temporary", "reclaimed"])
LIVE_MAX = 96 * MIB  # keeps a step fast: everything is filled and read back


class PoolMachine(RuleBasedStateMachine):
    held = Bundle("held")

    @initialize(shape=st.sampled_from(["stitch", "stitch", "stitch", "remap", "contiguous", "contiguous", "debug"]),
                lag=st.sampled_from([0, 0, 50]), slack=st.sampled_from([0, 8 * MIB]), small_slab=st.booleans())
    def start(self, shape, lag, slack, small_slab):
        self.device = Device()
        self.device.set_lag(lag)
        self.contiguous = shape == "contiguous"
        self.pool = make_pool(self.device, alias=shape != "remap", backing="contiguous" if self.contiguous else "vmm",
                              debug=shape == "debug", grow_slack=slack)
        self.model = Model(self.device, self.pool, lag)
        self.limit = 0
        if self.contiguous and small_slab:  # so that further ones follow
            self.pool.set_limit(16 * MIB)
            self.model.free(self.model.malloc(1, 0))
            self.pool.set_limit(0)

    def teardown(self):
        if not hasattr(self, "model"):
            return
        try:
            self.pool.set_limit(0)
            self.model.end()
            assert self.pool.stats()["reserved_bytes"]["all"]["current"] == 0
            assert self.device.emulated.physical_in_use() == 0
        finally:  # addresses are reserved by the terabyte: give them back before the next example
            device = self.device
            del self.model, self.pool, self.device
        assert device.emulated.physical_in_use() == 0 and device.emulated.mappings() == 0

    # --- what callers do

    def allocate(self, size, stream, mobility):
        live = sum(h.size for h in self.model.live.values())
        if live + size > LIVE_MAX:
            return None
        try:
            return self.model.malloc(size, stream, mobility)
        except OutOfMemory as error:
            self.explain(error, size, live)
            return None

    @rule(target=held, size=SIZES, stream=STREAMS, mobility=MOBILITY)
    def malloc(self, size, stream, mobility):
        block = self.allocate(size, stream, mobility)
        return multiple(*[block] if block else [])

    @rule(target=held, sizes=st.lists(SIZES, min_size=3, max_size=10), stream=STREAMS)
    def layer(self, sizes, stream):
        """Several at once, as a layer's forward does."""
        return multiple(*filter(None, [self.allocate(size, stream, "untagged") for size in sizes]))

    @rule(target=held, size=SIZES, count=st.integers(4, 12), streams=st.lists(STREAMS, min_size=2, max_size=3))
    def same_size(self, size, count, streams):
        return multiple(*filter(None, [self.allocate(size, streams[i % len(streams)], "movable") for i in range(count)]))

    @rule(every=st.integers(2, 3), stream=st.none() | STREAMS)
    def checkerboard(self, every, stream):
        """Frees every second or third block, in address order: many holes, none of them large."""
        blocks = sorted(self.model.live.values(), key=lambda h: h.address)
        for h in blocks[::every]:
            if stream is not None:
                self.model.record_stream(h, stream)
            self.release(h)

    def explain(self, error, size, live):
        """Failing is right only under a limit that something stands in the way of, and its figures are the truth."""
        figures, stats = error.figures, self.pool.stats()
        assert self.limit > 0, str(error)
        assert figures["requested"] in (size, block_bytes(size)) and figures["limit"] == self.limit
        assert figures["live"] == live == stats["allocated_bytes"]["all"]["current"]
        assert figures["reserved"] == stats["reserved_bytes"]["all"]["current"]
        assert figures["pending"] == stats["pending_bytes"]["current"]
        room = self.limit - -(-block_bytes(size) // (2 * MIB)) * 2 * MIB
        assert self.model.live or room < 0, f"nothing is held, and still: {error}"

    def release(self, h):
        while h.pins:
            self.pool.unpin(h.address)
            h.pins -= 1
        self.model.free(h)

    # A bundle may still name a block that checkerboard() freed: those are skipped.

    @rule(h=consumes(held))
    def free(self, h):
        if self.model.live.get(h.address) is h:
            self.release(h)

    @rule(h=held, stream=STREAMS)
    def record_stream(self, h, stream):
        if self.model.live.get(h.address) is h:
            self.model.record_stream(h, stream)

    @rule()
    def read_all_again(self):
        for h in self.model.live.values():
            self.model.verify(h)

    @rule(h=held)
    def pin(self, h):
        if self.model.live.get(h.address) is h:
            self.pool.pin(h.address)
            h.pins += 1

    # --- what the machine does

    @rule(stream=STREAMS, work=st.sampled_from([10, 100, 1000]))
    def enqueue_work(self, stream, work):
        self.model.enqueue(stream, work)

    @rule(by=st.sampled_from([1, 20, 200, 2000]))
    def time_passes(self, by):
        self.model.advance(by)

    @rule(by=st.sampled_from([2 * MIB, 500 * MIB]))
    def other_tenant(self, by):
        if self.device.free_memory() >= by + 512 * MIB:
            self.device.emulated.take_memory(by)
            self.device.emulated.give_memory(by)

    # --- what operators do

    @rule()
    def trim(self):
        before = self.pool.stats()["reserved_bytes"]["all"]["current"]
        given = self.model.trim()
        assert self.pool.stats()["reserved_bytes"]["all"]["current"] == before - given
        self.model.check(pending_exact=True)

    @rule(limit=st.one_of(st.just(0), st.integers(1, 64).map(lambda n: n * 2 * MIB)))
    def set_limit(self, limit):
        self.pool.set_limit(limit)
        self.limit = limit
        assert self.pool.limit() == limit

    @rule()
    def reset_peaks(self):
        self.pool.reset_peak_stats()
        stats = self.pool.stats()
        for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
            assert stats[name]["all"]["peak"] == stats[name]["all"]["current"]

    @precondition(lambda self: not self.limit)
    @rule(target=held, stream=STREAMS)
    def take_the_largest_free(self, stream):
        """What largest_free promises is had without growing."""
        size = self.pool.largest_free(stream)
        live = sum(h.size for h in self.model.live.values())
        if size == 0 or size + live > LIVE_MAX:
            return multiple()
        before = self.pool.stats()["reserved_bytes"]["all"]["current"]
        block = self.model.malloc(size, stream)
        assert self.pool.stats()["reserved_bytes"]["all"]["current"] == before
        return block

    # --- what callers should not do

    @rule(mistake=st.sampled_from(["inside", "freed", "unknown", "absurd"]), at=st.integers(0, 10_000))
    def mistake(self, mistake, at):
        """Refused, and nothing has changed: the invariants that follow say so."""
        if mistake == "absurd":
            with pytest.raises(InvalidArgument):
                self.pool.malloc([(1 << 46) + 1, 1 << 63, (1 << 64) - 1, -1][at % 4], 0)
            return
        blocks = list(self.model.freed.values() if mistake == "freed" else self.model.live.values())
        if mistake == "unknown" or not blocks:
            address = [0, 1, 512, 1 << 40, (1 << 64) - 512][at % 5]
        else:
            block = blocks[at % len(blocks)]
            address = block.address + (0 if mistake == "freed" else 1 + at % (block.size - 1))
        if address in self.model.live:
            return  # handed out again since
        for call in (self.pool.free, self.pool.pin, self.pool.unpin, lambda a: self.pool.record_stream(a, 7)):
            with pytest.raises(InvalidArgument):
                call(address)

    @invariant()
    def sound(self):
        if not hasattr(self, "model"):
            return
        self.model.check()
        self.model.check_blocks()
        stats = self.pool.stats()
        reserved = stats["reserved_bytes"]["all"]["current"]
        held = stats["slab_bytes"]["current"] if self.contiguous else reserved
        assert self.device.emulated.physical_in_use() == held >= reserved


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, suppress_health_check=list(HealthCheck))
TestPool = PoolMachine.TestCase
