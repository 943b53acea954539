"""Ratios, bounds and who is the fastest: pure figures."""

import pytest

from dymem.compare import figures


def test_bounds_enclose_the_ratio_and_meet_where_nothing_varies():
    still = [([1.0] * 5, [1.1] * 5)] * 3
    assert figures.bounds(still) == pytest.approx((1.1, 1.1))
    noisy = [([1.0, 1.2, 0.9, 1.1], [1.3, 1.0, 1.2, 0.8]), ([1.1, 0.9, 1.0, 1.2], [0.9, 1.4, 1.0, 1.1])]
    told = figures.ratio_figures(noisy)
    assert told["ratio_lower_95"] < told["ratio"] < told["ratio_upper_95"]


def test_pairs_of_unequal_length_or_none_tell_nothing():
    assert figures.ratio_figures([]) == {} == figures.ratio_figures([([1.0], [1.0, 2.0])]) == figures.ratio_figures([([], [])])


def test_the_fastest_is_a_rival_where_one_trained():
    times = {"dymem": 1.0, "native": 3.0, "async": 2.0, "expandable": None}
    assert figures.fastest(times, ["native", "async", "expandable"]) == "async"
    assert figures.fastest({"dymem": 1.0, "native": None}, ["native"]) == "dymem"
    assert figures.fastest({"dymem": None}, []) is None


def test_what_an_allocator_cannot_tell_stays_unknown():
    assert figures.overhead(None, 100) is None and figures.overhead(100, 0) is None and figures.overhead(100, None) is None
    assert figures.largest([{"x": None}, {"x": 3}, {}], "x") == 3 and figures.largest([], "x") is None
