"""Lanes, samples and rounds for tests of the evaluation, without processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kerneltui.evaluation.benchmark import Yardstick
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.rounds import Burst, ShapeRounds
from kerneltui.model.workload import Shape, Workload
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.sample import RankSample, Sample

WORKLOAD_FOLDER = Path(__file__).parents[2] / "workloads" / "gemm_allgather"
MS = 1_000_000


def workload() -> Workload:
    return load_workload(WORKLOAD_FOLDER)


def shape(name: str = "512x512x512") -> Shape:
    return next(s for s in workload().shapes if s.name == name)


def sample(
    *ranks: tuple[int, Sequence[int]],
    wall_ns: int = 10 * MS,
    conflict: str | None = None,
    unheld: bool = False,
) -> Sample:
    """A sample from each rank's start and ends, in nanoseconds."""
    seen = tuple(
        RankSample(start, tuple(ends), 0, 0, 0, 0, 1, 1, unheld=unheld) for start, ends in ranks
    )
    calls = len(seen[0].call_ends_ns)
    return Sample(calls, 0, 1, seen, wall_ns, conflict)


def burst(value_ms: float, gap_ns: float = 0.0, conflict: str = "") -> Burst:
    value = value_ms * MS
    return Burst(value, (value,), (value, value), gap_ns, conflict)


def rounds(
    candidate: Sequence[float],
    incumbent: Sequence[float],
    reference: Sequence[float | None] | None = None,
    name: str = "512x512x512",
) -> ShapeRounds:
    """Rounds from times in milliseconds."""
    others = reference if reference is not None else [None] * len(candidate)
    return ShapeRounds(
        name,
        1,
        [burst(value) for value in candidate],
        [burst(value) for value in incumbent],
        [None if value is None else burst(value) for value in others],
    )


def yardstick(name: str = "512x512x512", **changes: Any) -> Yardstick:
    nobody = cast(Lane, SimpleNamespace(name="nobody", graph_safe=True))
    values: dict[str, Any] = {
        "shape": shape(name), "incumbent": nobody, "reference": nobody, "reference_name": "torch_gloo",
        "calls": 1, "sets": 3, "bound_ns": MS // 2, "floor_ns": MS // 10,
        "reference_ratios": {False: [-0.1, -0.11, -0.09]},
    }  # fmt: skip
    return Yardstick(**{**values, **changes})
