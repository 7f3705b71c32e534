"""Who is faster on a shape alone: what a choice by shape could gain over one kernel for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kerneltui.model.candidate import Candidate
from kerneltui.model.measurement import ShapeMeasurement
from kerneltui.model.statistics import Verdict

__all__ = ["ShapeWinner", "shape_winners"]


@dataclass(frozen=True, slots=True)
class ShapeWinner:
    """A candidate that is FASTER on a shape, though not over all shapes.

    Attributes:
        candidate: Who.
        part: What was measured on that shape, against the incumbent of its time.
        worst: The same on the shape on which it is the slowest.
    """

    candidate: Candidate
    part: ShapeMeasurement
    worst: ShapeMeasurement


def shape_winners(candidates: Iterable[Candidate], against: str) -> tuple[ShapeWinner, ...]:
    """The fastest on each shape of those measured against a candidate that did not beat it as a whole.

    It is the best of many noisy ones, so its gain is rather too large.

    Args:
        candidates: Among whom.
        against: Id of the one that they were measured against.

    Returns:
        One for each shape on which somebody is FASTER, in the order of the shapes.
    """
    best: dict[str, ShapeWinner] = {}
    order: dict[str, None] = {}
    for candidate in candidates:
        measurement = candidate.measurement
        if measurement is None or measurement.against != against:
            continue
        if (
            measurement.quarantine
            or measurement.verdict is Verdict.FASTER
            or not measurement.shapes
        ):
            continue
        worst = max(measurement.shapes, key=lambda part: part.interval.estimate)
        for part in measurement.shapes:
            order.setdefault(part.shape)
            known = best.get(part.shape)
            if part.verdict is not Verdict.FASTER:
                continue
            if known is None or part.interval.estimate < known.part.interval.estimate:
                best[part.shape] = ShapeWinner(candidate, part, worst)
    return tuple(best[shape] for shape in order if shape in best)
