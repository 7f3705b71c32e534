"""The bandit over arms: deterministic, fair at the start, and better than drawing evenly."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.search import bandit
from kerneltui.search.bandit import FADE, Pull, arm_records, choose_arm

ARMS = ("large", "small", "offline")
pulls = st.lists(
    st.builds(
        Pull,
        st.sampled_from([*ARMS, "gone"]),
        st.none() | st.just(0.0) | st.floats(1e-6, 8.0),
        st.none() | st.integers(0, 10**8),
    ),
    max_size=60,
)
slots = st.none() | st.floats(1.0, 1e9)
Truth = Mapping[str, tuple[float, float]]
"""Of each arm the chance of a gain and its middle."""


def play(
    truth: Truth,
    count: int,
    seed: int,
    *,
    money: Mapping[str, int] | None = None,
    slot: float | None = None,
    late: int = 0,
) -> list[Pull]:
    """Pulls `count` times; results come `late` pulls later. All arms see the same luck."""
    luck = random.Random(f"luck {seed}")
    made: list[Pull] = []
    for _ in range(count):
        known = [
            pull if place < len(made) - late else Pull(pull.arm, None, pull.micro_usd)
            for place, pull in enumerate(made)
        ]
        arm = choose_arm(tuple(truth), known, seed, slot)
        chance, size = truth[arm]
        hit, large = luck.random() < chance, luck.lognormvariate(0.0, 0.8)
        made.append(Pull(arm, size * large if hit else 0.0, (money or {}).get(arm, 0)))
    return made


def gained(made: list[Pull]) -> float:
    return sum(pull.gain or 0.0 for pull in made)


def even(truth: Truth, count: int, seed: int) -> float:
    """What arms in turn gain with the same luck."""
    luck = random.Random(f"luck {seed}")
    total = 0.0
    for number in range(count):
        chance, size = truth[tuple(truth)[number % len(truth)]]
        hit, large = luck.random() < chance, luck.lognormvariate(0.0, 0.8)
        total += size * large if hit else 0.0
    return total


@given(pulls, st.integers(0, 2**31), slots)
def test_the_same_story_gives_the_same_arm_in_whatever_order_arms_are_named(
    story: list[Pull], seed: int, slot: float | None
) -> None:
    chosen = choose_arm(ARMS, story, seed, slot)
    assert chosen in ARMS
    assert choose_arm(ARMS, list(story), seed, slot) == chosen
    if {pull.arm for pull in story} >= set(ARMS):
        assert choose_arm(ARMS[::-1], story, seed, slot) == chosen


@given(pulls, st.integers(0, 2**31), slots)
def test_every_arm_is_pulled_once_before_any_is_preferred(
    story: list[Pull], seed: int, slot: float | None
) -> None:
    missing = [arm for arm in ARMS if arm not in {pull.arm for pull in story}]
    if missing:
        assert choose_arm(ARMS, story, seed, slot) == missing[0]


@given(pulls, slots)
def test_records_add_up(story: list[Pull], slot: float | None) -> None:
    records = arm_records(ARMS, story, slot)
    assert tuple(records)[:3] == ARMS
    assert sum(record.pulls for record in records.values()) == len(story)
    for record in records.values():
        assert 0.0 <= record.reward <= 1.0
        assert record.gains + record.waiting <= record.pulls
        assert record.cost >= 1.0


@given(pulls, st.integers(0, 100), st.floats(0.001, 1000.0))
def test_the_scale_of_gains_does_not_matter(story: list[Pull], seed: int, scale: float) -> None:
    if not any(pull.gain for pull in story):
        return
    larger = [Pull(pull.arm, pull.gain and pull.gain * scale, pull.micro_usd) for pull in story]
    one, other = arm_records(ARMS, story), arm_records(ARMS, larger)
    assert all(one[arm].reward == pytest.approx(other[arm].reward) for arm in one)


def test_without_arms_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="no arm"):
        choose_arm((), [], 0)


SEEDS = range(60)


@pytest.mark.parametrize("late", [0, 3], ids=["at once", "late"])
def test_the_best_arm_is_pulled_most_and_gains_more_than_turns(late: int) -> None:
    truth = {"large": (0.4, 0.03), "small": (0.12, 0.03), "offline": (0.12, 0.03)}
    games = [play(truth, 100, seed, late=late) for seed in SEEDS]
    counts = [Counter(pull.arm for pull in made) for made in games]
    assert fmean(count["large"] for count in counts) > 50
    most = sum(max(count, key=lambda arm: count[arm]) == "large" for count in counts)
    assert most >= 0.85 * len(SEEDS)
    best = 0.4 * 0.03 * 1.377 * 100  # the mean of the log-normal factor is exp(0.32)
    regret = best - fmean(gained(made) for made in games)
    in_turn = best - fmean(even(truth, 100, seed) for seed in SEEDS)
    assert regret < 0.75 * in_turn


def test_an_arm_that_always_fails_is_tried_little_and_not_never() -> None:
    truth = {"broken": (0.0, 0.0), "small": (0.3, 0.02), "offline": (0.3, 0.02)}
    counts = [Counter(pull.arm for pull in play(truth, 40, seed)) for seed in SEEDS]
    assert all(count["broken"] >= 1 for count in counts)
    assert fmean(count["broken"] for count in counts) < 8, "a third would be 13"


def test_an_arm_whose_time_comes_later_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faded = share_after_the_turn()
    monkeypatch.setattr(bandit, "FADE", 1.0)
    assert faded > 0.6
    assert share_after_the_turn() < 0.4


def share_after_the_turn() -> float:
    """The search is good at first and then has nothing left; the model is as good as before."""
    taken: list[float] = []
    for seed in SEEDS:
        luck = random.Random(seed)
        made: list[Pull] = []
        for number in range(120):
            arm = choose_arm(("large", "offline"), made, seed)
            chance = 0.2 if arm == "large" else 0.6 if number < 40 else 0.0
            made.append(Pull(arm, 0.03 if luck.random() < chance else 0.0))
        taken.append(sum(pull.arm == "large" for pull in made[80:]) / 40)
    return fmean(taken)


def test_a_dear_arm_has_to_gain_more() -> None:
    truth = {"large": (0.3, 0.03), "offline": (0.3, 0.03)}
    money = {"large": 1_000_000}
    dear = [Counter(p.arm for p in play(truth, 60, seed, money=money, slot=5e5)) for seed in SEEDS]
    free = [Counter(p.arm for p in play(truth, 60, seed, money=money)) for seed in SEEDS]
    assert fmean(count["large"] for count in dear) < 20
    assert fmean(count["large"] for count in free) == pytest.approx(30, abs=4)


def test_a_price_that_nobody_knows_is_taken_for_the_dearest() -> None:
    story = [Pull("large", 0.0, 400_000), Pull("small", 0.0, None), Pull("offline", 0.0)]
    records = arm_records(ARMS, story, 400_000.0)
    assert [records[arm].cost for arm in ARMS] == [2.0, 2.0, 1.0]
    assert records["small"].micro_usd is None


def test_old_pulls_count_less_and_unknown_ones_nothing() -> None:
    story = [Pull("large", 1.0), Pull("large", None), Pull("large", 0.0)]
    record = arm_records(("large",), story)["large"]
    assert record.reward == pytest.approx(0.5 * FADE**2 / (1 + FADE**2))
    assert (record.pulls, record.waiting, record.gains) == (3, 1, 1)
