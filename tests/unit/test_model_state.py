from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model_strategies import TEXT, sample_of

from kerneltui.model.agent_event import ProposalFailed
from kerneltui.model.candidate import AgentName, CandidateState, DecisionKind, Origin, Phase
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
    ConstraintKind,
    ConstraintSet,
    Decided,
    Decision,
    EvaluationInterrupted,
    EvaluationStarted,
    Event,
    ModelChosen,
    PauseSet,
    RuleSet,
    SearchEnded,
    SessionOpened,
    SessionResumed,
    SteerDelivered,
    Steered,
    decode_event,
    encode_event,
)
from kerneltui.model.measurement import Measurement
from kerneltui.model.state import MESSAGES_KEPT, Constraint, State, fold

BASE = "c0000"
OPENED = replace(
    sample_of(SessionOpened), base=BASE, base_sha="sha-c0000", seed_file="host.cpp", seed=1, at=1
)
MEASUREMENT: Measurement = replace(sample_of(Measurement), quarantine="")


def proposed(identifier: str, parents: tuple[str, ...] = (BASE,)) -> CandidateProposed:
    return CandidateProposed(
        at=2,
        id=identifier,
        sha=f"sha-{identifier}",
        parents=parents,
        agent=AgentName.SLOW,
        origin=Origin.TUNABLES,
        reason="because",
        directive=None,
        generation=1,
        seed_file="window.cpp",
        configuration={"MR": "4"},
    )


def measured(identifier: str, against: str = BASE, quarantine: str = "") -> CandidateMeasured:
    measurement = replace(MEASUREMENT, against=against, quarantine=quarantine)
    return CandidateMeasured(at=3, id=identifier, measurement=measurement)


def decided(
    action: Decision, identifier: str, main: str, of: Decision | None = None, note: str = ""
) -> Decided:
    sha = f"sha-{identifier}"
    return Decided(
        at=4, action=action, candidate=identifier, sha=sha, by="human", main=main, note=note, of=of
    )


def opened(*events: Event) -> State:
    return fold([OPENED, *events])


# -- all histories


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


# -- single things


def test_a_candidate_goes_through_its_states():
    state = opened()
    steps: list[tuple[Event, str]] = [
        (proposed("c0001"), "PROP"),
        (EvaluationStarted(at=2, id="c0001", attempt=1, against=BASE), "BUILD"),
        (CandidateBuilt(at=2, id="c0001", build_ns=7, cached=True), "CHECK"),
        (CandidateVerified(at=2, id="c0001", note="3 seeds"), "BENCH"),
        (measured("c0001"), "PEND"),
        (decided(Decision.ACCEPT, "c0001", "merge"), "BEST"),
    ]
    for event, word in steps:
        state.apply(event)
        assert state.state_of("c0001") == word
    assert state.state_of(BASE) == "BASE"
    assert (state.incumbent, state.main) == ("c0001", "merge")
    made = state.candidates["c0001"]
    assert (made.build_ns, made.verify_note, made.decided_by) == (7, "3 seeds", "human")


def test_a_failed_candidate_can_run_again():
    failed = replace(sample_of(CandidateFailed), id="c0001")
    state = opened(proposed("c0001"), failed)
    assert state.state_of("c0001") == "FAIL"
    state.apply(EvaluationStarted(at=2, id="c0001", attempt=2, against=BASE))
    assert state.candidates["c0001"].failure is None
    state.apply(EvaluationInterrupted(at=2, id="c0001"))
    assert state.state_of("c0001") == "INT"


