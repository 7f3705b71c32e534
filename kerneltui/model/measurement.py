"""What an evaluation found: the timing of a candidate against incumbent and reference, per shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kerneltui.model.record import LATER
from kerneltui.model.statistics import Interval, Verdict

__all__ = [
    "BaselineTime",
    "BoundKind",
    "Environment",
    "FailureKind",
    "GpuUse",
    "Measurement",
    "MeasurementStage",
    "ShapeCalibration",
    "ShapeMeasurement",
    "Stage",
]


class Stage(StrEnum):
    """The stages of an evaluation, in order."""

    PATCH = "patch"
    LINT = "lint"
    COMPILE = "compile"
    VERIFY = "verify"
    SCREEN = "screen"
    BENCHMARK = "benchmark"
    CONFIRM = "confirm"


class FailureKind(StrEnum):
    """Why an evaluation ended without a measurement."""

    REFUSED = "refused"
    DUPLICATE = "duplicate"
    COMPILE_ERROR = "compile_error"
    MISMATCH = "mismatch"
    TAMPERING = "tampering"
    CRASH = "crash"
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL_ERROR = "kernel_error"
    OVER_LIMIT = "over_limit"
    TOO_SLOW = "too_slow"
    HARNESS_FAULT = "harness_fault"


class MeasurementStage(StrEnum):
    """How far the measurement of a candidate went."""

    BENCHMARK = "benchmark"
    CONFIRMED = "confirmed"


class BoundKind(StrEnum):
    """Which ceiling limits a shape."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class BaselineTime:
    """One baseline on one shape: median time in nanoseconds and the half-width of its interval."""

    name: str
    time_ns: int
    half_width_ns: int


@dataclass(frozen=True, slots=True)
class ShapeCalibration:
    """What was measured once per session for a shape.

    `bound_ns` is the least time by the measured ceilings, `floor_ns` the time below which no honest
    kernel can be (peak arithmetic), `reference` the best verified baseline. `reachable_ns` is the bound
    with the tail of the last wave of tiles, 0 if that is not known.
    """

    shape: str
    bound_ns: int
    bound_kind: BoundKind
    floor_ns: int
    reference: str
    baselines: tuple[BaselineTime, ...]
    noise: float
    reachable_ns: int = field(default=0, metadata=LATER)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the GPUs did while a candidate was timed on a shape; medians over its rounds.

    Attributes:
        sm_clock_mhz: Clock of the slowest GPU's SMs.
        memory_clock_mhz: Clock of the memory.
        power_w: Power of all ranks' GPUs together; None where samples are too short for it.
        energy_j: Energy of one call on all GPUs.
        counted: True if the energy is the GPUs' own count; else it is power times time, or None.
        flop_per_clock: Operations per clock and SM; None for a workload without operations.
        rounds: Rounds that were looked at.
        power_rounds: Rounds in which a power limit held the clock down.
        heat_rounds: Rounds in which heat did.
        incumbent_power_rounds: The same of the incumbent's bursts in those rounds.
        incumbent_heat_rounds: The same for heat.
    """

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    energy_j: float | None
    counted: bool
    flop_per_clock: float | None
    rounds: int
    power_rounds: int
    heat_rounds: int
    incumbent_power_rounds: int
    incumbent_heat_rounds: int


@dataclass(frozen=True, slots=True)
class ShapeMeasurement:
    """The paired rounds of one shape, reduced.

    Times are medians over rounds of the slowest rank, in nanoseconds; `interval` is the log-ratio to
    the incumbent, `reference_interval` the log-ratio to the reference (negative is faster). `gpu` is
    None on a target without GPUs. `graph`: the calls of a sample were one CUDA graph; one by one they take
    longer.
    """

    shape: str
    rounds: int
    candidate_ns: int
    incumbent_ns: int
    reference_ns: int
    reference: str
    interval: Interval
    reference_interval: Interval
    verdict: Verdict
    bound_share: float
    gpu: GpuUse | None = field(default=None, metadata=LATER)
    graph: bool = field(default=False, metadata=LATER)

    @property
    def ratio(self) -> float:
        """Reference time ÷ candidate time."""
        return self.reference_ns / self.candidate_ns


@dataclass(frozen=True, slots=True)
class Measurement:
    """A candidate's table over shapes, and what follows from it as a whole.

    `remarks` are what somebody who relies on the verdict should know, in one line each.
    """

    stage: MeasurementStage
    against: str
    delta: float
    shapes: tuple[ShapeMeasurement, ...]
    geomean: Interval
    verdict: Verdict
    ratio: float
    bound_share: float
    groups: int
    quarantine: str = ""
    remarks: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def graph_shapes(self) -> tuple[str, ...]:
        """The shapes whose calls were timed as CUDA graphs."""
        return tuple(part.shape for part in self.shapes if part.graph)

    @property
    def slower_shapes(self) -> tuple[str, ...]:
        """The shapes on which the candidate is SLOWER than the incumbent."""
        return tuple(part.shape for part in self.shapes if part.verdict is Verdict.SLOWER)

    @property
    def acceptable_by_rule(self) -> bool:
        """Whether a rule may accept: geomean FASTER, no shape SLOWER, confirmed, not quarantined."""
        return (
            self.verdict is Verdict.FASTER
            and not self.slower_shapes
            and self.stage is MeasurementStage.CONFIRMED
            and not self.quarantine
        )


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine that measured, as text fields (CPU, cores, compiler, torch, sandbox, load)."""

    items: Mapping[str, str]
