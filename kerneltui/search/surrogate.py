"""Learns from the trials which configurations promise to be good."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kerneltui.search.forest import Floats, Forest
from kerneltui.search.history import History, Trial
from kerneltui.search.parameter import Parameter, Rows

__all__ = ["Surrogate", "labels"]


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """A forest over the parameters of a space.

    Numbers enter as their place in the list of values; words, which have no order, as one
    column for each.

    Attributes:
        forest: Fitted to the labels good (1) and rest (0).
        parameters: Of the space, in order.
    """

    forest: Forest
    parameters: tuple[Parameter, ...]

    @classmethod
    def fit(
        cls, history: History, rng: np.random.Generator, good_share: float, trees: int
    ) -> Surrogate | None:
        """Fits to everything that was told.

        Args:
            history: What was told.
            rng: The source of chance.
            good_share: The share of trials that is called good.
            trees: The number of trees.

        Returns:
            The fit, or ``None`` while there is nothing to learn from.
        """
        # In a fixed order, since bagging draws rows by their place.
        trials = sorted(history.trials.values(), key=lambda trial: trial.codes)
        good = labels(trials, history.noise, good_share)
        if not good.any() or good.all():
            return None
        rows = np.array([trial.codes for trial in trials], dtype=np.int64)
        parameters = history.space.parameters
        features, _ = _features(parameters, rows)
        return cls(Forest.fit(features, good.astype(float), rng, trees), parameters)

    def score(self, rows: Rows) -> Floats:
        """Gives the share of trees' votes for good, for each row of codes."""
        return self.forest.predict(_features(self.parameters, rows)[0])

    def importance(self) -> dict[str, float]:
        """Gives the share of each parameter in telling good from rest; the shares sum to 1."""
        _, owners = _features(self.parameters, np.zeros((1, len(self.parameters)), dtype=np.int64))
        shares = np.bincount(owners, self.forest.importance, len(self.parameters))
        return {
            parameter.name: float(share)
            for parameter, share in zip(self.parameters, shares, strict=True)
        }


def labels(trials: list[Trial], noise: float, good_share: float) -> NDArray[np.bool_]:
    """Calls the best trials good, with whatever ties with the very best; the rest is not.

    Failures and trials that were abandoned as too slow are never good.
    """
    values = np.array(
        [math.inf if trial.screened else trial.value for trial in trials], dtype=float
    )
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return np.zeros(len(trials), dtype=bool)
    count = min(len(finite), max(3, math.ceil(good_share * len(trials))))
    return values <= max(finite[count - 1], finite[0] + noise)


def _features(parameters: tuple[Parameter, ...], rows: Rows) -> tuple[Floats, list[int]]:
    """Gives the columns that trees split on, and for each the place of its parameter."""
    columns: list[NDArray[np.generic]] = []
    owners: list[int] = []
    for place, parameter in enumerate(parameters):
        codes = rows[:, place]
        words = any(isinstance(value, str) for value in parameter.values)
        if words and len(parameter.values) > 2:
            columns.extend(codes == code for code in range(len(parameter.values)))
            owners.extend([place] * len(parameter.values))
        else:
            columns.append(codes)
            owners.append(place)
    return np.column_stack(columns).astype(float), owners