def test_accepting_makes_the_others_stale_and_undo_makes_them_pending_again():
    state = opened(proposed("c0001"), proposed("c0002"), measured("c0001"), measured("c0002"))
    before = state.counts()
    state.apply(decided(Decision.ACCEPT, "c0001", "merge"))
    assert [state.state_of(n) for n in ("c0001", "c0002")] == ["BEST", "STALE"]
    assert [c.id for c in state.pending()] == ["c0002"]
    state.apply(EvaluationStarted(at=5, id="c0002", attempt=2, against="c0001", rebench=True))
    assert state.state_of("c0002") == "BENCH"
    state.apply(measured("c0002", against="c0001"))
    assert state.state_of("c0002") == "PEND"
    state.apply(decided(Decision.ACCEPT, "c0002", "merge-2"))
    assert [state.state_of(n) for n in ("c0001", "c0002")] == ["OK", "BEST"]
    state.apply(decided(Decision.UNDO, "c0002", "undo-2", of=Decision.ACCEPT))
    assert [state.state_of(n) for n in ("c0001", "c0002")] == ["BEST", "PEND"]
    state.apply(decided(Decision.UNDO, "c0001", "undo-1", of=Decision.ACCEPT))
    # c0002 now stands against c0001, which is no longer on main
    assert [state.state_of(n) for n in ("c0001", "c0002")] == ["PEND", "STALE"]
    assert state.incumbent == BASE
    assert sum(state.counts().values()) == sum(before.values())


def test_redo_is_gone_after_another_decision():
    state = opened(proposed("c0001"), proposed("c0002"), measured("c0001"), measured("c0002"))
    state.apply(decided(Decision.REJECT, "c0001", "m", note="too long"))
    state.apply(decided(Decision.UNDO, "c0001", "m", of=Decision.REJECT))
    assert (state.candidates["c0001"].note, len(state.undone)) == ("", 1)
    state.apply(decided(Decision.REJECT, "c0002", "m"))
    assert not state.undone


def test_quarantine_is_shown_before_anything_else():
    state = opened(proposed("c0001"), measured("c0001", "c0007", quarantine="too fast"))
    assert state.state_of("c0001") == "QUAR"


@pytest.mark.parametrize(
    "event",
    [
        EvaluationStarted(at=9, id="c0009", attempt=1, against=BASE),
        CandidateBuilt(at=9, id="c0009", build_ns=1, cached=False),
        CandidateVerified(at=9, id="c0009", note=""),
        measured("c0009"),
        replace(sample_of(CandidateFailed), id="c0009"),
        EvaluationInterrupted(at=9, id="c0009"),
        decided(Decision.ACCEPT, "c0009", "m"),
        decided(Decision.UNDO, "c0001", "m", of=Decision.ACCEPT),
        decided(Decision.REDO, "c0001", "m", of=Decision.ACCEPT),
    ],
)
def test_an_event_that_cannot_be_is_refused_and_changes_nothing(event: Event):
    state = opened(proposed("c0001"))
    before = state.canonical()
    with pytest.raises(RecordError):
        state.apply(event)
    assert state.canonical() == before


def test_undo_and_redo_are_of_the_last_decision():
    state = opened(proposed("c0001"), proposed("c0002"), measured("c0001"), measured("c0002"))
    state.apply(decided(Decision.REJECT, "c0001", "m"))
    with pytest.raises(RecordError, match="not decided last"):
        state.apply(decided(Decision.UNDO, "c0002", "m", of=Decision.REJECT))
    state.apply(decided(Decision.UNDO, "c0001", "m", of=Decision.REJECT))
    with pytest.raises(RecordError, match="not undone last"):
        state.apply(decided(Decision.REDO, "c0002", "m", of=Decision.REJECT))


def constraint(kind: ConstraintKind, field: str, value: str, active: bool = True) -> ConstraintSet:
    return ConstraintSet(at=1, kind=kind, field=field, value=value, active=active)


def standing(*events: Event) -> list[tuple[str, str, str]]:
    return [(c.kind.value, c.field, c.value) for c in opened(*events).constraints]


def test_bans_add_up_pins_and_forces_replace():
    ban, force, pin = ConstraintKind.BAN, ConstraintKind.FORCE, ConstraintKind.PIN
    assert standing(
        constraint(ban, "MR", "4"),
        constraint(ban, "MR", "6"),
        constraint(ban, "MR", "4"),
        constraint(force, "NR", "16"),
        constraint(force, "NR", "32"),
        constraint(force, "KC", "128"),
        constraint(pin, "", "c0001"),
        constraint(pin, "", "c0002"),
    ) == [
        ("ban", "MR", "6"),
        ("ban", "MR", "4"),
        ("force", "NR", "32"),
        ("force", "KC", "128"),
        ("pin", "", "c0002"),
    ]


