"""Another allocator under the pool's limit (allocator/pool/claims.hpp): whatever way the steps of calls that are under way
fall between each other, the two never hold more than the limit together, and nothing stays set aside.

The other allocator and the adapter's protocol around it are modelled here, a generator for each thread, which yields
wherever another thread may come between.
"""

import random

import pytest

from devices import Device, make_pool
from pool_model import MIB

from dymem.errors import OutOfMemory

LIMIT = 32 * MIB


class Other:
    """Grows up to a cap that it was given, and says how much it ever reserved and gave back, bytes."""

    def __init__(self):
        self.cap = 0
        self.allocated = self.freed = 0
        self.capping = False  # one thread at a time gives it a cap
        self.refused = 0

    @property
    def held(self) -> int:
        return self.allocated - self.freed

    def grow(self, size: int):
        if self.held + size <= self.cap:
            self.allocated += size
        else:
            self.refused += 1


def settle(pool, other):
    while True:
        era = pool.forwarded_era()
        yield
        figures = other.allocated, other.freed
        yield
        if pool.settle_forwarded(*figures, era):
            return


def give_cap(pool, other):
    while other.capping:
        yield
    other.capping = True
    most, fell = pool.give_forwarded_cap()
    yield
    other.cap = most
    yield
    if fell:
        yield from settle(pool, other)
        yield
        pool.forwarded_lowered(most)
    other.capping = False


def call(pool, other, claim: int, takes: list[int], settles: bool = True):
    """A call that may grow. It claims less than it takes where others' idle memory was to serve it. `settles`: False where
    nobody says what the other holds after it, as when asking fails."""
    claimed = pool.claim_forwarded(claim)
    yield
    yield from give_cap(pool, other)
    for size in takes:
        yield
        other.grow(size)
    yield
    if settles:
        yield from settle(pool, other)
    yield
    if pool.end_forwarded(claimed, settles):
        yield
        yield from give_cap(pool, other)


def give_back(pool, other, size: int):
    other.freed += min(size, other.held)
    yield
    yield from settle(pool, other)


def use_pool(pool, held: list[int], size: int | None):
    """An allocation of our own, or, without a size, one of them freed and what is idle given back."""
    if size is not None:
        try:
            held.append(pool.malloc(size, 0))
        except OutOfMemory:
            pass
    elif held:
        pool.free(held.pop(0))
        pool.trim()
    yield


def random_thread(r, pool, other, held):
    for _ in range(r.randrange(1, 5)):
        kind = r.randrange(6)
        if kind < 3:
            size = r.choice((2, 2, 2, 4, 20)) * MIB
            takes = r.choice(([], [size], [size], [size, size]))
            yield from call(pool, other, r.choice((size, size, 0, 1 << 60)), takes, r.random() < 0.9)
        elif kind == 3:
            yield from give_back(pool, other, r.choice((2, 4, 20)) * MIB)
        else:
            yield from use_pool(pool, held, r.choice((None, MIB, 2 * MIB, 6 * MIB)))


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_the_limit_holds_at_every_interleaving(first):
    grown = together = 0  # bytes, times
    for seed in range(first, first + 250):
        r = random.Random(seed)
        limit = r.choice((6 * MIB, 10 * MIB, LIMIT))
        pool = make_pool(Device(capacity=256 * MIB, bytes=False), limit=limit)
        other, held = Other(), []
        threads = [random_thread(r, pool, other, held) for _ in range(r.randrange(2, 6))]
        while threads:
            thread = r.choice(threads)
            for _ in range(r.choice((1, 1, 1, 3, 10))):  # some run on for a while
                try:
                    next(thread)
                except StopIteration:
                    threads.remove(thread)
                    break
                total = pool.stats()["reserved_bytes"]["all"]["current"] + other.held
                assert total <= limit, f"seed {seed}: {total / MIB} MiB of {limit / MIB}"
            together += total == limit
        grown += other.allocated
        for _ in settle(pool, other): ...
        assert pool.forwarded_claims() == 0 and pool.audit() == []
        for address in held:
            pool.free(address)
        pool.trim()
        left = limit - other.held
        if left:
            pool.free(pool.malloc(left, 0))  # nothing is set aside any more
        with pytest.raises(OutOfMemory):
            pool.malloc(left + 1, 0)
    assert grown and together  # both grew, and up to the limit


def test_a_call_that_took_its_bytes_and_has_not_ended_lends_them_to_nobody():
    """Two calls claim what is left; one has grown and is settled when a third, whom nothing is left, gives the cap."""
    pool, other = make_pool(Device(capacity=256 * MIB, bytes=False), limit=4 * MIB), Other()
    first, second = pool.claim_forwarded(2 * MIB), pool.claim_forwarded(2 * MIB)
    for _ in give_cap(pool, other): ...
    assert (first, second, other.cap) == (2 * MIB, 2 * MIB, 4 * MIB)
    other.grow(2 * MIB)
    for _ in settle(pool, other): ...
    assert pool.claim_forwarded(2 * MIB) == 0
    for _ in give_cap(pool, other): ...
    assert other.cap == 4 * MIB


def test_the_only_call_may_take_all_that_is_left():
    pool, other = make_pool(Device(capacity=256 * MIB, bytes=False), limit=LIMIT), Other()
    mine = pool.malloc(6 * MIB, 0)
    for _ in call(pool, other, 1 << 60, [LIMIT - 6 * MIB]): ...
    assert other.held == LIMIT - 6 * MIB and other.refused == 0
    pool.free(mine)
    pool.trim()
    for _ in call(pool, other, 6 * MIB, [6 * MIB, 2 * MIB]): ...
    assert other.held == LIMIT and other.refused == 1


def test_a_limit_below_what_it_holds_lets_it_keep_that_and_grow_no_more():
    pool, other = make_pool(Device(capacity=256 * MIB, bytes=False), limit=LIMIT), Other()
    for _ in call(pool, other, 20 * MIB, [20 * MIB]): ...
    pool.set_limit(8 * MIB)
    for _ in call(pool, other, 20 * MIB, [2 * MIB]): ...
    assert other.cap == other.held == 20 * MIB and other.refused == 1
    with pytest.raises(OutOfMemory):
        pool.malloc(2 * MIB, 0)
