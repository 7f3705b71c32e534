"""A small forest of randomised trees that learns which configurations are good.

Bagged trees with random feature subsets (Breiman, "Random Forests", 2001), splitting where the
variance of the target falls most; for labels 0 and 1 that is the Gini criterion, and a leaf's mean
is the share of good ones. All trees grow together, one level at a time, on histograms: a few
hundred rows and some dozens of trees take milliseconds without compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Forest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MAX_BINS = 32
# The chance of a feature to be looked at in a node: trees must differ, with few features too.
_LOOKED_AT = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """A fitted forest; trees are stored in one array of nodes, roots first.

    Attributes:
        feature: Feature that the node splits on, -1 for a leaf; shape (nodes,).
        threshold: Rows with a feature of at most this go to the first child; shape (nodes,).
        child: First child; the second follows it; shape (nodes,).
        mean: Weighted mean target of the node's rows; shape (nodes,).
        trees: The number of trees.
        importance: Share of the variance that each feature removed; sums to 1, or to 0 without
            any split; shape (features,).
    """

    feature: Ints
    threshold: Floats
    child: Ints
    mean: Floats
    trees: int
    importance: Floats

    @classmethod
    def fit(
        cls,
        features: Floats,
        target: Floats,
        rng: np.random.Generator,
        trees: int = 32,
        depth: int = 10,
    ) -> Forest:
        """Grows a forest.

        Args:
            features: Shape (rows, features), at least one of each.
            target: Labels 0 and 1, or degrees of goodness between; shape (rows,).
            rng: The only source of chance.
            trees: The number of trees.
            depth: The most splits from the root to a leaf.

        Raises:
            ValueError: The shapes do not fit or there are no rows.
        """
        if features.ndim != 2 or not features.size or target.shape != (len(features),):
            raise ValueError(f"forest: {features.shape} features do not fit {target.shape} targets")
        growing = _Growing(features, target, rng, trees)
        for _ in range(depth):
            if not growing.split():
                break
        return growing.forest()

    def predict(self, features: Floats) -> Floats:
        """Gives the mean over the trees of the leaf that each row falls into; shape (rows,)."""
        node = np.repeat(np.arange(self.trees)[:, None], len(features), axis=1)
        rows = np.arange(len(features))[None, :]
        while True:
            split = self.feature[node]
            inner = split >= 0
            if not inner.any():
                return self.mean[node].mean(axis=0)
            right = features[rows, np.maximum(split, 0)] > self.threshold[node]
            node = np.where(inner, self.child[node] + right, node)


class _Growing:
    """A forest under construction: every (tree, row) pair and the node that it sits in."""

    def __init__(
        self, features: Floats, target: Floats, rng: np.random.Generator, trees: int
    ) -> None:
        count, self._width = features.shape
        self._rng = rng
        self._trees = trees
        self._edges = [_edges(features[:, column]) for column in range(self._width)]
        self._bins = max(len(edges) for edges in self._edges) + 1
        binned = np.column_stack(
            [np.searchsorted(edges, features[:, c]) for c, edges in enumerate(self._edges)]
        )
        # Bagging: a row drawn k times counts as k rows; rows not drawn are left out.
        weight = rng.multinomial(count, np.full(count, 1 / count), size=trees).astype(float)
        tree, row = np.nonzero(weight)
        self._binned = binned[row]
        self._weight = weight[tree, row]
        self._mass = self._weight * target[row]
        self._node = tree  # index into the current level's nodes
        self._first = 0  # number of the level's first node in the whole forest
        self._size = trees
        self._levels: list[tuple[Ints, Floats, Ints, Floats]] = []
        self._gain = np.zeros(self._width)

    def split(self) -> bool:
        """Splits the nodes of the deepest level where that helps; says whether any was."""
        size, width, bins = self._size, self._width, self._bins
        cell = (self._node[:, None] * width + np.arange(width)) * bins + self._binned
        shape = (size, width, bins)
        weight = _histogram(cell, self._weight, shape)
        mass = _histogram(cell, self._mass, shape)
        left, left_mass = weight.cumsum(axis=2)[:, :, :-1], mass.cumsum(axis=2)[:, :, :-1]
        total, total_mass = weight.sum(axis=2), mass.sum(axis=2)
        right, right_mass = total[:, :, None] - left, total_mass[:, :, None] - left_mass
        mean = total_mass[:, 0] / total[:, 0]
        if bins < 2:
            self._close(mean)
            return False
        fits = (left > 0) & (right > 0)
        looked = self._rng.random((size, width)) < _LOOKED_AT
        looked[np.arange(size), self._rng.integers(width, size=size)] = True
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = left_mass**2 / left + right_mass**2 / right
        gain = np.where(fits & looked[:, :, None], gain, -np.inf).reshape(size, -1)
        # Equal gains are frequent with few rows; chance decides, lest the first feature always win.
        gain = gain * (1 + 1e-9 * self._rng.random(gain.shape))
        best = gain.argmax(axis=1)
        improvement = gain[np.arange(size), best] - total_mass[:, 0] ** 2 / total[:, 0]
        splits = improvement > 1e-7
        self._record(mean, splits, best, improvement)
        self._descend(splits, best)
        return bool(splits.any())

    def forest(self) -> Forest:
        """Closes the deepest level and joins all."""
        if self._size:
            weight = np.bincount(self._node, self._weight, self._size)
            self._close(np.bincount(self._node, self._mass, self._size) / weight)
        feature, threshold, child, mean = (
            np.concatenate(parts) for parts in zip(*self._levels, strict=True)
        )
        total = self._gain.sum()
        importance = self._gain / total if total > 0 else self._gain
        return Forest(feature, threshold, child, mean, self._trees, importance)

    def _record(self, mean: Floats, splits: NDArray[np.bool_], best: Ints, gain: Floats) -> None:
        feature = np.where(splits, best // (self._bins - 1), -1)
        place = best % (self._bins - 1)
        threshold = np.array(
            [self._edges[f][b] if f >= 0 else 0.0 for f, b in zip(feature, place, strict=True)]
        )
        child = self._first + self._size + 2 * (np.cumsum(splits) - 1)
        np.add.at(self._gain, feature[splits], gain[splits])
        self._levels.append((feature, threshold, child, mean))

    def _descend(self, splits: NDArray[np.bool_], best: Ints) -> None:
        """Moves the rows of split nodes to the next level and drops the others."""
        kept = splits[self._node]
        node = self._node[kept]
        feature, place = best[node] // (self._bins - 1), best[node] % (self._bins - 1)
        binned = self._binned[kept]
        right = binned[np.arange(len(node)), feature] > place
        self._node = 2 * (np.cumsum(splits) - 1)[node] + right
        self._binned, self._weight, self._mass = binned, self._weight[kept], self._mass[kept]
        self._first += self._size
        self._size = 2 * int(splits.sum())

    def _close(self, mean: Floats) -> None:
        leaf = np.full(self._size, -1)
        self._levels.append((leaf, np.zeros(self._size), np.zeros_like(leaf), mean))
        self._first += self._size
        self._size = 0


def _edges(column: Floats) -> Floats:
    """Gives the thresholds between the values of a feature, thinned to a bounded number."""
    values = np.unique(column)
    middles = (values[1:] + values[:-1]) / 2
    if len(middles) < _MAX_BINS:
        return middles
    return middles[np.linspace(0, len(middles) - 1, _MAX_BINS - 1).astype(int)]


def _histogram(cell: Ints, weight: Floats, shape: tuple[int, int, int]) -> Floats:
    size = shape[0] * shape[1] * shape[2]
    spread = np.repeat(weight, shape[1])
    return np.bincount(cell.ravel(), spread, size).astype(np.float64).reshape(shape)
