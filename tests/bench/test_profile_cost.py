"""What bench/profile_cost.py makes of the seconds it took; the rest of it runs on programs (docs/mobility.md)."""

import random
import statistics

import pytest


@pytest.fixture(scope="module")
def profile_cost(bench):
    return bench("profile_cost")


def test_a_ratio_is_the_median_round_and_its_interval_covers_it(profile_cost):
    rng = random.Random(5)
    covered = 0
    for _ in range(20):
        rounds = [rng.gauss(1.03, 0.05) for _ in range(25)]
        found = profile_cost.ratio_of([([1.0], [each]) for each in rounds])
        low, high = found["interval"]
        assert found["ratio"] == round(statistics.median(rounds), 3) and low <= found["ratio"] <= high
        covered += low <= 1.03 <= high
    assert covered >= 15  # of twenty 95 % intervals


def test_one_slow_round_moves_nothing(profile_cost):
    assert profile_cost.ratio_of([([1.0], [1.0])] * 14 + [([1.0], [9.0])])["interval"] == [1.0, 1.0]
