"""Steps from known configurations to new ones, all valid and all as rows of codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kerneltui.search.parameter import Codes, Rows
from kerneltui.search.space import Space
from kerneltui.search.strategy import Move

__all__ = ["Step", "crossovers", "moved", "neighbours", "pairs", "permitted", "resets"]


@dataclass(frozen=True, slots=True)
class Step:
    """A new configuration and how it was made.

    Attributes:
        codes: The new configuration.
        move: The kind of step.
        parent: Where it started, if anywhere.
        second: The other parent of a crossover.
    """

    codes: Codes
    move: Move
    parent: Codes | None = None
    second: Codes | None = None


def neighbours(space: Space, codes: Codes) -> list[Step]:
    """Changes one parameter to any other allowed value.

    What bans and forces do not permit is replaced first; that alone is a step as well.
    """
    base = permitted(space, codes)
    rows = [
        (*base[:place], code, *base[place + 1 :])
        for place, allowed in enumerate(space.allowed)
        for code in allowed
        if code != base[place]
    ]
    if base != codes:
        rows.insert(0, base)
    return moved(space, rows, Move.NEIGHBOUR, codes)


def pairs(space: Space, codes: Codes) -> list[Step]:
    """Moves two parameters to adjacent allowed values, in every combination of directions."""
    base = permitted(space, codes)
    adjacent = [_adjacent(allowed, base[place]) for place, allowed in enumerate(space.allowed)]
    rows: list[Codes] = []
    for first, near in enumerate(adjacent):
        for second in range(first + 1, len(adjacent)):
            for one in near:
                for other in adjacent[second]:
                    row = list(base)
                    row[first], row[second] = one, other
                    rows.append(tuple(row))
    return moved(space, rows, Move.PAIR, codes)


def crossovers(
    space: Space, elites: list[Codes], count: int, rng: np.random.Generator
) -> list[Step]:
    """Takes each value from one of two elites, ``count`` times; what is invalid is dropped."""
    if len(elites) < 2:
        return []
    steps: list[Step] = []
    for _ in range(count):
        one, other = (elites[int(place)] for place in rng.choice(len(elites), 2, replace=False))
        coin = rng.random(len(one)) < 0.5
        child = tuple(a if first else b for a, b, first in zip(one, other, coin, strict=True))
        if child not in (one, other):
            steps.append(Step(child, Move.CROSSOVER, one, other))
    return _filter(space, steps)


def resets(space: Space, codes: Codes, default: Codes) -> list[Step]:
    """Returns one parameter to its default."""
    rows = [
        (*codes[:place], code, *codes[place + 1 :])
        for place, code in enumerate(default)
        if code != codes[place]
    ]
    return moved(space, rows, Move.RESET, codes)


def permitted(space: Space, codes: Codes) -> Codes:
    """Replaces every value that is banned or not forced by the nearest allowed one.

    The result need not satisfy the constraints.
    """
    return tuple(
        min(allowed, key=lambda other: (abs(other - code), other))
        for code, allowed in zip(codes, space.allowed, strict=True)
    )


def moved(space: Space, rows: list[Codes], move: Move, parent: Codes) -> list[Step]:
    """Makes steps of those rows that belong to the space."""
    return _filter(space, [Step(row, move, parent) for row in rows])


def _adjacent(allowed: Codes, code: int) -> list[int]:
    below = [other for other in allowed if other < code]
    above = [other for other in allowed if other > code]
    return below[-1:] + above[:1]


def _filter(space: Space, steps: list[Step]) -> list[Step]:
    if not steps:
        return []
    rows: Rows = np.array([step.codes for step in steps], dtype=np.int64)
    return [step for step, good in zip(steps, space.valid(rows).tolist(), strict=True) if good]
