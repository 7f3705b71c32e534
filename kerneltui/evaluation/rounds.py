"""What was timed on a shape: bursts of samples, round by round, and the ratios of neighbours in time.

See `timing` for what a sample, a burst and a round are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kerneltui.evaluation.gpu_use import BurstUse
from kerneltui.targets.sample import Sample

__all__ = ["Burst", "ShapeRounds"]


@dataclass(frozen=True, slots=True)
class Burst:
    """The kept samples of one burst, per call, in nanoseconds; and what the GPUs did, if there are."""

    value_ns: float
    samples_ns: tuple[float, ...]
    ranks_ns: tuple[float, ...]
    gap_ns: float
    conflict: str
    gpu: BurstUse | None = None

    @classmethod
    def of(cls, samples: list[Sample], gpu: BurstUse | None = None) -> Burst:
        """Reduces the kept samples.

        Raises:
            ValueError: A time is not positive.
        """
        values = [sample.duration_ns for sample in samples]
        if not all(value > 0 and math.isfinite(value) for value in values):
            raise ValueError(f"times of {values} ns")
        count = len(samples[0].ranks)
        ranks = tuple(
            median((s.ranks[r].end_ns - s.ranks[r].start_ns) / s.calls for s in samples)
            for r in range(count)
        )
        return cls(
            value_ns=median(values),
            samples_ns=tuple(values),
            ranks_ns=ranks,
            gap_ns=median(s.wall_ns - s.elapsed_ns - s.enqueue_ns for s in samples),
            conflict=next((s.clock_conflict for s in samples if s.clock_conflict), ""),
            gpu=gpu,
        )

    def log_ratios(self, other: Burst) -> list[float]:
        """log(this / other), sample by sample: those at the same place were neighbours in time."""
        pairs = zip(self.samples_ns, other.samples_ns, strict=True)
        return [math.log(own / its) for own, its in pairs]


@dataclass
class ShapeRounds:
    """The rounds of one shape: a burst of each lane per round, or None where it sat out.

    `kept` is the number of samples in a burst; 0 stands for the protocol's. `graph`: whether the calls of a
    sample are one CUDA graph, of all lanes.
    """

    shape: str
    calls: int
    candidate: list[Burst] = field(default_factory=list[Burst])
    incumbent: list[Burst] = field(default_factory=list[Burst])
    reference: list[Burst | None] = field(default_factory=list[Burst | None])
    checked: int = 0
    kept: int = 0
    graph: bool = False

    @property
    def log_ratios(self) -> list[float]:
        """log(candidate / incumbent), pair by pair."""
        pairs = zip(self.candidate, self.incumbent, strict=True)
        return [ratio for c, i in pairs for ratio in c.log_ratios(i)]

    @property
    def reference_ratios(self) -> list[float]:
        """log(incumbent / reference), pair by pair of the rounds in which the reference took part."""
        pairs = zip(self.incumbent, self.reference, strict=True)
        return [ratio for i, r in pairs if r is not None for ratio in i.log_ratios(r)]

    @property
    def candidate_ns(self) -> float:
        """Median over rounds."""
        return median(burst.value_ns for burst in self.candidate)

    @property
    def incumbent_ns(self) -> float:
        """Median over rounds."""
        return median(burst.value_ns for burst in self.incumbent)

    @property
    def gpu_rounds(self) -> list[tuple[BurstUse, BurstUse]]:
        """What the GPUs did under candidate and incumbent, round by round; empty without GPUs."""
        pairs = zip(self.candidate, self.incumbent, strict=True)
        return [(c.gpu, i.gpu) for c, i in pairs if c.gpu is not None and i.gpu is not None]

    @property
    def conflict(self) -> str:
        """A contradiction between clocks in many of the candidate's bursts, or nothing.

        Some may be the machine's doing, a stolen moment between two readings: about as many as the incumbent
        has beside it.
        """
        found = [burst.conflict for burst in self.candidate if burst.conflict]
        chance = sum(bool(burst.conflict) for burst in self.incumbent)
        return found[0] if len(found) - chance > max(1, len(self.candidate) // 4) else ""

    def hidden_ns(self) -> float:
        """Time that the engine's clock saw and the candidate's samples did not, beyond the incumbent's.

        Both groups answer through the same code, so what a request costs beside the calls cancels.
        """
        own = median(burst.gap_ns for burst in self.candidate)
        return own - median(burst.gap_ns for burst in self.incumbent)

    def to_record(self) -> dict[str, Any]:
        """Per-round medians per lane and rank, in whole nanoseconds."""

        def rows(bursts: list[Any]) -> list[Any]:
            return [
                None if b is None else [round(b.value_ns), *(round(r) for r in b.ranks_ns)]
                for b in bursts
            ]

        gpus = {
            name: [b.gpu.to_record() if b and b.gpu else None for b in bursts]
            for name, bursts in (("candidate", self.candidate), ("incumbent", self.incumbent))
            if self.gpu_rounds
        }
        return {
            "shape": self.shape,
            "calls": self.calls,
            "checked": self.checked,
            "candidate": rows(self.candidate),
            "incumbent": rows(self.incumbent),
            "reference": rows(self.reference),
            **({"graph": True} if self.graph else {}),
            **({"gpu": gpus} if gpus else {}),
        }

    def to_raw(self) -> dict[str, Any]:
        """Every kept sample, in whole nanoseconds."""

        def rows(bursts: list[Any]) -> list[Any]:
            return [None if b is None else [round(s) for s in b.samples_ns] for b in bursts]

        return {
            "shape": self.shape,
            "candidate": rows(self.candidate),
            "incumbent": rows(self.incumbent),
            "reference": rows(self.reference),
        }
