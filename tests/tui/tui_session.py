"""A made-up but life-like session for tests and for looking at the terminal by hand.

The kernels are short excerpts, the numbers come from a seeded generator; nothing here is a result.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from tui_kernels import HOST, Kernel, sha_of

from kerneltui.model.candidate import AgentName, Failure, Origin
from kerneltui.model.event import (
    AcceptRule,
    BudgetSet,
    Calibrated,
    CandidateBuilt,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    CandidateVerified,
    Decided,
    Decision,
    EvaluationStarted,
    Event,
    SessionOpened,
    ShapeInfo,
)
from kerneltui.model.measurement import (
    BaselineTime,
    BoundKind,
    FailureKind,
    Measurement,
    MeasurementStage,
    ShapeCalibration,
    ShapeMeasurement,
    Stage,
)
from kerneltui.model.reading import GpuReading
from kerneltui.model.statistics import Interval, Verdict, judge_interval

START = 1_764_500_000_000_000_000
SECOND = 1_000_000_000
DELTA = 0.01
SHAPES = {
    "512x512x512": (512, 512, 512, 2.10e6),
    "1024x1024x1024": (1024, 1024, 1024, 13.4e6),
    "2048x2048x512": (2048, 2048, 512, 34.1e6),
    "4096x1024x256": (4096, 1024, 256, 29.5e6),
    "1000x777x333": (1000, 777, 333, 5.86e6),
}
BOUND = {
    "512x512x512": 1.83,
    "1024x1024x1024": 1.71,
    "2048x2048x512": 1.92,
    "4096x1024x256": 2.24,
    "1000x777x333": 1.66,
}


@dataclass
class Session:
    """Builds the events of a session step by step."""

    events: list[Event] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    shas: dict[str, str] = field(default_factory=dict)
    at: int = START
    incumbent: str = "c0001"
    speed: dict[str, float] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: dict[str, dict[str, Any]] = field(default_factory=dict)
    readings: tuple[GpuReading, ...] = ()
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def add(self, event: Event) -> None:
        self.events.append(event)

    def wait(self, seconds: float) -> int:
        self.at += int(seconds * SECOND)
        return self.at

    def open(self) -> None:
        self.sources["c0001"] = HOST
        self.shas["c0001"] = sha_of("c0001" + HOST)
        self.speed["c0001"] = 1.0
        self.add(
            SessionOpened(
                at=self.at,
                session="7f3a",
                workload="gemm_allgather",
                title="GEMM + AllGather",
                target="cpu",
                ranks=2,
                seed=1,
                agents="offline",
                rule=AcceptRule.NONE,
                base="c0001",
                base_sha=self.shas["c0001"],
                seed_file="host.cpp",
                shapes=tuple(
                    ShapeInfo(name, {"M": m, "N": n, "K": k, "RANKS": 2}, float(m * n * k))
                    for name, (m, n, k, _) in SHAPES.items()
                ),
                workload_hash="5d20b77",
                environment={
                    "cpu": "Xeon 8481C, 2 cores, 2.7 GHz",
                    "compiler": "g++ 12.2",
                    "torch": "torch 2.13.0",
                    "sandbox": "namespaces, no network",
                },
            )
        )
        self.add(BudgetSet(at=self.wait(0.1), candidates=40, time_ns=600 * SECOND))
        self.add(
            Calibrated(
                at=self.wait(9),
                delta=DELTA,
                aa_half_width=0.0031,
                shapes=tuple(
                    ShapeCalibration(
                        name,
                        int(time / BOUND[name]),
                        BoundKind.ARITHMETIC,
                        int(time / BOUND[name] / 1.4),
                        "torch_gloo",
                        (
                            BaselineTime("torch_gloo", int(time), int(time * 0.006)),
                            BaselineTime("host", int(time * 1.041), int(time * 0.008)),
                        ),
                        0.0031,
                    )
                    for name, (_, _, _, time) in SHAPES.items()
                ),
                mutants=("zeros", "ones", "copy of an input", "one rank stale"),
            )
        )

    def propose(
        self,
        id_: str,
        parent: str,
        kernel: Kernel,
        reason: str,
        *,
        agent: AgentName = AgentName.SLOW,
        origin: Origin = Origin.TUNABLES,
        generation: int = 1,
        inspiration: str = "",
    ) -> None:
        text = kernel.text()
        self.sources[id_] = text
        self.parents[id_] = parent
        self.kernels[id_] = kernel
        self.shas[id_] = sha_of(id_ + text)
        self.add(
            CandidateProposed(
                at=self.wait(1.7),
                id=id_,
                sha=self.shas[id_],
                parents=(parent, inspiration) if inspiration else (parent,),
                agent=agent,
                origin=origin,
                reason=reason,
                directive=kernel.directive(),
                generation=generation,
                seed_file="window.cpp",
                configuration=kernel.configuration(),
            )
        )

    def start(self, id_: str, *, attempt: int = 1, rebench: bool = False) -> None:
        self.add(
            EvaluationStarted(
                at=self.wait(0.2),
                id=id_,
                attempt=attempt,
                against=self.incumbent,
                rebench=rebench,
            )
        )

    def build(self, id_: str) -> None:
        self.add(CandidateBuilt(at=self.wait(4.1), id=id_, build_ns=int(4.1e9), cached=False))

    def verify(self, id_: str) -> None:
        note = "max rel 4.1e-7 over 12 shapes, 2 and 3 ranks, 6 seeds"
        self.add(CandidateVerified(at=self.wait(2.8), id=id_, note=note))

    def fail(self, id_: str, stage: Stage, kind: FailureKind, reason: str, log: str = "") -> None:
        failure = Failure(stage, kind, reason, log)
        self.add(CandidateFailed(at=self.wait(1.0), id=id_, failure=failure))

    def measure(self, id_: str, speed: float, *, quarantine: str = "", wide: float = 1.0) -> None:
        self.speed[id_] = speed
        against = self.speed[self.incumbent]
        parts: list[ShapeMeasurement] = []
        for name, (_, _, _, time) in SHAPES.items():
            wobble = self.random.gauss(0, 0.012)
            ratio = speed * math.exp(wobble) * (BOUND[name] / 1.86) ** 0.35
            base = against * (BOUND[name] / 1.86) ** 0.35
            estimate = math.log(base / ratio)
            half = (0.004 + self.random.random() * 0.004) * wide
            interval = Interval(estimate, estimate - half, estimate + half * 0.9)
            reference = Interval(-math.log(ratio), -math.log(ratio) - half, -math.log(ratio) + half)
            parts.append(
                ShapeMeasurement(
                    name,
                    22 if wide > 1 else 11,
                    int(time / ratio),
                    int(time / base),
                    int(time),
                    "torch_gloo",
                    interval,
                    reference,
                    judge_interval(interval, DELTA),
                    ratio / BOUND[name],
                )
            )
        estimate = sum(part.interval.estimate for part in parts) / len(parts)
        geomean = Interval(estimate, estimate - 0.003 * wide, estimate + 0.0028 * wide)
        verdict = judge_interval(geomean, DELTA)
        ratio = math.exp(sum(math.log(part.ratio) for part in parts) / len(parts))
        self.add(
            CandidateMeasured(
                at=self.wait(9.6),
                id=id_,
                measurement=Measurement(
                    MeasurementStage.CONFIRMED
                    if verdict is Verdict.FASTER
                    else MeasurementStage.BENCHMARK,
                    self.incumbent,
                    DELTA,
                    tuple(parts),
                    geomean,
                    verdict,
                    ratio,
                    math.exp(sum(math.log(part.bound_share) for part in parts) / len(parts)),
                    3 if verdict is Verdict.FASTER else 1,
                    quarantine,
                ),
            )
        )

    def decide(self, action: Decision, id_: str, note: str = "", by: str = "human") -> None:
        if action is Decision.ACCEPT:
            self.incumbent = id_
        self.add(
            Decided(
                at=self.wait(6),
                action=action,
                candidate=id_,
                sha=self.shas[id_],
                by=by,
                main=sha_of("main" + id_),
                note=note,
            )
        )

    def whole(
        self, id_: str, parent: str, kernel: Kernel, reason: str, speed: float, **more
    ) -> None:
        wide = more.pop("wide", 1.0)
        quarantine = more.pop("quarantine", "")
        self.propose(id_, parent, kernel, reason, **more)
        self.start(id_)
        self.build(id_)
        self.verify(id_)
        self.measure(id_, speed, wide=wide, quarantine=quarantine)
