"""From exploring to exploiting: by whichever budget is furthest along, never back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.search.schedule import mix_at, used_share

shares = st.floats(0.0, 1.0)


@given(shares)
def test_the_kinds_are_chances(used: float) -> None:
    mix = mix_at(used)
    assert mix.diff + mix.rewrite + mix.crossover == pytest.approx(1.0)
    assert 0.0 < mix.even < 1.0
    assert 1 <= mix.inspirations <= 3


@given(st.lists(shares, min_size=2))
def test_exploring_only_ever_falls(points: list[float]) -> None:
    mixes = [mix_at(used) for used in sorted(points)]
    for earlier, later in pairwise(mixes):
        assert later.exploring <= earlier.exploring
        assert later.rewrite <= earlier.rewrite
        assert later.even <= earlier.even
        assert later.inspirations <= earlier.inspirations
        assert later.diff >= earlier.diff


def test_rewrites_give_way_to_small_changes_at_two_fifths_of_the_budget() -> None:
    assert mix_at(0.0) == mix_at(0.2)
    assert (mix_at(0.0).rewrite, mix_at(0.0).diff) == pytest.approx((0.70, 0.15))
    assert (mix_at(1.0).rewrite, mix_at(1.0).diff) == pytest.approx((0.25, 0.60))
    assert mix_at(0.4).exploring == pytest.approx(0.5)


def test_the_budget_that_is_furthest_along_counts() -> None:
    assert used_share([(10, 40), (5e6, 10e6), (0.0, None)]) == 0.5
    assert used_share([(30, 40), (0, 10e6), (1.0, 100.0)]) == 0.75
    assert used_share([(3, None), (7, None)]) == 0.0
    assert used_share([(0, 0)]) == 1.0
    assert used_share([(50, 40)]) == 1.0
