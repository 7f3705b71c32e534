"""Waits between attempts: bounded, growing, and ended at once when somebody wants the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.retry import Waiting, wait_ms

DICE = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 500), st.integers(0, 5_000), st.integers(1, 60_000), DICE)
def test_a_wait_of_our_own_is_within_its_half(failures: int, first: int, longest: int, dice: float):
    whole = min(longest, first * 2 ** min(failures - 1, 40))
    assert whole // 2 <= wait_ms(failures, None, first, longest, dice) <= whole


@given(st.integers(1, 50), st.integers(0, 100_000), DICE)
def test_a_server_waits_no_less_than_it_asked(failures: int, asked: int, dice: float):
    assert asked <= wait_ms(failures, asked, 1_000, 60_000, dice) <= asked * 1.1


@given(st.integers(0, 3_000), st.integers(0, 80))
def test_a_pause_ends_when_somebody_wants_the_end(milliseconds: int, looks: int):
    slept: list[float] = []
    asked = iter([False] * looks + [True] * 1_000)
    ended = Waiting(slept.append).pause(milliseconds, lambda: next(asked))
    assert sum(slept) <= milliseconds / 1000 + 1e-9
    assert len(slept) <= looks
    assert ended == (looks <= -(-milliseconds // 50))
