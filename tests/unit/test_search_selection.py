"""Parents: the better ones more often, those with many children less, luck inside the noise not at all."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.search.selection import choose_parent, parent_weights

names = st.text("abcdefgh", min_size=1, max_size=3)
scores = st.dictionaries(names, st.floats(-5, 5), min_size=1, max_size=12)


@given(scores, st.dictionaries(names, st.integers(0, 50)))
def test_every_weight_is_a_finite_share(found: dict[str, float], children: dict[str, int]) -> None:
    weights = parent_weights(found, children)
    assert weights.keys() == found.keys()
    assert all(0.0 <= weight <= 1.0 for weight in weights.values())


@given(scores)
def test_a_better_one_never_weighs_less(found: dict[str, float]) -> None:
    weights = parent_weights(found, {})
    ranked = sorted(found, key=lambda name: found[name])
    assert all(weights[a] <= weights[b] for a, b in pairwise(ranked))


def test_children_make_a_parent_rarer() -> None:
    weights = parent_weights({"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 4})
    assert weights["a"] == pytest.approx(weights["b"] / 5)


def test_what_is_within_the_noise_of_the_best_counts_as_the_best() -> None:
    found = {"a": 1.000, "b": 0.995, "c": 0.5, "d": 0.2, "e": 0.1}
    weights = parent_weights(found, {}, noise=0.01)
    assert weights["a"] == weights["b"] > weights["c"]


def test_draws_follow_the_weights_and_the_seed() -> None:
    weights = {"a": 0.9, "b": 0.1, "c": 0.0}
    drawn = [choose_parent(weights, random.Random(seed)) for seed in range(300)]
    assert 230 < drawn.count("a") < 300
    assert "c" not in drawn
    assert drawn == [choose_parent(weights, random.Random(seed)) for seed in range(300)]


def test_without_weights_any_may_be_drawn_and_without_candidates_none() -> None:
    assert choose_parent({"a": 0.0}, random.Random(0)) == "a"
    with pytest.raises(ValueError, match="no candidate"):
        choose_parent({}, random.Random(0))
