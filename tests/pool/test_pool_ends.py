"""Two parts of one slab: where each class goes under each placement, against a model that knows intervals only.

The model states the rule anew: a block is of the low or the high part, the gap lies between the last low block and the first
high one, holes are what is free outside it. It keeps no free lists and no runs.
"""

import pytest
from devices import GIB, Device, make_pool
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_model import MIB, UNIT, block_bytes

from dymem.errors import InvalidArgument, OutOfMemory

LOW, HIGH, EITHER = "low", "high", "low and high"
CLASSES = ["untagged", "movable", "temporary", "reclaimed"]
PLACEMENTS = ["best_fit", "two_ends", "by_size", "grouped"]


def open_slab(limit=0, **options):
    """A slab that one small temporary block at its far end has opened; its base and its end."""
    pool = make_pool(Device(capacity=GIB, bytes=False), backing="contiguous", limit=limit, **options)
    small = options.get("placement") == "by_size"
    first = pool.malloc(UNIT, 0, "untagged" if small else "temporary")
    end = first + UNIT
    return pool, end - pool.stats()["slab_bytes"]["current"], end


BEST, OUTERMOST, OPPOSITE = "best", "outermost", "best, at the other end"
OUTERMOST_OF = 16  # of the holes that fit best
TINY = 32 << 10


def parts(placement, mobility, size):
    """In which parts a block may lie, in order, and which hole it takes in each; and the part whose end of the gap it takes."""
    if placement == "two_ends":
        return [(HIGH, BEST)] if mobility == "temporary" else [(LOW, BEST)], HIGH if mobility == "temporary" else LOW
    if placement == "by_size":
        return [(HIGH, BEST)] if size <= MIB else [(LOW, BEST)], HIGH if size <= MIB else LOW
    if placement == "grouped" and mobility != "untagged" and size < TINY:
        return [(EITHER, OPPOSITE)], HIGH if mobility == "temporary" else LOW
    if placement == "grouped" and mobility == "temporary":
        return [(HIGH, OUTERMOST), (LOW, BEST)], HIGH
    if placement == "grouped" and mobility == "untagged":
        return [(HIGH, OUTERMOST), (LOW, OUTERMOST)], LOW
    return [(LOW, BEST)], LOW


class Model:
    def __init__(self, base, end, placement):
        self.base, self.end, self.placement = base, end, placement
        self.blocks = {end - UNIT: (UNIT, HIGH)}
        self.squeeze = end - UNIT - base
        self.apart, self.mark, self.apart_base = {}, 0, None  # the incremental slab, by offset
        self.apart_size = (end - base) // 5 // (2 * MIB) * 2 * MIB

    def gap(self):
        low = max([at + size for at, (size, part) in self.blocks.items() if part == LOW], default=self.base)
        high = min([at for at, (_, part) in self.blocks.items() if part == HIGH], default=self.end)
        return low, high

    def holes(self):
        """(size, address, part) of what is free outside the gap."""
        low, high = self.gap()
        for part, start, stop in ((LOW, self.base, low), (HIGH, high, self.end)):
            for at in sorted(self.blocks):
                if start <= at < stop:
                    if at > start:
                        yield at - start, start, part
                    start = at + self.blocks[at][0]
            if stop > start:
                yield stop - start, start, part

    def malloc_apart(self, size):
        """Best fit below the mark, then at the mark; None if it does not fit."""
        holes, start = [], 0
        for at in sorted(self.apart):
            if at > start:
                holes.append((at - start, start))
            start = at + self.apart[at]
        if self.mark - start == size:  # what ends at the mark goes on, unless it fits exactly
            holes.append((size, start))
        fits = sorted(hole for hole in holes if hole[0] >= size)
        at = fits[0][1] if fits else start
        if at + size > self.apart_size:
            return None
        self.apart[at] = size
        self.mark = max(self.mark, at + size)
        return at

    def free(self, address):
        if address in self.blocks:
            del self.blocks[address]
        else:
            del self.apart[address - self.apart_base]

    def malloc(self, size, mobility):
        """Its address; None if it does not fit."""
        order, end = parts(self.placement, mobility, size)
        for part, which in order:
            fits = sorted(hole for hole in self.holes() if hole[0] >= size and hole[2] in part)
            if fits:
                hole, at, where = fits[0]
                if which == OUTERMOST:
                    hole, at, where = sorted(fits[:OUTERMOST_OF], key=lambda fit: fit[1])[-1 if part == HIGH else 0]
                from_high = {BEST: end == HIGH, OUTERMOST: part == HIGH, OPPOSITE: end == LOW}
                at += hole - size if from_high[which] else 0
                break
        else:
            low, high = self.gap()
            if high - low < size:
                return None
            at, where = (high - size, HIGH) if end == HIGH else (low, LOW)
        self.blocks[at] = size, where
        low, high = self.gap()
        self.squeeze = min(self.squeeze, high - low)
        return at


