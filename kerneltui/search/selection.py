"""Which candidate is the next parent: good ones more often, those with many children less.

The weight of a candidate is sigmoid(λ (score - median) / MAD) / (1 + children), the rule of ShinkaEvolve and
CUCo (MAD: the median absolute deviation of all scores). Scores that differ by less than the noise count
as the same, so that luck does not become a family.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Mapping
from statistics import median

__all__ = ["choose_inspirations", "choose_parent", "parent_weights"]

LAMBDA = 8.0


def parent_weights(
    scores: Mapping[str, float], children: Mapping[str, int], noise: float = 0.0
) -> dict[str, float]:
    """Weights of candidates as parents.

    Args:
        scores: By candidate, larger is better, such as the log of the ratio to the reference.
        children: How many children each has; none if it is not named.
        noise: Scores closer than this to the best count as the best.
    """
    if not scores:
        return {}
    best = max(scores.values())
    level = {name: best if best - score < noise else score for name, score in scores.items()}
    middle = median(level.values())
    spread = median(abs(score - middle) for score in level.values()) or 1e-9
    return {
        name: _sigmoid(LAMBDA * (score - middle) / spread) / (1 + children.get(name, 0))
        for name, score in level.items()
    }


def choose_parent(weights: Mapping[str, float], random_source: random.Random) -> str:
    """Draws a parent.

    Raises:
        ValueError: There is none.
    """
    if not weights:
        raise ValueError("no candidate can be a parent")
    names = sorted(weights)
    total = sum(weights.values())
    if total <= 0.0:
        return random_source.choice(names)
    return random_source.choices(names, [weights[name] for name in names])[0]


def choose_inspirations(
    scores: Mapping[str, float], taken: Container[str], count: int, random_source: random.Random
) -> tuple[str, ...]:
    """Chooses candidates whose ideas are shown beside a parent: the best one, then any.

    Args:
        scores: By candidate, larger is better.
        taken: Those that are shown anyway.
        count: How many at most.
        random_source: Of the draws.
    """
    others = sorted(
        (name for name in scores if name not in taken), key=lambda name: (-scores[name], name)
    )
    best, rest = others[:1], others[1:]
    drawn = random_source.sample(rest, min(max(count - 1, 0), len(rest)))
    return tuple([*best, *drawn][:count])


def _sigmoid(value: float) -> float:
    if value < -700.0:
        return 0.0
    return 1.0 / (1.0 + math.exp(-value))