def test_lifting_lifts_that_one_alone():
    ban, force, pin = ConstraintKind.BAN, ConstraintKind.FORCE, ConstraintKind.PIN
    set_ = [
        constraint(ban, "MR", "4"),
        constraint(force, "NR", "16"),
        constraint(pin, "", "c0001"),
    ]
    others = [
        constraint(ban, "MR", "6", active=False),
        constraint(force, "NR", "32", active=False),
        constraint(pin, "", "c0002", active=False),
    ]
    assert standing(*set_, *others) == standing(*set_)
    assert standing(*set_, *(replace(event, active=False) for event in set_)) == []


def test_steers_are_delivered_by_number():
    state = opened(
        Steered(at=5, number=1, to="slow", text="larger"),
        Steered(at=6, number=2, to="all", text="smaller"),
        SteerDelivered(at=7, number=2, agent="slow", answer="yes", candidate="c0003"),
        SteerDelivered(at=8, number=2, agent="fast", answer="no"),
    )
    one, two = state.steers
    assert (one.delivered_to, one.answer) == ("", "")
    assert (two.delivered_to, two.answer) == ("slow fast", "yes\nno"), "both took it"
    assert two.candidate == "c0003"
    assert one.waits_for("slow") and not one.waits_for("fast") and not two.waits_for("slow")


def test_going_on_clears_the_end_and_old_messages_go():
    state = opened(SearchEnded(at=2, reason="used"))
    assert state.ended == "used"
    state.apply(BudgetSet(at=3, candidates=9, time_ns=None))
    assert (state.ended, state.budget_candidates) == ("", 9)
    state.apply(SearchEnded(at=3, reason="nothing left"))
    state.apply(PauseSet(at=3, paused=True))
    assert state.ended == "nothing left"
    state.apply(PauseSet(at=3, paused=False))
    assert state.ended == ""
    for number in range(MESSAGES_KEPT + 5):
        state.apply(AgentMessage(at=4, agent="slow", text=str(number)))
    assert len(state.messages) == MESSAGES_KEPT
    assert state.messages[-1].text == str(MESSAGES_KEPT + 4)


def test_models_that_the_human_names_begin_anew():
    state = opened()
    for agent, arm in (("fast", ""), ("slow", "model-x"), ("slow", "model-y")):
        failed = ProposalFailed(at=2, agent=agent, parent=BASE, reason="refused", arm=arm)
        state.apply(failed)
    state.apply(SearchEnded(at=3, reason="nothing left"))
    state.apply(ModelChosen(at=3, role="slow", model="model-y model-z"))
    assert state.ended == ""
    assert state.fruitless == {"fast": 1, "slow model-x": 1}
    state.apply(ModelChosen(at=3, role="fast", model="model-z"))
    assert state.fruitless == {"slow model-x": 1}


def test_candidates_keep_their_order_beyond_ten_thousand():
    names = ["c9998", "c9999", "c10000", "c10001"]
    state = opened(*(event for name in names for event in (proposed(name), measured(name))))
    again = State.from_canonical(state.canonical())
    assert list(again.candidates) == list(state.candidates) == [BASE, *names]
    assert [c.id for c in again.pending()] == names


def test_a_copy_is_independent():
    state = opened(proposed("c0001"))
    before = state.canonical()
    copied: Any = state.copy()
    copied.apply(measured("c0001"))
    copied.apply(proposed("c0002"))
    assert state.canonical() == before
    assert copied.canonical() != before


def test_an_attempt_that_was_cut_short_does_not_count_against_its_agent():
    failed = ProposalFailed(at=2, agent="fast", parent=BASE, reason="refused")
    state = opened(failed, replace(failed, reason="stopped", blameless=True), failed)
    assert state.fruitless == {"fast": 2}
    assert state.messages[1].text == f"no proposal from {BASE}: stopped"
