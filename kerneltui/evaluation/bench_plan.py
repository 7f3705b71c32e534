"""What a side-by-side run measures: on which shapes, in which modes, and how long it may take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kerneltui.model.workload import Shape, Workload

__all__ = ["BenchPlan", "chosen_shapes", "gaps", "spread_order"]

_LONGEST_GAP = 20.0  # of the mean: one in 500 million is longer


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A side-by-side run.

    Attributes:
        shapes: Where it is measured, in this order.
        offline: Calls back to back; with a cold cache, and on GPUs with a warm one beside it.
        server: Single calls after pauses.
        rounds: Of the offline mode, at most.
        least_rounds: And at least; between them a shape ends when its intervals are narrow.
        narrow: Half-width of an interval, as a log-ratio, that is narrow.
        warm_rounds: Of the warm cache.
        most_calls: In a sample. A stream takes about 1024 launches before its host has to wait, which then
            could not be held back: so many calls have room for two launches each.
        sample_ns: What a sample of the fastest lane takes at least, as far as `most_calls` allows.
        fresh: Buffer sets that get new inputs before a sample. All of them do, but for very short calls:
            there the others keep those of a sample before.
        gap_ns: Mean of the pauses, which are drawn from an exponential distribution.
        arrivals: Single calls of a lane on a shape.
        server_ns: Time of them, at most: there are fewer of calls that take long.
        chunks: Parts in which lanes take turns there.
        seed: Of the pauses.
        sustained_s: Calls without a pause, in seconds; 0 for none.
        sustained: Names of the shapes on which that is measured.
        budget_s: No further shape is begun after so long, or None.
    """

    shapes: tuple[Shape, ...]
    offline: bool = True
    server: bool = False
    rounds: int = 22
    least_rounds: int = 4
    narrow: float = 0.005
    warm_rounds: int = 2
    most_calls: int = 480
    sample_ns: int = 1_000_000
    fresh: int = 4
    gap_ns: int = 2_000_000
    arrivals: int = 200
    server_ns: int = 300_000_000
    chunks: int = 8
    seed: int = 0
    sustained_s: float = 0.0
    sustained: frozenset[str] = frozenset()
    budget_s: float | None = None

    def to_record(self) -> dict[str, Any]:
        """For the record of the run; shapes by their names, in order."""
        names = [shape.name for shape in self.shapes]
        return {**asdict(self), "shapes": names, "sustained": sorted(self.sustained)}

    def per_chunk(self, call_ns: float) -> int:
        """Single calls of a lane in one part: an even number, of both kinds the same."""
        affordable = self.server_ns / (self.gap_ns + call_ns)
        wanted = min(float(self.arrivals), affordable) / self.chunks
        return max(2, 2 * round(wanted / 2))


def chosen_shapes(workload: Workload, which: str | None) -> tuple[Shape, ...]:
    """Returns shapes by tag, or all; by default those for the benchmark, or else those for tuning.

    The order is such that any beginning of it is spread over the work.

    Args:
        workload: Whose.
        which: "tune", "bench", "all", or None.
    """
    if which == "all":
        found = workload.shapes
    elif which is not None:
        found = workload.shapes_for(which)
    else:
        found = workload.shapes_for("bench") or workload.shapes_for("tune")
    operations = workload.limit.flops
    return spread_order(sorted(found, key=lambda shape: operations.number(shape.values)))


def spread_order(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Returns shapes by the reversed bits of their places: far apart first, then between."""
    bits = max(1, (len(shapes) - 1).bit_length())
    order = sorted(range(len(shapes)), key=lambda place: f"{place:0{bits}b}"[::-1])
    return tuple(shapes[place] for place in order)


def gaps(plan: BenchPlan, shape: str, chunk: int, count: int) -> list[int]:
    """Returns the pauses of one part, in nanoseconds: the same for all lanes."""
    drawn = random.Random(f"{plan.seed}/{shape}/{chunk}")
    most = _LONGEST_GAP
    return [round(plan.gap_ns * min(most, drawn.expovariate(1.0))) for _ in range(count)]
