"""From exploring to exploiting: what the next question to a model is like, as the budget is used.

CUCo explores for the first 40 % of the budget and exploits from then on; its authors found exploiting alone
to be worse. The step there is a slope here, from 20 % to 60 %: until the first point seven of ten proposals
write a region anew, a fifth of the parents is drawn evenly, and three other kernels are shown; after the
second most are small changes of the best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Mix", "mix_at", "used_share"]

_FROM, _TO = 0.2, 0.6


@dataclass(frozen=True, slots=True)
class Mix:
    """Chances and numbers of the next question.

    Attributes:
        diff: The chance of a focused change.
        rewrite: That of a region written anew.
        crossover: That of two parents.
        even: That of a parent drawn evenly instead of by its weight.
        inspirations: How many other kernels are shown.
        exploring: How far the search still explores, from 1 to 0.
    """

    diff: float
    rewrite: float
    crossover: float
    even: float
    inspirations: int
    exploring: float


_EXPLORE = Mix(0.15, 0.70, 0.15, 0.20, 3, 1.0)
_EXPLOIT = Mix(0.60, 0.25, 0.15, 0.05, 1, 0.0)


def used_share(parts: Iterable[tuple[float, float | None]]) -> float:
    """Returns how far a search is: the largest share of a budget that is used, from 0 to 1.

    Args:
        parts: What was used and what may be, for each kind; None is no limit.
    """
    shares = (used / limit if limit else 1.0 for used, limit in parts if limit is not None)
    return min(max(shares, default=0.0), 1.0)


def mix_at(used: float) -> Mix:
    """Returns what questions are like once a share of the budget is used."""
    exploring = min(max((_TO - used) / (_TO - _FROM), 0.0), 1.0)

    def between(explore: float, exploit: float) -> float:
        return exploit + (explore - exploit) * exploring

    return Mix(
        diff=between(_EXPLORE.diff, _EXPLOIT.diff),
        rewrite=between(_EXPLORE.rewrite, _EXPLOIT.rewrite),
        crossover=between(_EXPLORE.crossover, _EXPLOIT.crossover),
        even=between(_EXPLORE.even, _EXPLOIT.even),
        inspirations=round(between(_EXPLORE.inspirations, _EXPLOIT.inspirations)),
        exploring=exploring,
    )
