"""U_f, the share of free memory that a request cannot use, against recounts from what the pool says of its blocks."""

import pytest
from devices import Device, make_pool
from hypothesis import given, settings
from hypothesis import strategies as st

import dymem

MIB = 1 << 20
POWERS = range(9, 47)


def free_runs(pool):
    """(address, size) of maximal stretches of free blocks that touch."""
    runs, end = [], None
    for block in pool.blocks():
        if block["state"] != "free":
            end = None
            continue
        if block["address"] == end:
            runs[-1][1] += block["size"]
        else:
            runs.append([block["address"], block["size"]])
        end = block["address"] + block["size"]
    return runs


def by_the_formula(nodes):
    """The paper's sum, one request after the other; nodes are sizes of what is free in one piece."""
    total = sum(nodes)
    return {f"2^{j}": (total - sum(node for node in nodes if node >= 2**j)) / total if total else 0.0 for j in POWERS}


steps = st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MIB), st.integers(0, 1000)), max_size=60)


@settings(max_examples=60)
@given(steps=steps, options=st.sampled_from([{"backing": "contiguous"}, {"backing": "vmm", "alias": False}]))
def test_without_stitching_it_is_what_the_runs_say(steps, options):
    pool = make_pool(Device(bytes=False, capacity=8 << 30), **options)
    held = []
    for frees, size, which in steps:
        if frees and held:
            pool.free(held.pop(which % len(held)))
        else:
            held.append(pool.malloc(size))
        assert pool.unusable_free() == pytest.approx(by_the_formula([size for _, size in free_runs(pool)]), abs=1e-12)
    assert pool.audit() == []


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 12).map(lambda n: 2 * MIB * n), min_size=1, max_size=20), data=st.data())
def test_stitching_makes_one_piece_of_idle_granules(sizes, data):
    """Blocks of whole granules: all that is free is idle granules, so a request can have all of it or none."""
    pool = make_pool(Device(bytes=False, capacity=8 << 30), limit=4 << 30, grow_ratio=0.0, grow_slack=0)
    held = [pool.malloc(size) for size in sizes]
    gone = data.draw(st.sets(st.sampled_from(range(len(held)))))
    for index in gone:
        pool.free(held[index])
    free = sum(size for _, size in free_runs(pool))
    expected = {f"2^{j}": float(free < 2**j) if free else 0.0 for j in POWERS}
    assert pool.unusable_free() == pytest.approx(expected)
    for index in sorted(set(range(len(held))) - gone):
        pool.free(held[index])


def test_an_empty_pool_has_no_fragmentation():
    assert set(make_pool(Device()).unusable_free().values()) == {0.0}


def test_two_holes_of_a_slab():
    pool = make_pool(Device(bytes=False, capacity=8 << 30), backing="contiguous")
    a, b, c, d = (pool.malloc(size * MIB) for size in (3, 1, 9, 1))
    pool.free(a)
    pool.free(c)
    unusable = pool.unusable_free()
    assert [unusable[f"2^{j}"] for j in (20, 21, 22, 23, 24)] == [0, 0, 3 / 12, 3 / 12, 1]
    assert pool.largest_free() == 9 * MIB
    del b, d


def test_it_is_in_the_statistics_of_the_process():
    stats = dymem.memory_stats()
    assert [stats[f"unusable_free.2^{j}"] for j in POWERS] == [0.0] * len(POWERS)
