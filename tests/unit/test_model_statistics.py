import math
import random
from itertools import product
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.statistics import (
    Interval,
    MedianDistribution,
    Verdict,
    combined_interval,
    geometric_mean,
    judge_interval,
    median_interval,
    summed_interval,
    undecided,
)

samples = st.lists(st.floats(-1, 1), min_size=1, max_size=25)


@pytest.mark.parametrize("sample", [[3.0, 1.0, 2.0], [1.0, 4.0, 2.0, 8.0], [5.0], [1.0, 1.0, 2.0]])
def test_the_distribution_of_the_median_is_that_of_all_resamples(sample: list[float]) -> None:
    found = MedianDistribution.of(sample)
    everything = [median(draw) for draw in product(sample, repeat=len(sample))]
    for value in set(everything):
        exact = sum(1 for m in everything if m <= value) / len(everything)
        ours = max(c for v, c in zip(found.values, found.cumulative, strict=True) if v <= value)
        assert ours == pytest.approx(exact, abs=1e-9)


@given(samples)
def test_an_interval_contains_its_estimate_and_stays_in_the_data(sample: list[float]) -> None:
    found = median_interval(sample)
    assert min(sample) <= found.low <= found.estimate <= found.high <= max(sample)


@given(samples, st.floats(-0.5, 0.5))
def test_a_shift_of_the_data_shifts_the_interval(sample: list[float], shift: float) -> None:
    one, other = median_interval(sample), median_interval([value + shift for value in sample])
    assert other.low == pytest.approx(one.low + shift)
    assert other.high == pytest.approx(one.high + shift)


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf]])
def test_a_sample_that_is_empty_or_not_finite_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        median_interval(bad)


def test_a_combined_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    source = random.Random(3)
    covered = 0
    for _ in range(60):
        shapes = [[[source.gauss(0.0, 0.02) for _ in range(11)]] for _ in range(5)]
        found = combined_interval(shapes)
        covered += found.low <= 0.0 <= found.high
    assert covered >= 52


def test_groups_that_differ_widen_the_interval() -> None:
    source = random.Random(5)
    rounds = [[source.gauss(0.0, 0.001) for _ in range(5)] for _ in range(3)]
    apart = [
        [value + shift for value in part] for part, shift in zip(rounds, (0, 0.1, 0.2), strict=True)
    ]
    narrow, wide = combined_interval([rounds]), combined_interval([apart])
    assert wide.high - wide.low > 20 * (narrow.high - narrow.low)


def test_combined_is_repeatable() -> None:
    shapes = [[[0.1, 0.2, 0.15]], [[0.0, 0.3, 0.1]]]
    assert combined_interval(shapes) == combined_interval(shapes)


def test_a_sum_adds_estimates_and_uncertainty() -> None:
    first, second = [[-0.20, -0.21, -0.19, -0.20, -0.2]], [[-0.5, -0.4, -0.6, -0.45, -0.55]]
    found = summed_interval([first, second])
    assert found.estimate == pytest.approx(-0.70)
    single = combined_interval([second])
    assert found.low <= single.low - 0.2 + 0.02
    assert found.high >= single.high - 0.2 - 0.02


def test_the_whole_interval_must_lie_beyond_delta() -> None:
    assert judge_interval(Interval(-0.05, -0.08, -0.02), 0.01) is Verdict.FASTER
    assert judge_interval(Interval(-0.05, -0.08, -0.005), 0.01) is Verdict.UNCLEAR
    assert judge_interval(Interval(0.05, 0.02, 0.08), 0.01) is Verdict.SLOWER
    assert judge_interval(Interval(0.0, -0.005, 0.005), 0.01) is Verdict.UNCLEAR


def test_more_rounds_help_only_where_the_estimate_is_not_nearly_zero() -> None:
    assert undecided(Interval(-0.02, -0.05, 0.01), 0.01)
    assert not undecided(Interval(-0.004, -0.05, 0.05), 0.01)
    assert not undecided(Interval(-0.05, -0.08, -0.02), 0.01)


def test_a_half_width_counts_an_offset_too() -> None:
    assert Interval(0.03, 0.02, 0.04).half_width == pytest.approx(0.04)


def test_a_geometric_mean_needs_positive_ratios() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    for bad in ([], [1.0, 0.0], [math.nan]):
        with pytest.raises(ValueError, match="positive"):
            geometric_mean(bad)
