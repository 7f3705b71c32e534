"""The fold of events, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from model_strategies import sample_of
from state_events import BASE, decided, measured, opened, proposed

from kerneltui.model.agent_event import ProposalFailed
from kerneltui.model.errors import RecordError
from kerneltui.model.event import (
    AgentMessage,
    BudgetSet,
    CandidateBuilt,
    CandidateFailed,
    CandidateVerified,
    ConstraintKind,
    ConstraintSet,
    Decision,
    EvaluationInterrupted,
    EvaluationStarted,
    Event,
    ModelChosen,
    PauseSet,
    SearchEnded,
    SteerDelivered,
    Steered,
)
from kerneltui.model.state import MESSAGES_KEPT, State


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
