"""The size of a contiguous pool, and how often iterations fail in it: against counting by hand."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dymem.errors import InvalidArgument
from dymem.mobility.sizing import BETAS, GRANULE, MB, Sizing, failure_rate, failures_with_restarts, needs, pool_size

BYTES = st.integers(0, 1 << 40)


@given(initial=BYTES, share=st.floats(0, 1), beta=st.integers(0, 1 << 34))
def test_the_formula(initial, share, beta):
    gap = int(initial * share)
    size = pool_size(initial, gap, beta)
    assert size % GRANULE == 0 and initial - gap + beta <= size < initial - gap + beta + GRANULE


@pytest.mark.parametrize("initial, gap, beta, said", [(10, 11, 0, "squeeze gap"), (10, -1, 0, "squeeze gap"), (10, 5, -1, "beta")])
def test_figures_that_cannot_be(initial, gap, beta, said):
    with pytest.raises(InvalidArgument, match=said):
        pool_size(initial, gap, beta)


@pytest.mark.parametrize("betas", [(), (-1,), (2, 1)])
def test_betas_that_cannot_be(betas):
    with pytest.raises(InvalidArgument, match="smallest first"):
        Sizing(100, 50, betas)


def test_another_beta_after_each_failure():
    sizing = Sizing(10_000 * MB, 2_000 * MB)
    assert sizing.size == pool_size(10_000 * MB, 2_000 * MB, 100 * MB)
    sizes = [sizing.beta]
    for _ in range(4):
        sizing = sizing.failed()
        sizes.append(sizing.beta)
    assert sizes == [100 * MB, 300 * MB, 500 * MB, 1000 * MB, 2000 * MB]


def test_a_failure_that_says_how_much_is_missing_is_the_only_one():
    sizing = Sizing(10_000 * MB, 2_000 * MB)
    assert sizing.failed(350 * MB).beta == 500 * MB and sizing.failed(150 * MB).beta == 300 * MB
    assert Sizing(10, 10, (0,)).failed(1 << 33).size >= 1 << 33


@given(needed=st.lists(st.integers(0, 1 << 34), max_size=30), first=st.integers(0, 1 << 34), gap=BYTES,
       betas=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=4).map(sorted))
def test_runs_with_restarts_end_in_a_pool_that_was_enough(needed, first, gap, betas):
    sizing = Sizing(first + gap, gap, betas)
    failures, after = failures_with_restarts(needed, sizing)
    assert failure_rate(needed, after.size) == 0 and after.beta >= sizing.beta
    assert (failures == 0) == (failure_rate(needed, sizing.size) == 0)
    assert failures <= sum(n > sizing.size for n in needed), "each says what it misses: once an iteration at most"


@given(needed=st.lists(st.integers(0, 100), max_size=30), size=st.integers(0, 100))
def test_rates_are_counts(needed, size):
    failing = [n for n in needed if n > size]
    assert failure_rate(needed, size) == (len(failing) / len(needed) if needed else 0)


def test_rates_fall_with_beta():
    needed = [7 * MB * i for i in range(100)]
    rates = [failure_rate(needed, pool_size(0, 0, beta)) for beta in (0, *BETAS)]
    assert rates == sorted(rates, reverse=True) and rates[0] > 0.9


def test_needs_of_a_replay():
    figures = {"-1": 50, "0": 40, "1": 70, "2": 60}
    assert needs(figures, 0) == (50, [70, 60]) and needs(figures, 1) == (70, [60])
    with pytest.raises(InvalidArgument, match="no iteration 7"):
        needs(figures, 7)


def test_it_needs_no_torch():
    code = "import sys, dymem.mobility.sizing; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
