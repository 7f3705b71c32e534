"""What every strategy keeps to: each configuration once, steering, the same story told again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_grids import cost, grid

from kerneltui.search.parameter import SpaceError
from kerneltui.search.registry import STRATEGIES, make_strategy
from kerneltui.search.space import Space

WORDS = sorted(STRATEGIES)


def exhaust(strategy: Any, batch: int):
    """Asks and tells until nothing comes; fails rather than loops for ever."""
    told = []
    for _ in range(5000):
        proposals = strategy.ask(batch)
        if not proposals:
            return told
        assert len(proposals) <= batch
        for proposal in proposals:
            told.append(proposal.configuration)
            strategy.tell(proposal.configuration, cost(proposal.configuration))
    raise AssertionError("the strategy never ends")


@pytest.mark.parametrize("word", WORDS)
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    modulus=st.sampled_from([0, 3, 5]),
    seed=st.integers(0, 2**32),
    pace=st.tuples(st.integers(1, 9), st.sampled_from([None, 1, 2, 10, 40])),
)
def test_proposes_every_valid_configuration_exactly_once(
    word: str, sizes: list[int], modulus: int, seed: int, pace: tuple[int, int | None]
):
    batch, budget = pace
    space = grid(sizes, modulus)
    strategy = make_strategy(word, space, seed, (), budget)
    told = exhaust(strategy, batch)
    assert len(told) == len(set(told)) == space.size
    assert all(space.contains(configuration) for configuration in told)
    assert strategy.ask(3) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "ask", "ask", "tell", "fail", "ban", "force", "release", "pin", "reject"]
        ),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    max_size=25,
)


def play(strategy: Any, space: Space, steps: Any):
    """Follows the steps; yields what was asked under which bans and forces."""
    bans, forces, open_ = set(), {}, []
    for kind, first, second in steps:
        parameter = space.parameters[first % len(space.parameters)]
        value = parameter.values[second % len(parameter.values)]
        some = space.at(first * 7 % (space.size or 1))
        if kind == "ask":
            proposals = strategy.ask(first % 6)
            assert len(proposals) <= first % 6
            open_ += [proposal.configuration for proposal in proposals]
            yield proposals, set(bans), dict(forces)
        elif kind in ("tell", "fail") and open_:
            configuration = open_.pop(0)
            strategy.tell(configuration, None if kind == "fail" else cost(configuration))
        elif kind == "pin":
            strategy.pin(some)
        elif kind == "reject":
            strategy.reject(some)
        elif kind == "release":
            strategy.release(parameter.name)
            bans = {ban for ban in bans if ban[0] != parameter.name}
            forces.pop(parameter.name, None)
        elif kind in ("ban", "force"):
            try:
                getattr(strategy, kind)(parameter.name, value)
            except SpaceError:
                continue
            if kind == "ban":
                bans.add((parameter.name, value))
            else:
                forces[parameter.name] = value


@pytest.mark.parametrize("word", WORDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    modulus=st.sampled_from([0, 3]),
    seed=st.integers(0, 1000),
    steps=STEPS,
)
def test_steering_is_respected_at_every_step(
    word: str, sizes: list[int], modulus: int, seed: int, steps: Any
):
    space = grid(sizes, modulus)
    strategy = make_strategy(word, space, seed, [space.at(0)], 40)
    seen = set()
    for proposals, bans, forces in play(strategy, space, steps):
        for proposal in proposals:
            named = space.named(proposal.configuration)
            assert proposal.configuration not in seen
            seen.add(proposal.configuration)
            assert space.contains(proposal.configuration)
            assert not bans.intersection(named.items())
            assert forces.items() <= named.items()
            assert proposal.reason and "\n" not in proposal.reason


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_of_a_pin_are_proposed_once(seed: int):
    space = grid([3, 4], 0)
    strategy = make_strategy("offline", space, seed, [space.at(0)], 40)
    steps = [("ask", 4, 0), ("ask", 3, 0), ("pin", 0, 0), ("ask", 4, 0)]
    made = [p.configuration for asked, _, _ in play(strategy, space, steps) for p in asked]
    assert len(made) == len(set(made))


@pytest.mark.parametrize("word", WORDS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), steps=STEPS)
def test_the_same_story_gives_the_same_proposals(word: str, seed: int, steps: Any):
    space = grid([4, 3, 3, 2], 3)
    one, two = (make_strategy(word, space, seed, (), 40) for _ in range(2))
    assert list(play(one, space, steps)) == list(play(two, space, steps))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_a_strategy_that_is_told_the_story_goes_on_as_if_it_had_not_stopped(word: str, rounds: int):
    space = grid([9, 8, 3, 7], 5)
    start = [space.at(0), space.at(5)]
    live = make_strategy(word, space, 3, start, 40)
    told = []
    for number in range(rounds):
        for proposal in live.ask(4):
            told.append(proposal.configuration)
            live.tell(proposal.configuration, cost(proposal.configuration), label=f"c{len(told)}")
        if number == 0:
            live.ban("p0", 1)
            live.reject(told[1])
            live.pin(told[2])
    resumed = make_strategy(word, space, 3, start, 40)
    resumed.force("p0", 2)
    for number, configuration in reversed(list(enumerate(told[:4]))):
        resumed.tell(configuration, cost(configuration), label=f"c{number + 1}")
    resumed.release("p0")
    resumed.pin(told[2])
    resumed.reject(told[1])
    resumed.ban("p0", 1)
    for number, configuration in reversed(list(enumerate(told))[4:]):
        resumed.tell(configuration, cost(configuration), label=f"c{number + 1}")
    assert resumed.ask(6) == live.ask(6)
