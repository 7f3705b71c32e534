"""The strategies by the word that a user types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kerneltui.search.offline import OfflineStrategy
from kerneltui.search.parameter import Configuration
from kerneltui.search.random_search import RandomSearch
from kerneltui.search.space import Space
from kerneltui.search.strategy import Strategy

__all__ = ["make_strategy"]

STRATEGIES: dict[str, Callable[[Space, int, Sequence[Configuration], int | None], Strategy]] = {
    "offline": OfflineStrategy,
    "random": RandomSearch,
}
DEFAULT_STRATEGY = "offline"


def make_strategy(
    word: str,
    space: Space,
    seed: int,
    start: Sequence[Configuration] = (),
    budget: int | None = None,
) -> Strategy:
    """Makes a strategy.

    Args:
        word: A key of :data:`STRATEGIES`.
        space: Where to search.
        seed: Not negative.
        start: Configurations to evaluate first.
        budget: The expected number of evaluations.

    Raises:
        ValueError: The word is unknown.
    """
    if word not in STRATEGIES:
        raise ValueError(f"unknown strategy {word}; use one of {', '.join(STRATEGIES)}")
    return STRATEGIES[word](space, seed, start, budget)
