"""The offline strategy: where it goes, what it comes back to, and what it says of a proposal."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from search_grids import grid

from kerneltui.search import moves
from kerneltui.search.offline import OfflineStrategy
from kerneltui.search.parameter import Configuration, Parameter, SpaceError
from kerneltui.search.registry import make_strategy
from kerneltui.search.space import Space
from kerneltui.search.strategy import Move


def run(
    strategy: Any,
    space: Space,
    evaluate: Callable[[Configuration], float | None],
    count: int,
    batch: int = 4,
):
    for _ in range(count // batch):
        for proposal in strategy.ask(batch):
            strategy.tell(proposal.configuration, evaluate(proposal.configuration))
    return strategy


def bowl(configuration: Configuration):
    """Smooth, with the least value at (6, 2, ·, 1); the third parameter does not matter."""
    a, b, _, d = configuration
    return 0.1 * abs(a - 6) + 0.2 * abs(b - 2) + 0.3 * (d != 1)


BOWL = Space.of(
    [
        Parameter("A", tuple(range(12)), default=0),
        Parameter("B", tuple(range(10)), default=9),
        Parameter("IDLE", tuple(range(8)), default=3),
        Parameter("D", (0, 1), default=0),
    ]
)
POOR = (0, 9, 3, 0)


def test_forty_evaluations_from_a_poor_default_reach_a_smooth_optimum():
    found = []
    for seed in range(10):
        strategy = OfflineStrategy(BOWL, seed, [POOR], budget=40)
        best = run(strategy, BOWL, bowl, 40).best()
        assert best is not None
        found.append(bowl(best))
    assert np.median(found) <= 0.1
    assert max(found) < bowl(POOR) / 2


def test_idle_parameters_return_to_their_defaults_and_are_known_to_be_idle():
    idle = 0
    shares = dict.fromkeys(BOWL.names, 0.0)
    for seed in range(10):
        strategy = run(OfflineStrategy(BOWL, seed, [POOR], budget=60), BOWL, bowl, 60)
        best = strategy.best()
        idle += best is not None and best[2] == 3
        importance = strategy.importance()
        assert sum(importance.values()) == pytest.approx(1)
        for name, share in importance.items():
            shares[name] += share / 10
    assert idle >= 8
    assert min(shares, key=shares.__getitem__) == "IDLE"
    assert shares["A"] + shares["B"] > 0.6


@pytest.mark.parametrize(("told", "batch", "resets"), [(36, 4, 3), (30, 10, 3), (30, 4, 0)])
def test_the_last_evaluations_return_to_the_defaults(told: int, batch: int, resets: int):
    strategy = OfflineStrategy(BOWL, 0, [POOR], budget=40)
    best = (6, 2, 7, 0)
    strategy.tell(best, -1.0, label="c7")
    strategy.tell(POOR, 2.0)
    others = itertools.product(range(12), range(5, 9), (3, 4), (1,))
    for configuration in itertools.islice(others, told - 2):
        strategy.tell(configuration, 1.0)
    proposals = [p for p in strategy.ask(batch) if p.move is Move.RESET]
    assert len(proposals) == resets
    for proposal in proposals:
        assert proposal.parent == best
        changed = [place for place in range(4) if proposal.configuration[place] != best[place]]
        assert [proposal.configuration[place] for place in changed] == [POOR[changed[0]]]
        assert re.fullmatch(r"from c7: \w+ \d+ → \d+; its default, to see .*", proposal.reason)


def test_the_start_comes_first_and_only_as_far_as_it_is_valid():
    strategy = OfflineStrategy(BOWL, 0, [POOR, (1, 1, 1, 1), (2, 2, 2, 0)], budget=40)
    strategy.ban("D", 1)
    moves = [(proposal.configuration, proposal.move) for proposal in strategy.ask(3)]
    assert moves[:2] == [(POOR, Move.START), ((2, 2, 2, 0), Move.START)]
    assert moves[2][1] is Move.FILL


@pytest.mark.parametrize(("budget", "most"), [(4, 2), (20, 4), (40, 8), (400, 10), (None, 10)])
def test_the_random_start_scales_with_the_budget(budget: Any, most: int):
    strategy = OfflineStrategy(BOWL, 0, [POOR], budget)
    fills = 0
    for _ in range(15):
        for proposal in strategy.ask(1):
            fills += proposal.move is Move.FILL
            strategy.tell(proposal.configuration, bowl(proposal.configuration))
    assert fills == most


def test_the_neighbours_of_a_pin_come_next():
    strategy = run(OfflineStrategy(BOWL, 0, [POOR]), BOWL, bowl, 24)
    pinned = (11, 0, 7, 0)
    strategy.pin(pinned)
    for proposal in strategy.ask(6):
        assert proposal.parent == pinned
        assert proposal.move is Move.NEIGHBOUR
        assert sum(a != b for a, b in zip(pinned, proposal.configuration, strict=True)) == 1


def test_a_forced_value_is_carried_into_the_elites():
    strategy = run(OfflineStrategy(BOWL, 0, [POOR]), BOWL, bowl, 40)
    strategy.force("D", 0)
    strategy.ban("B", 2)
    after = [proposal for _ in range(4) for proposal in strategy.ask(5)]
    assert len(after) == 20
    assert all(p.configuration[3] == 0 and p.configuration[1] != 2 for p in after)
    best = strategy.best()
    assert best is not None
    near = [p for p in after if abs(p.configuration[0] - best[0]) <= 2]
    assert len(near) >= 10


def test_a_rejection_moves_the_search_away():
    def near(strategy: Any, rejected: Configuration) -> Any:
        return sum(
            sum(a != b for a, b in zip(p.configuration, rejected, strict=True)) <= 1
            for p in strategy.ask(8)
        )

    counts = {"kept": 0, "rejected": 0}
    for seed in range(8):
        for kind in counts:
            strategy = run(OfflineStrategy(BOWL, seed, [POOR]), BOWL, bowl, 32)
            best = strategy.best()
            assert best is not None
            if kind == "rejected":
                strategy.reject(best)
                assert strategy.best() != best
            counts[kind] += near(strategy, best)
    assert counts["rejected"] < counts["kept"] / 2


def test_a_refused_steering_message_changes_nothing():
    strategy = OfflineStrategy(BOWL, 0, [POOR])
    strategy.ban("D", 0)
    for refused in (
        lambda: strategy.ban("D", 1),
        lambda: strategy.force("D", 0),
        lambda: strategy.force("X", 0),
        lambda: strategy.pin((99, 0, 0, 0)),
        lambda: strategy.reject((0, 0)),
        lambda: strategy.tell(POOR, math.nan),
        lambda: strategy.tell((0, 0, 0, 7), 1.0),
    ):
        with pytest.raises(SpaceError):
            refused()
    strategy.release("X")  # a field of the directive, which the search does not know
    other = OfflineStrategy(BOWL, 0, [POOR])
    other.ban("D", 0)
    assert strategy.ask(5) == other.ask(5)


def test_only_failures_still_end_in_an_exhausted_space():
    space = grid([3, 2, 3])
    strategy = OfflineStrategy(space, 0, budget=200)
    told = 0
    while proposals := strategy.ask(4):
        for proposal in proposals:
            strategy.tell(proposal.configuration, None)
            told += 1
    assert told == space.size
    assert strategy.best() is None
    assert strategy.importance() == {}


def test_noise_within_ties_does_not_choose_the_best():
    strategy = OfflineStrategy(BOWL, 0)
    strategy.tell((5, 2, 7, 1), 0.100)
    strategy.tell((0, 9, 3, 1), 0.104)  # a tie that is nearer to the defaults
    strategy.tell((5, 2, 3, 1), 0.120)
    assert strategy.best() == (0, 9, 3, 1)
    strategy.tell((0, 9, 3, 1), 0.134)  # measured again: the mean is now worse than a tie
    assert strategy.best() == (5, 2, 7, 1)


def test_rough_values_never_beat_full_ones_and_failures_count_for_good():
    strategy = OfflineStrategy(BOWL, 0)
    strategy.tell((1, 1, 1, 1), -5.0, screened=True)
    assert strategy.best() == (1, 1, 1, 1)
    strategy.tell((2, 2, 2, 1), 0.3)
    assert strategy.best() == (2, 2, 2, 1)
    strategy.tell((1, 1, 1, 1), 0.1)
    assert strategy.best() == (1, 1, 1, 1)
    strategy.tell((1, 1, 1, 1), 0.9, screened=True)
    assert strategy.best() == (1, 1, 1, 1)
    strategy.tell((1, 1, 1, 1), None)
    assert strategy.best() == (2, 2, 2, 1)


def test_a_reason_says_what_changes_from_which_candidate():
    strategy = OfflineStrategy(BOWL, 1, [POOR], budget=60)
    number, reasons = 0, {}
    for _ in range(9):
        for proposal in strategy.ask(5):
            number += 1
            strategy.tell(proposal.configuration, bowl(proposal.configuration), False, f"c{number}")
            reasons.setdefault(proposal.move, proposal.reason)
    assert reasons[Move.START] == "a known start"
    assert reasons[Move.FILL] == "random, to learn what matters"
    matches = {
        Move.NEIGHBOUR: r"neighbour of c\d+: (A|B|IDLE|D) \d+ → \d+; forest ranks it \d+ of \d+",
        Move.PAIR: r"from c\d+: \w+ \d+ → \d+ and \w+ \d+ → \d+; forest ranks it \d+ of \d+",
    }
    for move, pattern in matches.items():
        if move in reasons:
            assert re.fullmatch(pattern, reasons[move])
    assert Move.NEIGHBOUR in reasons


def test_a_space_too_large_to_list_is_searched():
    parameters = [Parameter(f"p{i}", tuple(range(8)), default=0) for i in range(9)]
    space = Space.of(parameters)
    assert space.size is None

    def far(configuration: Configuration) -> float:
        return sum(0.1 * abs(value - 5) for value in configuration)

    start = (0,) * 9
    strategy = run(OfflineStrategy(space, 2, [start], 120), space, far, 120)
    best = strategy.best()
    assert best is not None
    assert far(best) < far(start) / 3


def test_ask_for_nothing_and_unknown_words():
    assert OfflineStrategy(BOWL, 0).ask(0) == []
    with pytest.raises(ValueError, match="unknown strategy best; use one of offline, random"):
        make_strategy("best", BOWL, 0)


def test_pairs_are_all_adjacent_values_only():
    steps = moves.pairs(BOWL, (5, 5, 5, 0))
    expected = {
        row
        for row in itertools.product(range(12), range(10), range(8), (0, 1))
        if sum(a != b for a, b in zip(row, (5, 5, 5, 0), strict=True)) == 2
        and all(abs(a - b) <= 1 for a, b in zip(row, (5, 5, 5, 0), strict=True))
    }
    assert {step.codes for step in steps} == expected


def test_noise_does_not_mislead_the_search():
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        strategy = OfflineStrategy(BOWL, seed, [POOR], budget=80)
        run(strategy, BOWL, lambda c, rng=rng: bowl(c) + 0.02 * rng.standard_normal(), 80)
        best = strategy.best()
        assert best is not None
        found.append(bowl(best))
    assert np.median(found) <= 0.1