STEPS = st.lists(st.tuples(st.sampled_from(["free", *CLASSES]),
                           st.one_of(st.integers(1, 12).map(lambda n: n * MIB // 2), st.integers(1, 9 * MIB),
                                     st.integers(1, 2 * TINY)),
                           st.integers(0, 99)), max_size=80)


@settings(max_examples=150)
@given(steps=STEPS, placement=st.sampled_from(PLACEMENTS[1:]))
def test_every_block_lies_where_the_rule_says(steps, placement):
    pool, base, end = open_slab(placement=placement)
    model, held = Model(base, end, placement), [end - UNIT]
    for what, size, which in steps:
        if what == "free":
            if held:
                address = held.pop(which % len(held))
                pool.free(address)
                model.free(address)
            continue
        held.append(pool.malloc(size, 0, what))
        offset = None
        if placement == "two_ends" and what == "reclaimed":
            offset = model.malloc_apart(block_bytes(size))
        if offset is None:
            assert held[-1] == model.malloc(block_bytes(size), what)
        else:
            model.apart_base = held[-1] - offset if model.apart_base is None else model.apart_base
            assert held[-1] - model.apart_base == offset
        assert pool.stats()["reserved_bytes"]["all"]["current"] == end - base - model.squeeze + model.mark
    assert pool.audit() == []


@settings(max_examples=60)
@given(steps=STEPS, placement=st.sampled_from(PLACEMENTS))
def test_a_pool_smaller_by_the_squeeze_gap_serves_the_same(steps, placement):
    """The paper's sizing, without beta: what was reserved in a large pool is what a pool must have. Of the main space: under a
    limit the incremental one is what it leaves, so nothing is reclaimed here."""
    steps = [("movable" if what == "reclaimed" else what, size, which) for what, size, which in steps]

    def serve(pool):
        held = []
        for what, size, which in steps:
            if what != "free":
                held.append(pool.malloc(size, 0, what))
            elif held:
                pool.free(held.pop(which % len(held)))
        assert pool.audit() == []
        return pool.stats()["reserved_bytes"]["all"]["peak"]

    options = {"backing": "contiguous", "placement": placement}
    reserved = serve(make_pool(Device(capacity=8 * GIB, bytes=False), **options))
    enough = -(-reserved // (2 * MIB)) * 2 * MIB  # slabs are multiples of it
    assert serve(make_pool(Device(capacity=8 * GIB, bytes=False), limit=enough or 2 * MIB, **options)) == reserved


@settings(max_examples=40)
@given(steps=STEPS, options=st.sampled_from([{}, {"limit": 64 * MIB}]))
def test_best_fit_knows_no_classes_and_untagged_blocks_no_placement(steps, options):
    def serve(placement, mobility):
        pool = make_pool(Device(capacity=GIB, bytes=False), backing="contiguous", placement=placement, **options)
        held, out = [], []
        for what, size, which in steps:
            if what == "free":
                if held:
                    pool.free(held.pop(which % len(held)))
                continue
            try:
                held.append(pool.malloc(size, 0, mobility or what))
                out.append(held[-1] - held[0] if len(out) else 0)
            except OutOfMemory:
                out.append(None)
        return out, pool.stats()["reserved_bytes"]["all"]["peak"], pool.audit()

    plain = serve("best_fit", "untagged")
    assert plain[2] == [] and serve("best_fit", None) == plain == serve("grouped", "untagged")


def test_the_far_end_of_the_slab_is_for_what_is_short_lived():
    pool = make_pool(Device(capacity=GIB, bytes=False), backing="contiguous")
    base = pool.malloc(2 * MIB, 0, "movable")
    slab = pool.stats()["slab_bytes"]["current"]
    far = pool.malloc(20 * MIB, 0, "temporary")
    assert far == base + slab - 20 * MIB
    assert pool.malloc(4 * MIB, 0, "movable") == base + 2 * MIB
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 26 * MIB, "not what lies between them"
    pool.free(far)
    assert pool.malloc(15 * MIB, 0, "movable") == base + 6 * MIB
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 26 * MIB, "the two were never held at once"
    assert pool.audit() == []


def test_what_is_free_at_a_mark_is_no_hole_for_what_is_short_lived():
    """Classes come after iterations without any: the first temporary block opens the slab, whatever is free at its mark."""
    pool = make_pool(Device(capacity=GIB, bytes=False), backing="contiguous")
    base = pool.malloc(2 * MIB, 0)
    pool.free(pool.malloc(100 * MIB, 0))
    slab = pool.stats()["slab_bytes"]["current"]
    assert pool.malloc(30 * MIB, 0, "temporary") == base + slab - 30 * MIB
    assert pool.malloc(70 * MIB, 0, "movable") == base + 2 * MIB
    assert pool.stats()["reserved_bytes"]["all"]["current"] == 102 * MIB and pool.audit() == []


def test_tiny_blocks_leave_holes_in_one_piece():
    """Each has the smallest hole of either part, and there the end from which large ones of its class do not come."""
    pool, base, end = open_slab()
    low = [pool.malloc(10 * MIB, 0, "movable") for _ in range(3)]
    high = [pool.malloc(size * MIB, 0, "temporary") for size in (8, 4)]
    pool.free(low[1])
    assert pool.malloc(TINY // 2, 0, "movable") == low[2] - TINY // 2, "large ones come from the low end"
    assert pool.malloc(TINY // 2, 0, "temporary") == low[1]
    pool.free(high[0])
    assert pool.malloc(TINY // 2, 0, "movable") == high[0] + 8 * MIB - TINY // 2, "the smallest hole is one of the other part"
    assert pool.malloc(TINY, 0, "movable") == low[1] + TINY // 2, "not tiny: of its own part, at the low end"
    assert pool.audit() == []


def test_a_tiny_block_lies_at_the_near_end_of_what_grows_with_the_mark():
    """A run at the mark of a slab without two parts has no other end: what lay there would keep it from growing."""
    pool, base, end = open_slab(placement="grouped")
    assert pool.malloc(end - UNIT - base, 0, "movable") == base
    first, second = (pool.malloc(8 * MIB, 0) for _ in range(2))  # of a further slab, in which nothing has a class
    assert second == first + 8 * MIB
    reserved = pool.stats()["reserved_bytes"]["all"]["current"]
    pool.free(second)
    assert pool.malloc(1000, 0, "movable") == second
    assert pool.malloc(8 * MIB, 0) == second + block_bytes(1000)
    assert pool.stats()["reserved_bytes"]["all"]["current"] == reserved + block_bytes(1000)
    assert pool.audit() == []


def test_what_is_spare_is_nobodys_and_not_free_memory():
    pool, base, end = open_slab()
    middle = base + (end - base) // 2
    assert pool.find(middle) is None and pool.owns(middle)
    assert sum(segment["size"] for segment in pool.segments()) == UNIT
    assert set(pool.unusable_free().values()) == {0.0} and pool.largest_free() == 0


def test_a_limit_counts_what_is_squeezed():
    pool, base, end = open_slab()
    pool.set_limit(30 * MIB)
    low, high = pool.malloc(10 * MIB, 0, "movable"), pool.malloc(15 * MIB, 0, "temporary")
    with pytest.raises(OutOfMemory):
        pool.malloc(5 * MIB, 0, "movable")
    pool.free(high)
    pool.malloc(15 * MIB, 0, "movable")
    assert low == base and pool.audit() == []


@pytest.mark.parametrize("placement, mobility", [("grouped", "movable"), ("two_ends", "movable"), ("two_ends", "temporary"),
                                                 ("by_size", "untagged")])
def test_rather_a_hole_of_another_class_than_none(placement, mobility):
    """At the limit a class takes what untagged memory would have, and no further slab comes before that."""
    pool, base, end = open_slab(limit=40 * MIB, placement=placement)
    small = placement == "by_size"
    other = {"movable": "temporary", "temporary": "movable", "untagged": "untagged"}[mobility]
    size = MIB if small else 10 * MIB
    held = [pool.malloc(size, 0, other) for _ in range(39 if small else 3)]
    for block in held[3:9] if small else held[1:2]:
        pool.free(block)
    wanted = 6 * MIB if small else size
    block = pool.malloc(wanted, 0, mobility)
    assert min(held) <= block <= max(held) and pool.stats()["slab_bytes"]["current"] == 40 * MIB
    with pytest.raises(OutOfMemory):
        pool.malloc(wanted, 0, mobility)
    assert pool.audit() == []


def test_what_is_reclaimed_leaves_its_slab_to_others_rather_than_fail():
    pool, base, end = open_slab(placement="two_ends")
    apart = [pool.malloc(4 * MIB, 0, "reclaimed") for _ in range(2)]
    pool.free(apart[0])
    pool.set_limit(pool.stats()["reserved_bytes"]["all"]["current"])
    assert pool.malloc(4 * MIB, 0, "movable") == apart[0] and pool.audit() == []


def test_an_open_slab_goes_when_it_is_idle():
    pool, base, end = open_slab()
    for mobility in CLASSES:
        pool.free(pool.malloc(5 * MIB, 0, mobility))
    pool.free(end - UNIT)
    assert pool.trim() == 5 * MIB + UNIT and pool.stats()["slab_bytes"]["current"] == 0
    pool.malloc(MIB, 0)
    assert pool.stats()["reserved_bytes"]["all"]["current"] == MIB and pool.audit() == []


def test_what_one_stream_freed_beside_the_gap_leaves_the_rest_of_it_to_others():
    """A gap that was never used is nobody's, though one stream's blocks join it while there is only that stream."""
    device = Device(capacity=GIB, bytes=False)
    pool = make_pool(device, backing="contiguous", wait=False)
    for _ in range(3):
        for block in [pool.malloc(10 * MIB, 1, "temporary"), pool.malloc(10 * MIB, 1, "movable")]:
            pool.free(block)
        device.advance_to(device.emulated.now() + 10**7)
        pool.trim()  # looks at what has finished
    pool.free(pool.malloc(10 * MIB, 1, "temporary"))
    device.set_busy_until(1, 10**12)
    pool.free(pool.malloc(10 * MIB, 1, "temporary"))
    pool.malloc(300 * MIB, 2, "movable")
    assert pool.stats()["segment"]["all"]["current"] == 1 and pool.stats()["num_sync_all_streams"] == 0
    assert pool.audit() == []


@pytest.mark.parametrize("mobility", ["untagged", "movable", "temporary"])
def test_a_stream_that_comes_later_waits_for_nobody_to_have_the_gap(mobility):
    """Blocks of the only stream there was lie free at both ends of the gap, their work not done."""
    device = Device(capacity=GIB, bytes=False)
    pool = make_pool(device, backing="contiguous", wait=False)
    ends = [pool.malloc(10 * MIB, 1, "temporary"), pool.malloc(10 * MIB, 1, "movable")]
    device.set_busy_until(1, 10**12)
    for block in ends:
        pool.free(block)
    block = pool.malloc(300 * MIB, 2, mobility)
    assert device.emulated.now() < 10**12, "the device was waited for"
    assert all(at + 10 * MIB <= block or block + 300 * MIB <= at for at in ends)
    assert pool.largest_free(1) >= 10 * MIB and pool.audit() == []


def test_the_largest_free_block_is_had_without_growing_past_what_others_use():
    device = Device(capacity=GIB, bytes=False)
    pool = make_pool(device, backing="contiguous", wait=False)
    pool.malloc(UNIT, 1, "temporary")
    near, next_to_it = pool.malloc(4 * MIB, 1, "movable"), pool.malloc(8 * MIB, 1, "movable")
    pool.free(pool.malloc(UNIT, 2, "temporary"))
    pool.free(next_to_it)
    pool.trim()  # sees it finished
    device.set_busy_until(1, 10**12)
    pool.free(near)
    assert (pool.largest_free(1), pool.largest_free(2)) == (12 * MIB + UNIT, 8 * MIB + UNIT)
    before = pool.stats()["reserved_bytes"]["all"]["current"]
    assert pool.malloc(8 * MIB, 2) == next_to_it
    assert pool.stats()["reserved_bytes"]["all"]["current"] == before and pool.audit() == []


def test_the_incremental_space_is_a_slab_beside_the_first_where_there_is_room():
    device = Device(capacity=GIB, bytes=False)
    pool = make_pool(device, backing="contiguous", placement="two_ends")
    base = pool.malloc(MIB, 0, "movable")
    apart = pool.malloc(2 * MIB, 0, "reclaimed")
    slabs = pool.stats()["slab_bytes"]["current"]
    assert not base <= apart < base + 768 * MIB and slabs == 768 * MIB + 152 * MIB, "a fifth of the first"
    assert pool.malloc(4 * MIB, 0, "movable") == base + MIB and pool.malloc(3 * MIB, 0, "reclaimed") == apart + 2 * MIB
    pool.malloc(200 * MIB, 0, "reclaimed")  # too large for it: as a movable one
    assert pool.stats()["segment"]["all"]["current"] == 2 and pool.audit() == []
    limited = make_pool(Device(capacity=GIB, bytes=False), backing="contiguous", placement="two_ends", limit=64 * MIB)
    base = limited.malloc(MIB, 0, "movable")
    assert limited.malloc(MIB, 0, "reclaimed") == base + MIB, "the first slab has all of the limit"


def test_a_placement_that_is_none():
    with pytest.raises(InvalidArgument, match="two_ends"):
        make_pool(Device(), placement="worst_fit")
