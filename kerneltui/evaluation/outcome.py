"""What an evaluation tells while it runs, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerneltui.model.candidate import Failure
from kerneltui.model.errors import UserError
from kerneltui.model.measurement import FailureKind, Measurement, ShapeCalibration, Stage
from kerneltui.targets.errors import FailureKind as RankFailureKind
from kerneltui.targets.errors import RankFailure

__all__ = [
    "Built",
    "CalibrationResult",
    "EvaluationError",
    "HarnessFault",
    "Interrupted",
    "KernelFault",
    "Outcome",
    "Step",
    "Update",
    "Verified",
    "WorkloadRefused",
    "fault_of",
]


@dataclass(frozen=True, slots=True)
class Built:
    """The candidate compiled; `build_ns` is the compiler's time, also of a cached build."""

    build_ns: int
    cached: bool
    diagnostics: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The candidate passed every check; what was checked, in one line."""

    note: str


@dataclass(frozen=True, slots=True)
class Step:
    """The evaluation goes on: stage, one line, steps done of a total."""

    stage: Stage
    text: str
    done: int = 0
    total: int = 0


Update = Built | Verified | Step


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an evaluation: a measurement or a failure.

    Attributes:
        measurement: The table over shapes, if it came to that.
        failure: Why not, if not.
        record: For the git note: per-round medians per rank, verdicts, seeds, environment.
        raw: For contenders: all samples, compressed JSON.
        log: What a log file should keep: compiler output, what ranks printed.
    """

    measurement: Measurement | None
    failure: Failure | None
    record: Mapping[str, Any] = field(default_factory=_nothing)
    raw: bytes | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What was measured before the search.

    Attributes:
        delta: Smallest log-ratio that counts as a difference.
        aa_half_width: Half-width of the incumbent against itself, in another group of processes.
        shapes: Bounds, floors, baselines and noise of each tune shape.
        mutants: Names of the wrong answers that the judge refused.
        record: Rounds, environment and load.
    """

    delta: float
    aa_half_width: float
    shapes: tuple[ShapeCalibration, ...]
    mutants: tuple[str, ...]
    record: Mapping[str, Any] = field(default_factory=_nothing)


class EvaluationError(UserError):
    """An evaluation cannot go on; the text is one line."""


class WorkloadRefused(EvaluationError):
    """The workload cannot tell right from wrong answers, so no session may open on it."""

    unfit = True


class HarnessFault(EvaluationError):
    """The harness failed, not the kernel."""


class Interrupted(EvaluationError):
    """Somebody asked for the end of the evaluation."""


class KernelFault(EvaluationError):
    """The kernel is at fault: becomes the `Failure` of its candidate.

    Attributes:
        stage: Where it was found.
        kind: What it is.
        reason: One line.
        log: More, for a log.
        in_launch: Whether one of its launches failed or never ended, and nobody knows yet which.
    """

    def __init__(
        self,
        stage: Stage,
        kind: FailureKind,
        reason: str,
        log: str = "",
        *,
        in_launch: bool = False,
    ) -> None:
        super().__init__(reason)
        self.stage = stage
        self.kind = kind
        self.reason = reason
        self.log = log
        self.in_launch = in_launch

    @property
    def failure(self) -> Failure:
        """The failure to record."""
        return Failure(self.stage, self.kind, self.reason)


Report = Callable[[Update], None]

_KINDS = {
    RankFailureKind.HANG: FailureKind.HANG,
    RankFailureKind.CRASH: FailureKind.CRASH,
    RankFailureKind.ERROR: FailureKind.KERNEL_ERROR,
    RankFailureKind.DEVICE: FailureKind.KERNEL_ERROR,
    RankFailureKind.OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
}


def fault_of(error: RankFailure, stage: Stage) -> EvaluationError:
    """Turns the failure of a candidate's group into who is to blame for it."""
    if error.kind is RankFailureKind.KILLED:
        return Interrupted(error.reason)
    kind = _KINDS.get(error.kind)
    if kind is None:
        return HarnessFault(error.reason)
    in_launch = error.kind in (RankFailureKind.DEVICE, RankFailureKind.HANG)
    return KernelFault(stage, kind, error.reason, error.detail, in_launch=in_launch)
