"""Candidates: one commit with one version of the kernel, and all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kerneltui.model.directive import Directive
from kerneltui.model.measurement import FailureKind, Measurement, Stage
from kerneltui.model.record import LATER

__all__ = ["AgentName", "Candidate", "CandidateState", "DecisionKind", "Failure", "Origin", "Phase"]


class CandidateState(StrEnum):
    """The states of a candidate, always shown as these words."""

    BASE = "BASE"
    PROP = "PROP"
    BUILD = "BUILD"
    CHECK = "CHECK"
    BENCH = "BENCH"
    PEND = "PEND"
    OK = "OK"
    BEST = "BEST"
    REJ = "REJ"
    FAIL = "FAIL"
    STALE = "STALE"
    QUAR = "QUAR"
    INT = "INT"


class AgentName(StrEnum):
    """Who proposed a candidate."""

    FAST = "fast"
    SLOW = "slow"
    HUMAN = "human"


class Origin(StrEnum):
    """How a candidate came about."""

    SEED = "seed"
    TRANSFORM = "transform"
    TUNABLES = "tunables"
    DIFF = "diff"
    REWRITE = "rewrite"
    CROSSOVER = "crossover"
    HUNKS = "hunks"
    EDIT = "edit"


class Phase(StrEnum):
    """How far the evaluation of a candidate is."""

    PROPOSED = "proposed"
    BUILDING = "building"
    CHECKING = "checking"
    MEASURING = "measuring"
    MEASURED = "measured"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class DecisionKind(StrEnum):
    """What was decided on a candidate, if anything."""

    NONE = "none"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an evaluation ended: stage, kind, one readable line, `name@sha256` of the log or empty."""

    stage: Stage
    kind: FailureKind
    reason: str
    log: str = ""


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate as far as the events have told of it.

    `island` is where the slow path works on it (0: it is common to all), `guest_of` are the islands that
    took it over, `arm` is who made it for the slow path: a model, or `offline`. `findings` is what the lint
    says of its text, a line each: `kernel.cu:12: warn: D06: ...`.
    """

    id: str
    sha: str
    parents: tuple[str, ...]
    agent: AgentName
    origin: Origin
    reason: str
    directive: Directive | None
    proposed_at: int
    generation: int = 0
    seed_file: str = ""
    configuration: Mapping[str, str] = field(default_factory=_nothing)
    calls: tuple[int, ...] = field(default=(), metadata=LATER)
    findings: tuple[str, ...] = field(default=(), metadata=LATER)
    island: int = field(default=0, metadata=LATER)
    arm: str = field(default="", metadata=LATER)
    inspirations: tuple[str, ...] = field(default=(), metadata=LATER)
    guest_of: tuple[int, ...] = field(default=(), metadata=LATER)
    phase: Phase = Phase.PROPOSED
    attempt: int = 0
    build_ns: int = 0
    verify_note: str = ""
    failure: Failure | None = None
    measurement: Measurement | None = None
    decision: DecisionKind = DecisionKind.NONE
    decided_by: str = ""
    note: str = ""

    @property
    def harness_fault(self) -> bool:
        """Whether its last evaluation failed by no fault of its own, so that there is no verdict on it."""
        failure = self.failure if self.phase is Phase.FAILED else None
        return failure is not None and failure.kind is FailureKind.HARNESS_FAULT

    def state(self, incumbent: str, base: str) -> CandidateState:
        """Returns the word on screen, given who is on `main` now."""
        if self.id == base:
            return CandidateState.BASE
        if self.id == incumbent:
            return CandidateState.BEST
        if self.decision is DecisionKind.ACCEPTED:
            return CandidateState.OK
        if self.decision is DecisionKind.REJECTED:
            return CandidateState.REJ
        if self.phase is not Phase.MEASURED:
            return _PHASE_STATES[self.phase]
        if self.measurement and self.measurement.quarantine:
            return CandidateState.QUAR
        if self.measurement and self.measurement.against != incumbent:
            return CandidateState.STALE
        return CandidateState.PEND


_PHASE_STATES = {
    Phase.PROPOSED: CandidateState.PROP,
    Phase.BUILDING: CandidateState.BUILD,
    Phase.CHECKING: CandidateState.CHECK,
    Phase.MEASURING: CandidateState.BENCH,
    Phase.FAILED: CandidateState.FAIL,
    Phase.INTERRUPTED: CandidateState.INT,
}
