"""The fold agrees with what was done, at every step of any history."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model_strategies import TEXT, sample_of
from state_events import BASE, OPENED, decided, measured, proposed

from kerneltui.model.candidate import CandidateState, DecisionKind, Phase
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    BudgetSet,
    Calibrated,
    CandidateBuilt,
    CandidateFailed,
    CandidateVerified,
    ConstraintKind,
    ConstraintSet,
    Decided,
    Decision,
    EvaluationInterrupted,
    EvaluationStarted,
    Event,
    PauseSet,
    RuleSet,
    SearchEnded,
    SessionResumed,
    SteerDelivered,
    Steered,
    decode_event,
    encode_event,
)
from kerneltui.model.state import Constraint, State, fold


@dataclass(slots=True)
class Mark:
    """What the history knows of a decision, to compare the fold with."""

    action: Decision
    candidate: str
    incumbent_before: str
    counts_before: dict[CandidateState, int]
    others: int


class Histories(RuleBasedStateMachine):
    """Sessions as an engine writes them; the fold must agree with what was done, at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.state = State()
        self.snapshots: list[bytes] = [self.state.canonical()]
        self.incumbent = BASE
        self.stack: list[Mark] = []
        self.undone: list[Mark] = []
        self.number = 0
        self.steers = 0
        self.at = 0
        self.others = 0  # events that are no decisions
        self.constraints: list[tuple[ConstraintKind, str, str]] = []

    def happen(self, event: Event) -> None:
        self.at += 10
        self.others += not isinstance(event, Decided)
        data = encode_event(replace(event, at=self.at))
        self.events.append(decode_event(data))
        self.state.apply(decode_event(data))
        self.snapshots.append(self.state.canonical())

    def some(self, data: st.DataObject, *phases: Phase) -> str | None:
        found = [c.id for c in self.state.candidates.values() if c.phase in phases and c.id != BASE]
        return data.draw(st.sampled_from(found)) if found else None

    @initialize()
    def open(self) -> None:
        self.happen(OPENED)

    @rule(data=st.data(), crossed=st.booleans())
    def propose(self, data: st.DataObject, crossed: bool) -> None:
        self.number += 1
        known = st.sampled_from(sorted(self.state.candidates))
        parents = (data.draw(known), data.draw(known)) if crossed else (data.draw(known),)
        self.happen(proposed(f"c{self.number:04d}", tuple(dict.fromkeys(parents))))

    @rule(data=st.data(), rebench=st.booleans())
    def start(self, data: st.DataObject, rebench: bool) -> None:
        chosen = self.some(data, Phase.PROPOSED, Phase.INTERRUPTED, Phase.MEASURED, Phase.FAILED)
        if chosen is not None and chosen != self.incumbent:
            attempt = self.state.candidates[chosen].attempt + 1
            self.happen(
                EvaluationStarted(
                    at=0, id=chosen, attempt=attempt, against=self.incumbent, rebench=rebench
                )
            )

    @rule(data=st.data(), quarantine=st.sampled_from(["", "", "", "faster than the limit"]))
    def go_on(self, data: st.DataObject, quarantine: str) -> None:
        chosen = self.some(data, Phase.BUILDING, Phase.CHECKING, Phase.MEASURING)
        if chosen is None:
            return
        phase = self.state.candidates[chosen].phase
        if phase is Phase.BUILDING:
            self.happen(CandidateBuilt(at=0, id=chosen, build_ns=5, cached=False))
        elif phase is Phase.CHECKING:
            self.happen(CandidateVerified(at=0, id=chosen, note="3 seeds"))
        else:
            self.happen(measured(chosen, self.incumbent, quarantine))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        chosen = self.some(data, Phase.BUILDING, Phase.CHECKING, Phase.MEASURING)
        if chosen is not None:
            self.happen(replace(sample_of(CandidateFailed), id=chosen))

    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        chosen = self.some(data, Phase.BUILDING, Phase.CHECKING, Phase.MEASURING)
        if chosen is not None:
            self.happen(EvaluationInterrupted(at=0, id=chosen))

    @rule(data=st.data(), accept=st.booleans(), note=TEXT)
    def decide(self, data: st.DataObject, accept: bool, note: str) -> None:
        words = (CandidateState.PEND, CandidateState.QUAR)
        known = [n for n in self.state.candidates if self.state.state_of(n) in words]
        if not known:
            return
        chosen = data.draw(st.sampled_from(known))
        action = Decision.ACCEPT if accept else Decision.REJECT
        self.stack.append(Mark(action, chosen, self.incumbent, self.state.counts(), self.others))
        self.undone.clear()
        main = f"merge-{chosen}" if accept else self.state.main
        self.happen(decided(action, chosen, main, note=note))
        if accept:
            self.incumbent = chosen

    @precondition(lambda self: self.stack)
    @rule()
    def undo(self) -> None:
        mark = self.stack.pop()
        self.happen(decided(Decision.UNDO, mark.candidate, "undo", of=mark.action))
        self.incumbent = mark.incumbent_before
        self.undone.append(mark)
        assert self.state.candidates[mark.candidate].decision is DecisionKind.NONE
        if self.others == mark.others:
            assert self.state.counts() == mark.counts_before

    @precondition(lambda self: self.undone)
    @rule()
    def redo(self) -> None:
        mark = self.undone.pop()
        again = replace(mark, counts_before=self.state.counts(), others=self.others)
        self.stack.append(again)
        self.happen(decided(Decision.REDO, mark.candidate, "redo", of=mark.action))
        if mark.action is Decision.ACCEPT:
            self.incumbent = mark.candidate
        accepted = mark.action is Decision.ACCEPT
        expected = DecisionKind.ACCEPTED if accepted else DecisionKind.REJECTED
        assert self.state.candidates[mark.candidate].decision is expected

    @rule(text=TEXT)
    def steer(self, text: str) -> None:
        self.steers += 1
        self.happen(Steered(at=0, number=self.steers, to="slow", text=text))

    @precondition(lambda self: self.steers)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.steers))
        self.happen(SteerDelivered(at=0, number=number, agent="slow", answer="yes"))

    @rule(
        kind=st.sampled_from(ConstraintKind),
        field=st.sampled_from(["MR", "NR"]),
        value=st.sampled_from(["4", "6"]),
        active=st.booleans(),
    )
    def constrain(self, kind: ConstraintKind, field: str, value: str, active: bool) -> None:
        if kind is ConstraintKind.PIN:
            field = ""
        one = (kind, field, value)
        self.happen(ConstraintSet(at=0, kind=kind, field=field, value=value, active=active))
        kept = [other for other in self.constraints if other != one]
        if active and kind is not ConstraintKind.BAN:
            kept = [other for other in kept if other[:2] != (kind, field)]
        self.constraints = [*kept, one] if active else kept

    @rule(data=st.data())
    def set_something(self, data: st.DataObject) -> None:
        self.happen(
            data.draw(
                st.sampled_from(
                    [
                        PauseSet(at=0, paused=True),
                        PauseSet(at=0, paused=False),
                        RuleSet(at=0, rule=AcceptRule.AUTO),
                        BudgetSet(at=0, candidates=4, time_ns=None),
                        SearchEnded(at=0, reason="used"),
                        SessionResumed(at=0, environment={"cpu": "another"}),
                        AgentMessage(at=0, agent="slow", text="hm"),
                        sample_of(Calibrated),
                    ]
                )
            )
        )

    @invariant()
    def the_incumbent_is_the_last_accepted_that_stands(self) -> None:
        if self.events:
            assert self.state.incumbent == self.incumbent
            accepted = [m.candidate for m in self.stack if m.action is Decision.ACCEPT]
            assert self.state.incumbent == (accepted[-1] if accepted else BASE)
            assert [r.candidate for r in self.state.decisions] == [m.candidate for m in self.stack]
            assert [r.candidate for r in self.state.undone] == [m.candidate for m in self.undone]

    @invariant()
    def nothing_that_was_attempted_is_lost(self) -> None:
        counts = self.state.counts()
        assert set(counts) == set(CandidateState)
        assert sum(counts.values()) == len(self.state.candidates)
        if self.events:
            assert len(self.state.candidates) == 1 + self.number
            assert counts[CandidateState.BASE] == 1
            assert counts[CandidateState.BEST] == (self.incumbent != BASE)
        pending = [c.id for c in self.state.pending()]
        assert pending == sorted(pending)
        words = (CandidateState.PEND, CandidateState.STALE, CandidateState.QUAR)
        assert len(pending) == sum(counts[word] for word in words)

    @invariant()
    def what_was_measured_against_another_main_is_stale(self) -> None:
        for candidate in self.state.candidates.values():
            word = self.state.state_of(candidate.id)
            if word is CandidateState.STALE:
                assert candidate.measurement is not None
                assert candidate.measurement.against != self.incumbent
            if word is CandidateState.PEND:
                assert candidate.measurement is not None
                assert candidate.measurement.against == self.incumbent

    @invariant()
    def constraints_are_those_that_stand(self) -> None:
        expected = tuple(Constraint(*one) for one in self.constraints)
        assert self.state.constraints == expected

    @invariant()
    def time_and_position_come_from_the_events(self) -> None:
        assert self.state.position == len(self.events)
        assert self.state.at == self.at

    def teardown(self) -> None:
        """Folding again, from the start or from any snapshot, gives the same state at every step."""
        state = State()
        for event, seen in zip(self.events, self.snapshots[1:], strict=True):
            state.apply(event)
            assert state.canonical() == seen
        last = self.snapshots[-1]
        for cut, snapshot in enumerate(self.snapshots):
            again = State.from_canonical(snapshot)
            assert list(again.candidates) == [n for n in state.candidates if n in again.candidates]
            assert again.position == cut
            assert fold(self.events[cut:], again).canonical() == last
        if self.snapshots:
            middle = len(self.events) // 2
            keyframe = fold(self.events[:middle])
            onward = fold(self.events[middle:], keyframe.copy())
            assert onward.canonical() == last
            assert keyframe.canonical() == self.snapshots[middle]


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=15, stateful_step_count=40)
