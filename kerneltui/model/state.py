"""State: what the screen shows, a pure fold of events.

`State.apply` takes one event and is the only way to change a state; live, replay and recovery all use
it. It depends on the event and the state alone: no clock, no ids of its own, no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kerneltui.model import attempts
from kerneltui.model.agent_event import (
    CallRecord,
    HandedOver,
    Migrated,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.candidate import (
    AgentName,
    Candidate,
    CandidateState,
    DecisionKind,
    Origin,
    Phase,
)
from kerneltui.model.decision import DecisionRecord
from kerneltui.model.errors import RecordError
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    BudgetSet,
    Calibrated,
    CandidateBuilt,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    CandidateVerified,
    ConstraintSet,
    Decided,
    Decision,
    EvaluationInterrupted,
    EvaluationStarted,
    Event,
    ModelChosen,
    NotesWritten,
    PauseSet,
    RuleSet,
    SearchEnded,
    SessionOpened,
    SessionResumed,
    ShapeInfo,
    SteerDelivered,
    Steered,
)
from kerneltui.model.measurement import ShapeCalibration
from kerneltui.model.record import LATER, canonical_json, from_plain, parse_json
from kerneltui.model.spend import Spent, record_call, spent
from kerneltui.model.steering import (
    Constraint,
    Message,
    SteerRecord,
    constrained,
    delivered,
    goal_of,
)

__all__ = ["Constraint", "DecisionRecord", "Message", "State", "SteerRecord", "fold"]

MESSAGES_KEPT = 200


def _number_order(item: tuple[str, object]) -> tuple[int, str]:
    return len(item[0]), item[0]


@dataclass(slots=True)
class State:
    """A session as folded so far.

    `position` is the number of events folded, `fruitless` counts by agent the attempts in a row that gave
    no proposal, `barren` lists those of the slow path's arms; `migrated` is the number of results when
    islands last took over each other's best. `notes` is what the human made of the lab notes, None if nobody
    touched them; `noted` are the candidates whose results a model has put into them; `models` names by role
    the models that the human chose; `handover` is what the fast path left behind.
    """

    position: int = 0
    at: int = 0
    session: str = ""
    workload: str = ""
    title: str = ""
    target: str = ""
    ranks: int = 0
    seed: int = 0
    agents: str = ""
    rule: AcceptRule = AcceptRule.NONE
    base: str = ""
    incumbent: str = ""
    main: str = ""
    opened_at: int = 0
    shapes: tuple[ShapeInfo, ...] = ()
    workload_hash: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    delta: float = 0.0
    calibrations: dict[str, ShapeCalibration] = field(default_factory=dict[str, ShapeCalibration])
    mutants: tuple[str, ...] = ()
    candidates: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    decisions: tuple[DecisionRecord, ...] = ()
    undone: tuple[DecisionRecord, ...] = ()
    steers: tuple[SteerRecord, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    messages: tuple[Message, ...] = ()
    paused: bool = False
    budget_candidates: int | None = None
    budget_ns: int | None = None
    budget_micro_usd: int | None = field(default=None, metadata=LATER)
    calls: dict[str, CallRecord] = field(default_factory=dict[str, CallRecord], metadata=LATER)
    fruitless: dict[str, int] = field(default_factory=dict[str, int], metadata=LATER)
    barren: tuple[attempts.BarrenAttempt, ...] = field(default=(), metadata=LATER)
    migrated: int = field(default=0, metadata=LATER)
    notes: str | None = field(default=None, metadata=LATER)
    noted: tuple[str, ...] = field(default=(), metadata=LATER)
    models: Mapping[str, str] = field(default_factory=dict[str, str], metadata=LATER)
    handover: HandedOver | None = field(default=None, metadata=LATER)
    ended: str = ""

    def __post_init__(self) -> None:
        # Canonical JSON sorts names as text, where c10000 comes before c9999; the order of the proposals
        # must be the same for a state that was folded and one that was read back.
        self.candidates = dict(sorted(self.candidates.items(), key=_number_order))
        self.calls = dict(sorted(self.calls.items(), key=_number_order))

    def state_of(self, candidate: str) -> CandidateState:
        """Returns the word on screen for a candidate."""
        return self.candidates[candidate].state(self.incumbent, self.base)

    def pending(self) -> Iterator[Candidate]:
        """Yields the candidates that wait for a decision, oldest first."""
        waiting = (CandidateState.PEND, CandidateState.STALE, CandidateState.QUAR)
        for candidate in self.candidates.values():
            if candidate.state(self.incumbent, self.base) in waiting:
                yield candidate

    def counts(self) -> dict[CandidateState, int]:
        """Returns how many candidates are in each state; the sum is all that was attempted."""
        counts = dict.fromkeys(CandidateState, 0)
        for candidate in self.candidates.values():
            counts[candidate.state(self.incumbent, self.base)] += 1
        return counts

    def canonical(self) -> bytes:
        """Returns the canonical JSON; two folds are equal when these bytes are."""
        return canonical_json(self)

    @classmethod
    def from_canonical(cls, data: bytes) -> State:
        """Builds a state from its canonical JSON, as kept in a snapshot or sent to a client."""
        return from_plain(cls, parse_json(data))

    def copy(self) -> State:
        """Returns an independent state; records are shared since they never change."""
        return replace(
            self,
            candidates=dict(self.candidates),
            calibrations=dict(self.calibrations),
            calls=dict(self.calls),
        )

    def apply(self, event: Event) -> None:
        """Folds one event.

        Raises:
            RecordError: The event speaks of a candidate that does not exist, so the journal is broken.
        """
        match event:
            case SessionOpened():
                self._open(event)
            case SessionResumed():
                self.environment = event.environment
                self.ended = ""
            case Calibrated():
                self.delta = event.delta
                self.calibrations = {part.shape: part for part in event.shapes}
                self.mutants = event.mutants
                self.environment = event.environment or self.environment
            case Decided():
                self._decide(event)
            case Steered() | SteerDelivered() | ConstraintSet() | NotesWritten() | ModelChosen():
                self._steer(event)
            case RuleSet():
                self.rule = event.rule
            case PauseSet():
                self.paused = event.paused
                self.fruitless = self.fruitless if event.paused else {}
                self.ended = self.ended if event.paused else ""
            case BudgetSet():
                self.budget_candidates = event.candidates
                self.budget_ns = event.time_ns
                self.budget_micro_usd = event.micro_usd
                self.fruitless, self.ended = {}, ""
            case AgentMessage():
                self._say(Message(event.at, event.agent, event.text))
            case ModelCallStarted() | ModelCallGrew() | ModelCallEnded():
                record_call(self.calls, event)
            case ProposalFailed():
                self.fruitless = attempts.failed_again(self.fruitless, event)
                self.barren = attempts.barren_after(self.barren, event)
                text = f"no proposal from {event.parent}: {event.reason}"
                self._say(Message(event.at, event.agent, text, event.detail))
            case HandedOver():
                self.handover = event
                head, _, rest = event.text.partition("\n")
                self._say(Message(event.at, event.agent, f"hands over: {head}", rest))
            case Migrated():
                attempts.migrate(self.candidates, event)
                self.migrated = event.results
            case SearchEnded():
                self.ended = event.reason
            case _:
                self._candidate(event)
        self.position += 1
        self.at = event.at

    def _say(self, message: Message) -> None:
        self.messages = (*self.messages, message)[-MESSAGES_KEPT:]

    @property
    def goal(self) -> str:
        """What the human wants all agents to aim for; empty without."""
        return goal_of(self.steers)

    def spent(self, calls: Iterable[int] | None = None) -> Spent:
        """What models have cost: all calls, or those of these numbers."""
        if calls is None:
            return spent(self.calls.values())
        return spent(self.calls[str(number)] for number in calls)

    def _steer(
        self, event: Steered | SteerDelivered | ConstraintSet | NotesWritten | ModelChosen
    ) -> None:
        match event:
            case Steered():
                record = SteerRecord(event.number, event.to, event.text, event.at)
                self.steers = (*self.steers, record)
            case SteerDelivered():
                self.steers = delivered(self.steers, event)
            case ConstraintSet():
                self.constraints = constrained(self.constraints, event)
            case NotesWritten():
                self.notes = event.text
                self.noted = (*self.noted, *event.results)
            case ModelChosen():
                self.models = {**self.models, event.role: event.model}
                self.fruitless = attempts.woken(self.fruitless, event.role, event.model)
                self.ended = ""

    def _open(self, event: SessionOpened) -> None:
        self.session = event.session
        self.workload = event.workload
        self.title = event.title
        self.target = event.target
        self.ranks = event.ranks
        self.seed = event.seed
        self.agents = event.agents
        self.rule = event.rule
        self.base = self.incumbent = event.base
        self.main = event.base_sha
        self.opened_at = event.at
        self.shapes = event.shapes
        self.workload_hash = event.workload_hash
        self.environment = event.environment
        self.candidates[event.base] = Candidate(
            id=event.base,
            sha=event.base_sha,
            parents=(),
            agent=AgentName.HUMAN,
            origin=Origin.SEED,
            reason=f"the seed {event.seed_file}",
            directive=None,
            proposed_at=event.at,
            seed_file=event.seed_file,
        )

    def _candidate(
        self,
        event: CandidateProposed
        | EvaluationStarted
        | CandidateBuilt
        | CandidateVerified
        | CandidateMeasured
        | CandidateFailed
        | EvaluationInterrupted,
    ) -> None:
        if isinstance(event, CandidateProposed):
            self._propose(event)
            return
        old = self.candidates.get(event.id)
        if old is None:
            raise RecordError(f"event {self.position + 1} names '{event.id}', never proposed")
        match event:
            case EvaluationStarted():
                phase = Phase.MEASURING if event.rebench else Phase.BUILDING
                new = replace(old, phase=phase, attempt=event.attempt, failure=None)
            case CandidateBuilt():
                new = replace(old, phase=Phase.CHECKING, build_ns=event.build_ns)
            case CandidateVerified():
                new = replace(old, phase=Phase.MEASURING, verify_note=event.note)
            case CandidateMeasured():
                new = replace(old, phase=Phase.MEASURED, measurement=event.measurement)
            case CandidateFailed():
                new = replace(old, phase=Phase.FAILED, failure=event.failure)
            case EvaluationInterrupted():
                new = replace(old, phase=Phase.INTERRUPTED)
        self.candidates[event.id] = new

    def _propose(self, event: CandidateProposed) -> None:
        self.fruitless = attempts.without(self.fruitless, str(event.agent), event.arm)
        self.candidates[event.id] = Candidate(
            id=event.id,
            sha=event.sha,
            parents=event.parents,
            agent=event.agent,
            origin=event.origin,
            reason=event.reason,
            directive=event.directive,
            proposed_at=event.at,
            generation=event.generation,
            seed_file=event.seed_file,
            configuration=event.configuration,
            calls=event.calls,
            findings=event.findings,
            island=event.island,
            arm=event.arm,
            inspirations=event.inspirations,
        )

    def _decide(self, event: Decided) -> None:
        candidate = self.candidates.get(event.candidate)
        if candidate is None:
            raise RecordError(f"a decision names '{event.candidate}', never proposed")
        if event.action is Decision.UNDO:
            self._undo(event)
            return
        action = event.action
        if action is Decision.REDO:
            if not self.undone or self.undone[-1].candidate != event.candidate:
                raise RecordError(f"a redo of '{event.candidate}', which was not undone last")
            action = self.undone[-1].action
            self.undone = self.undone[:-1]
        else:
            self.undone = ()
        record = DecisionRecord(
            action,
            event.candidate,
            event.sha,
            event.by,
            event.note,
            event.at,
            self.incumbent,
        )
        self.decisions = (*self.decisions, record)
        accepted = action is Decision.ACCEPT
        self.candidates[event.candidate] = replace(
            candidate,
            decision=DecisionKind.ACCEPTED if accepted else DecisionKind.REJECTED,
            decided_by=event.by,
            note=event.note,
        )
        if accepted:
            self.incumbent = event.candidate
        self.main = event.main

    def _undo(self, event: Decided) -> None:
        if not self.decisions:
            raise RecordError("an undo without a decision")
        record = self.decisions[-1]
        if record.candidate != event.candidate:
            raise RecordError(f"an undo of '{event.candidate}', which was not decided last")
        self.decisions = self.decisions[:-1]
        self.undone = (*self.undone, record)
        self.candidates[record.candidate] = replace(
            self.candidates[record.candidate],
            decision=DecisionKind.NONE,
            decided_by="",
            note="",
        )
        self.incumbent = record.incumbent_before
        self.main = event.main


def fold(events: Iterable[Event], state: State | None = None) -> State:
    """Folds events into a new state, or on into the given one, and returns it."""
    state = State() if state is None else state
    for event in events:
        state.apply(event)
    return state
