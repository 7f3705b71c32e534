"""Statistics of the verdict: paired log-ratios, bootstrap intervals, three outcomes.

The estimate for a shape is the median over rounds of d = log(candidate / incumbent). Its bootstrap
distribution over rounds has a closed form, because a resample of n rounds has its k-th smallest value at
or below the i-th smallest of the data with the probability that a binomial(n, i/n) is at least k
(B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979, section 3).
So the interval for one shape is exact, and only combinations over shapes and process groups are drawn
by Monte Carlo, from the exact parts, with a fixed seed.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, median

__all__ = [
    "DRAWS",
    "Interval",
    "MedianDistribution",
    "Verdict",
    "combined_interval",
    "geometric_mean",
    "judge_interval",
    "median_interval",
    "summed_interval",
    "undecided",
]

DRAWS = 10_000


class Verdict(StrEnum):
    """The three outcomes of a comparison; best-of-noise is not progress."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval, in log-ratios (negative is faster)."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The largest distance from zero that the interval reaches.

        For an A/A comparison, whose true value is zero, this counts a constant offset between two
        process groups as well as the spread over rounds.
        """
        return max(abs(self.low), abs(self.high))

    def ratio(self) -> tuple[float, float, float]:
        """Returns estimate, low and high as incumbent ÷ candidate (above 1 is faster)."""
        return math.exp(-self.estimate), math.exp(-self.high), math.exp(-self.low)


@dataclass(frozen=True, slots=True)
class MedianDistribution:
    """The exact bootstrap distribution of a median: values in order, cumulative probabilities."""

    values: tuple[float, ...]
    cumulative: tuple[float, ...]

    @classmethod
    def of(cls, sample: Sequence[float]) -> MedianDistribution:
        """Builds the distribution for a sample of at least one value.

        Raises:
            ValueError: The sample is empty or has a value that is not finite.
        """
        if not sample or not all(math.isfinite(value) for value in sample):
            raise ValueError("a median needs at least one value, all of them finite")
        ordered = sorted(sample)
        weights = _median_weights(len(ordered))
        pairs = sorted(
            ((ordered[i] + ordered[j]) / 2, weight) for (i, j), weight in weights if weight > 0.0
        )
        values = tuple(value for value, _ in pairs)
        cumulative = list(accumulate(weight for _, weight in pairs))
        return cls(values, tuple(part / cumulative[-1] for part in cumulative))

    def quantile(self, probability: float) -> float:
        """Returns the smallest value whose cumulative probability reaches the given one."""
        index = bisect_left(self.cumulative, probability - 1e-12)
        return self.values[min(index, len(self.values) - 1)]

    def draw(self, generator: random.Random, count: int) -> list[float]:
        """Draws medians of resamples."""
        return generator.choices(self.values, cum_weights=self.cumulative, k=count)


@lru_cache(maxsize=256)
def _median_weights(n: int) -> tuple[tuple[tuple[int, int], float], ...]:
    """Returns P(the two middle order statistics of a resample are the i-th and j-th of the data)."""
    if n % 2:
        k = n // 2 + 1
        below = [_at_least(n, k, i / n) for i in range(n + 1)]
        return tuple(((i, i), below[i + 1] - below[i]) for i in range(n))
    k = n // 2
    choose = math.comb(n, k)
    lower = [_at_least(n, k, i / n) for i in range(n + 1)]
    weights: list[tuple[tuple[int, int], float]] = []
    for i in range(n):
        same = lower[i + 1] - lower[i]
        head = ((i + 1) / n) ** k - (i / n) ** k
        for j in range(i + 1, n):
            tail = ((n - j) / n) ** k - ((n - j - 1) / n) ** k
            weight = choose * head * tail
            weights.append(((i, j), weight))
            same -= weight
        weights.append(((i, i), max(same, 0.0)))
    return tuple(weights)


def _at_least(n: int, k: int, p: float) -> float:
    """Returns P(binomial(n, p) >= k)."""
    return math.fsum(math.comb(n, m) * p**m * (1 - p) ** (n - m) for m in range(k, n + 1))


def median_interval(sample: Sequence[float], confidence: float = 0.95) -> Interval:
    """Returns the median of a sample with its exact percentile bootstrap interval."""
    distribution = MedianDistribution.of(sample)
    tail = (1 - confidence) / 2
    return Interval(median(sample), distribution.quantile(tail), distribution.quantile(1 - tail))


def combined_interval(
    shapes: Sequence[Sequence[Sequence[float]]], confidence: float = 0.95
) -> Interval:
    """Returns the mean over shapes of the median log-ratio, with a bootstrap interval.

    Args:
        shapes: For each shape, for each process group, the log-ratios of its rounds. A shape's value
            is the mean over its groups of the median over rounds; groups are a random effect, so they
            are resampled first and rounds within them after.
        confidence: 0.95, or 0.99 after more than one look.

    Raises:
        ValueError: There is no shape, or one without rounds.
    """
    if not shapes:
        raise ValueError("no shape was measured")
    generator = random.Random(0)
    totals = [0.0] * DRAWS
    for groups in shapes:
        distributions = [MedianDistribution.of(rounds) for rounds in groups]
        if len(distributions) == 1:
            draws = distributions[0].draw(generator, DRAWS)
        else:
            draws = _grouped_draws(distributions, generator)
        totals = [total + draw for total, draw in zip(totals, draws, strict=True)]
    ordered = sorted(total / len(shapes) for total in totals)
    estimate = fmean(fmean(median(rounds) for rounds in groups) for groups in shapes)
    tail = (1 - confidence) / 2
    low = ordered[int(tail * (DRAWS - 1))]
    high = ordered[math.ceil((1 - tail) * (DRAWS - 1))]
    return Interval(estimate, low, high)


def summed_interval(
    parts: Sequence[Sequence[Sequence[float]]], confidence: float = 0.95
) -> Interval:
    """Returns the interval of a sum of independent log-ratios.

    For a ratio that was not measured directly: log(candidate / reference) is log(candidate / incumbent)
    plus log(incumbent / reference), each from rounds of its own.

    Args:
        parts: For each term, for each process group, the log-ratios of its rounds.
        confidence: As for `combined_interval`.

    Raises:
        ValueError: There is no term, or one without rounds.
    """
    mean = combined_interval(parts, confidence)
    count = len(parts)
    return Interval(mean.estimate * count, mean.low * count, mean.high * count)


def _grouped_draws(
    distributions: Sequence[MedianDistribution], generator: random.Random
) -> list[float]:
    count = len(distributions)
    pools = [iter(part.draw(generator, DRAWS * count)) for part in distributions]
    picks = generator.choices(range(count), k=DRAWS * count)
    values = [next(pools[pick]) for pick in picks]
    return [fmean(values[i : i + count]) for i in range(0, DRAWS * count, count)]


def judge_interval(interval: Interval, delta: float) -> Verdict:
    """Decides: the whole interval must lie beyond delta (a log-ratio above 0)."""
    if interval.high < -delta:
        return Verdict.FASTER
    if interval.low > delta:
        return Verdict.SLOWER
    return Verdict.UNCLEAR


def undecided(interval: Interval, delta: float) -> bool:
    """Whether more rounds can help: UNCLEAR, and the estimate is not within delta / 2 of zero."""
    return (
        judge_interval(interval, delta) is Verdict.UNCLEAR and abs(interval.estimate) >= delta / 2
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """Returns the geometric mean of positive ratios.

    Raises:
        ValueError: The sequence is empty or has a ratio that is not positive.
    """
    if not ratios or any(not ratio > 0 for ratio in ratios):
        raise ValueError("a geometric mean needs positive ratios")
    return math.exp(fmean(math.log(ratio) for ratio in ratios))
