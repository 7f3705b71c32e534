"""Events: self-contained facts, the only input of State.

An event is stored as canonical JSON with its kind and schema version. Ids and times come from the
event, never from the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from kerneltui.model.agent_event import (
    HandedOver,
    Migrated,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.candidate import AgentName, Failure, Origin
from kerneltui.model.directive import Directive
from kerneltui.model.errors import NewerSchema, RecordError
from kerneltui.model.measurement import Measurement, ShapeCalibration
from kerneltui.model.record import LATER, canonical_json, from_plain, parse_json, to_plain
from kerneltui.model.steer_event import (
    ConstraintKind,
    ConstraintSet,
    ModelChosen,
    NotesWritten,
    SteerDelivered,
    Steered,
)

__all__ = [
    "EVENT_KINDS",
    "SCHEMA",
    "AcceptRule",
    "AgentMessage",
    "BudgetSet",
    "Calibrated",
    "CandidateBuilt",
    "CandidateFailed",
    "CandidateMeasured",
    "CandidateProposed",
    "CandidateVerified",
    "ConstraintKind",
    "ConstraintSet",
    "Decided",
    "Decision",
    "EvaluationInterrupted",
    "EvaluationStarted",
    "Event",
    "ModelChosen",
    "NotesWritten",
    "PauseSet",
    "RuleSet",
    "SearchEnded",
    "SessionOpened",
    "SessionResumed",
    "ShapeInfo",
    "SteerDelivered",
    "Steered",
    "decode_event",
    "encode_event",
    "event_kind",
]

SCHEMA = 1


class Decision(StrEnum):
    """Decision actions; an undo is another event, history is never rewritten."""

    ACCEPT = "accept"
    REJECT = "reject"
    UNDO = "undo"
    REDO = "redo"


class AcceptRule(StrEnum):
    """Who accepts: the human alone, or the rule as well."""

    NONE = "none"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ShapeInfo:
    """A tune shape of the session: its name, its dimensions with RANKS, operations of one rank."""

    name: str
    dimensions: Mapping[str, int]
    flops: float


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """A session begins: problem, target, agents, seed of the search, and the kernel on `main`."""

    at: int
    session: str
    workload: str
    title: str
    target: str
    ranks: int
    seed: int
    agents: str
    rule: AcceptRule
    base: str
    base_sha: str
    seed_file: str
    shapes: tuple[ShapeInfo, ...]
    workload_hash: str
    environment: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResumed:
    """An engine opened the session again, on a machine described by `environment`."""

    at: int
    environment: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Noise, bounds and baselines as measured by this engine."""

    at: int
    delta: float
    aa_half_width: float
    shapes: tuple[ShapeCalibration, ...]
    mutants: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProposed:
    """A commit with a candidate exists."""

    at: int
    id: str
    sha: str
    parents: tuple[str, ...]
    agent: AgentName
    origin: Origin
    reason: str
    directive: Directive | None
    generation: int
    seed_file: str
    configuration: Mapping[str, str]
    steers: tuple[int, ...] = ()
    calls: tuple[int, ...] = field(default=(), metadata=LATER)
    findings: tuple[str, ...] = field(default=(), metadata=LATER)
    island: int = field(default=0, metadata=LATER)
    arm: str = field(default="", metadata=LATER)
    inspirations: tuple[str, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStarted:
    """The evaluation of a candidate begins; written before anything runs."""

    at: int
    id: str
    attempt: int
    against: str
    rebench: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBuilt:
    """A candidate compiled."""

    at: int
    id: str
    build_ns: int
    cached: bool
    diagnostics: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerified:
    """A candidate passed every check of the judge."""

    at: int
    id: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateMeasured:
    """A candidate has a table of measurements."""

    at: int
    id: str
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFailed:
    """An evaluation ended without a measurement."""

    at: int
    id: str
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationInterrupted:
    """The engine went away in the middle of an evaluation."""

    at: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision by the human or by a rule.

    `sha` is the candidate commit that was decided on, `main` the tip of main afterwards. For undo and
    redo, `candidate` is the one whose decision was taken back or made again, and `of` that decision.
    """

    at: int
    action: Decision
    candidate: str
    sha: str
    by: str
    main: str
    note: str = ""
    of: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rule for accepting changed."""

    at: int
    rule: AcceptRule


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSet:
    """The search was paused or goes on."""

    at: int
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSet:
    """Candidates, time (nanoseconds) and money that the search may use; None is no limit."""

    at: int
    candidates: int | None
    time_ns: int | None
    micro_usd: int | None = field(default=None, metadata=LATER)

    @property
    def text(self) -> str:
        """In words: `40 candidates, 10 min, no limit in money`."""
        parts = [
            "any number of candidates"
            if self.candidates is None
            else f"{self.candidates} candidates",
            "any time" if self.time_ns is None else f"{self.time_ns / 60e9:.3g} min",
            "no limit in money" if self.micro_usd is None else f"${self.micro_usd / 1e6:.2f}",
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """What an agent said in the end (streamed chunks are progress, not events)."""

    at: int
    agent: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """The search is over, and why."""

    at: int
    reason: str


Event = (
    SessionOpened
    | SessionResumed
    | Calibrated
    | CandidateProposed
    | EvaluationStarted
    | CandidateBuilt
    | CandidateVerified
    | CandidateMeasured
    | CandidateFailed
    | EvaluationInterrupted
    | Decided
    | Steered
    | SteerDelivered
    | ConstraintSet
    | RuleSet
    | PauseSet
    | BudgetSet
    | AgentMessage
    | ModelCallStarted
    | ModelCallGrew
    | ModelCallEnded
    | ProposalFailed
    | HandedOver
    | Migrated
    | NotesWritten
    | ModelChosen
    | SearchEnded
)

EVENT_KINDS: dict[str, type[Any]] = {
    "session_opened": SessionOpened,
    "session_resumed": SessionResumed,
    "calibrated": Calibrated,
    "candidate_proposed": CandidateProposed,
    "evaluation_started": EvaluationStarted,
    "candidate_built": CandidateBuilt,
    "candidate_verified": CandidateVerified,
    "candidate_measured": CandidateMeasured,
    "candidate_failed": CandidateFailed,
    "evaluation_interrupted": EvaluationInterrupted,
    "decided": Decided,
    "steered": Steered,
    "steer_delivered": SteerDelivered,
    "constraint_set": ConstraintSet,
    "rule_set": RuleSet,
    "pause_set": PauseSet,
    "budget_set": BudgetSet,
    "agent_message": AgentMessage,
    "model_call_started": ModelCallStarted,
    "model_call_grew": ModelCallGrew,
    "model_call_ended": ModelCallEnded,
    "proposal_failed": ProposalFailed,
    "handed_over": HandedOver,
    "migrated": Migrated,
    "notes_written": NotesWritten,
    "model_chosen": ModelChosen,
    "search_ended": SearchEnded,
}
_KIND_OF = {kind: name for name, kind in EVENT_KINDS.items()}


def event_kind(event: Event) -> str:
    """Returns the stable name of an event's kind."""
    return _KIND_OF[type(event)]


def encode_event(event: Event) -> bytes:
    """Encodes an event as the canonical JSON that the journal keeps."""
    return canonical_json({"event": event_kind(event), "schema": SCHEMA, **to_plain(event)})


def decode_event(data: bytes) -> Event:
    """Decodes an event.

    Raises:
        NewerSchema: It comes from a newer kerneltui.
        RecordError: It is malformed.
    """
    plain: Any = parse_json(data)
    if not isinstance(plain, dict):
        raise RecordError("an event is a JSON object")
    fields = dict(cast("dict[str, Any]", plain))
    schema: Any = fields.pop("schema", None)
    kind: Any = fields.pop("event", None)
    if not isinstance(schema, int) or schema < 1 or not isinstance(kind, str):
        raise RecordError("an event needs 'event' and 'schema'")
    if schema > SCHEMA or kind not in EVENT_KINDS:
        raise NewerSchema(f"event '{kind}' of schema {schema} needs a newer kerneltui")
    return from_plain(EVENT_KINDS[kind], fields)
