"""A stand-in for the evaluation with times computed from the configuration, for tests of the engine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerneltui.evaluation.outcome import (
    Built,
    CalibrationResult,
    EvaluationError,
    Interrupted,
    Outcome,
    Step,
    Update,
    Verified,
)
from kerneltui.model.candidate import Failure
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import (
    BaselineTime,
    BoundKind,
    Measurement,
    MeasurementStage,
    ShapeCalibration,
    ShapeMeasurement,
    Stage,
)
from kerneltui.model.reading import GpuReading
from kerneltui.model.statistics import Interval, judge_interval
from kerneltui.targets.notices import Notice

SHAPES = (
    "512x512x512",
    "1024x1024x1024",
    "2048x2048x512",
    "4096x1024x256",
    "1000x777x333",
)
REFERENCE_NS = 10_000_000
DELTA = 0.01


def cost(kernel: Kernel) -> float:
    """Time of a kernel relative to the reference: every tunable has its best value last."""
    total = 1.0
    for tunable in kernel.tunables:
        place = tunable.values.index(tunable.value)
        total *= 1.0 - 0.04 * place
    return total


@dataclass(slots=True)
class FakeEvaluator:
    """Answers at once; `fail` names configurations that fail, `block` makes evaluations wait."""

    fail: Callable[[Kernel], Failure | None] = lambda kernel: None
    block: threading.Event | None = None
    calls: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    closed: bool = False
    gpus: tuple[GpuReading, ...] = ()
    notices: tuple[Notice, ...] = ()
    interrupted: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        self.closed = True

    def listen(self, hear: Callable[[Notice], None]) -> None:
        for notice in self.notices:
            hear(notice)

    def calibrate(self, incumbent: Kernel, say: Callable[[str], None]) -> CalibrationResult:
        say("calibrating")
        shapes = tuple(
            ShapeCalibration(
                shape=name,
                bound_ns=4_000_000,
                bound_kind=BoundKind.ARITHMETIC,
                floor_ns=2_000_000,
                reference="torch_gloo",
                baselines=(BaselineTime("torch_gloo", REFERENCE_NS, 50_000),),
                noise=0.003,
            )
            for name in SHAPES
        )
        return CalibrationResult(DELTA, 0.004, shapes, ("zeros", "stale"))

    def evaluate(
        self,
        kernel: Kernel,
        incumbent: Kernel,
        *,
        against: str,
        report: Callable[[Update], None],
        rebench: bool = False,
    ) -> Outcome:
        self.calls.append(kernel.token_hash())
        if not rebench:
            report(Built(1_000_000, False, ""))
        if self.block is not None:
            while not self.block.wait(0.01):
                if self.interrupted.is_set():
                    self.interrupted.clear()
                    raise Interrupted("on request")
        failure = self.fail(kernel)
        if failure is not None:
            return Outcome(None, failure, {"stage": str(failure.stage)}, log="the whole story")
        report(Verified("3 seeds on 5 shapes"))
        report(Step(Stage.BENCHMARK, "round 11 of 11", 11, 11))
        return Outcome(measurement(kernel, incumbent, against), None, {"rounds": 11}, raw=b"raw")

    def build_ahead(self, kernels: Iterable[Kernel]) -> None:
        self.ahead += [kernel.token_hash() for kernel in kernels]

    def interrupt(self) -> None:
        """Ends a blocked evaluation."""
        self.interrupted.set()

    def profile(self, kernel: Kernel) -> Mapping[str, Any]:
        if self.block is not None:
            self.block.wait(20)
        if not self.gpus:
            raise EvaluationError("no ncu: install Nsight Compute")
        return {"shape": "512x512x512", "alone": True, "kernels": []}

    def readings(self, oldest_s: float) -> tuple[GpuReading, ...]:
        return self.gpus

    def environment(self) -> Mapping[str, str]:
        return {"cpu": "a fake"}


def measurement(kernel: Kernel, incumbent: Kernel, against: str) -> Measurement:
    """The measurement that a noiseless machine would make."""
    mine, other = cost(kernel), cost(incumbent)
    log_ratio = math.log(mine / other)
    interval = Interval(log_ratio, log_ratio - 0.002, log_ratio + 0.002)
    reference = Interval(math.log(mine), math.log(mine) - 0.002, math.log(mine) + 0.002)
    shapes = tuple(
        ShapeMeasurement(
            shape=name,
            rounds=11,
            candidate_ns=round(mine * REFERENCE_NS),
            incumbent_ns=round(other * REFERENCE_NS),
            reference_ns=REFERENCE_NS,
            reference="torch_gloo",
            interval=interval,
            reference_interval=reference,
            verdict=judge_interval(interval, DELTA),
            bound_share=4_000_000 / (mine * REFERENCE_NS),
        )
        for name in SHAPES
    )
    return Measurement(
        stage=MeasurementStage.CONFIRMED,
        against=against,
        delta=DELTA,
        shapes=shapes,
        geomean=interval,
        verdict=judge_interval(interval, DELTA),
        ratio=1 / mine,
        bound_share=0.4 / mine,
        groups=3,
    )
