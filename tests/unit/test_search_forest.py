from typing import Any

import numpy as np
import pytest

from kerneltui.search.forest import Forest


def corner(features: Any):
    return ((features[:, 0] > 8) & (features[:, 1] < 2)).astype(float)


def data(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    return rng.integers(0, [16, 5, 4, 2], size=(rows, 4)).astype(float)


def test_learns_a_separable_function_and_what_it_depends_on():
    seen, unseen = data(200, 0), data(400, 1)
    forest = Forest.fit(seen, corner(seen), np.random.default_rng(2))
    assert ((forest.predict(unseen) > 0.5) == (corner(unseen) > 0.5)).mean() > 0.97
    assert forest.importance.sum() == pytest.approx(1)
    assert forest.importance[:2].sum() > 0.9


def test_orders_degrees_of_goodness():
    seen, unseen = data(300, 0), data(300, 1)
    forest = Forest.fit(seen, seen[:, 0] / 15, np.random.default_rng(2))
    assert np.corrcoef(forest.predict(unseen), unseen[:, 0])[0, 1] > 0.95


def test_the_same_seed_gives_the_same_forest():
    seen, unseen = data(100, 0), data(100, 1)
    one, two, other = (
        Forest.fit(seen, corner(seen), np.random.default_rng(seed)).predict(unseen)
        for seed in (3, 3, 4)
    )
    assert (one == two).all()
    assert (one != other).any()


def test_votes_stay_within_the_targets():
    seen = data(80, 0)
    target = np.random.default_rng(1).random(80)
    votes = Forest.fit(seen, target, np.random.default_rng(2)).predict(data(500, 3))
    assert target.min() <= votes.min() <= votes.max() <= target.max()


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_nothing_to_split_gives_the_mean(rows: int):
    constant = np.ones((rows, 3))
    forest = Forest.fit(constant, np.ones(rows), np.random.default_rng(0))
    assert forest.predict(np.zeros((2, 3))).tolist() == [1.0, 1.0]
    assert forest.importance.tolist() == [0.0, 0.0, 0.0]


def test_many_values_of_a_feature_are_thinned():
    seen = np.linspace(0, 1, 500)[:, None]
    forest = Forest.fit(seen, (seen[:, 0] > 0.5).astype(float), np.random.default_rng(0))
    assert forest.predict(np.array([[0.1], [0.9]])).round(2).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("features", "target"),
    [(np.ones((0, 2)), np.ones(0)), (np.ones((3, 0)), np.ones(3)), (np.ones((3, 2)), np.ones(2))],
)
def test_shapes_that_do_not_fit_are_refused(features: Any, target: Any):
    with pytest.raises(ValueError, match="do not fit"):
        Forest.fit(features, target, np.random.default_rng(0))
