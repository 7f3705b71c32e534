"""Histories of the slow path for tests: events as an engine writes them, folded at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kerneltui.model.agent_event import (
    Migrated,
    ModelCallEnded,
    ModelCallStarted,
    Move,
    ProposalFailed,
)
from kerneltui.model.candidate import AgentName, Failure, Origin, Phase
from kerneltui.model.directive import Directive
from kerneltui.model.event import (
    AcceptRule,
    BudgetSet,
    Calibrated,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    Decided,
    Decision,
    Event,
    SessionOpened,
)
from kerneltui.model.measurement import FailureKind, Measurement, MeasurementStage, Stage
from kerneltui.model.state import State
from kerneltui.model.statistics import Interval, Verdict
from kerneltui.search.bandit import Pull


def gain_of(pulls: Sequence[Pull]) -> list[float | None]:
    return [pull.gain for pull in pulls]


def measured(ratio: float, against: str) -> Measurement:
    return Measurement(
        stage=MeasurementStage.CONFIRMED,
        against=against,
        delta=0.01,
        shapes=(),
        geomean=Interval(-math.log(ratio), -math.log(ratio) - 0.01, -math.log(ratio) + 0.01),
        verdict=Verdict.FASTER if ratio > 1 else Verdict.SLOWER,
        ratio=ratio,
        bound_share=0.5,
        groups=1,
    )


@dataclass
class Story:
    """A session with the seed c0000, measured at the reference."""

    delta: float = 0.01
    events: list[Event] = field(default_factory=list)
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self.add(
            SessionOpened(
                at=self.now, session="s", workload="w", title="", target="cpu", ranks=2, seed=1,
                agents="claude", rule=AcceptRule.NONE, base="c0000", base_sha="0", seed_file="host.cpp",
                shapes=(), workload_hash="",
            )
        )  # fmt: skip
        self.add(
            Calibrated(at=self.now, delta=self.delta, aa_half_width=0.0, shapes=(), mutants=())
        )
        self.add(CandidateMeasured(at=self.now, id="c0000", measurement=measured(1.0, "c0000")))

    @property
    def now(self) -> int:
        return len(self.events) + 1

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.state.apply(event)

    def budget(self, candidates: int | None, micro_usd: int | None) -> None:
        self.add(BudgetSet(at=self.now, candidates=candidates, time_ns=None, micro_usd=micro_usd))

    def call(self) -> tuple[int, ...]:
        number = len(self.state.calls) + 1
        self.add(
            ModelCallStarted(
                at=self.now, number=number, agent="slow", role="slow", model="m", purpose="p",
                reserved_micro_usd=5000,
            )
        )  # fmt: skip
        self.add(
            ModelCallEnded(at=self.now, number=number, model="m", outcome="ok", micro_usd=1000)
        )
        return (number,)

    def propose(
        self,
        *parents: str,
        island: int = 0,
        arm: str = "",
        paid: bool = False,
        human: bool = False,
        directive: Directive | None = None,
    ) -> str:
        calls = self.call() if paid else ()
        identifier = f"c{len(self.state.candidates):04d}"
        self.add(
            CandidateProposed(
                at=self.now, id=identifier, sha=identifier, parents=parents,
                agent=AgentName.HUMAN if human else AgentName.SLOW,
                origin=Origin.EDIT if human else Origin.DIFF, reason="", directive=directive, generation=1,
                seed_file="host.cpp", configuration={}, calls=calls, island=island, arm=arm,
            )
        )  # fmt: skip
        return identifier

    def fail_to_propose(self, arm: str) -> None:
        calls = self.call()
        self.add(
            ProposalFailed(
                at=self.now, agent="slow", parent="c0000", reason="cut", calls=calls, arm=arm
            )
        )

    def finish(self, which: int, ratio: float | None, quarantine: str = "") -> None:
        """Ends the evaluation of one that waits; without a ratio it fails."""
        waiting = [c.id for c in self.state.candidates.values() if c.phase is Phase.PROPOSED]
        if not waiting:
            return
        name = waiting[which % len(waiting)]
        if ratio is None:
            failure = Failure(Stage.VERIFY, FailureKind.MISMATCH, "wrong")
            self.add(CandidateFailed(at=self.now, id=name, failure=failure))
        else:
            found = replace(measured(ratio, self.state.incumbent), quarantine=quarantine)
            self.add(CandidateMeasured(at=self.now, id=name, measurement=found))

    def accept(self, which: int) -> None:
        """Accepts one that waits for a decision, if any does."""
        waiting = [candidate.id for candidate in self.state.pending()]
        if waiting:
            self.accept_named(waiting[which % len(waiting)])

    def accept_named(self, name: str) -> None:
        self.add(
            Decided(
                at=self.now, action=Decision.ACCEPT, candidate=name, sha=name, by="human", main=name
            )
        )

    def migrate(self, results: int, moves: Sequence[Move]) -> None:
        self.add(Migrated(at=self.now, results=results, moves=tuple(moves)))
