"""When lab notes are asked for, and of which results: each is told once, whenever it comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripted_model import (
    DESCRIBED,
    STAGE_A,
    STAGE_B,
    ScriptedModel,
    events_of,
    noting,
    run,
)

from kerneltui.agents.model_notes import NOTES_EVERY, NotesPlan, notes_plan
from kerneltui.agents.model_port import ModelCall, Role
from kerneltui.agents.port import SearchView
from kerneltui.engine.opening import load_state
from kerneltui.engine.recorder import Recorder
from kerneltui.model.candidate import AgentName, Candidate, Failure, Origin, Phase
from kerneltui.model.event import BudgetSet, NotesWritten
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.state import State
from kerneltui.session.repository import Session

FAILED = Failure(Stage.VERIFY, FailureKind.MISMATCH, "C[0, 0] is wrong")


def candidate(number: int) -> Candidate:
    name = f"c{number:04}"
    return Candidate(
        id=name, sha=name, parents=(), agent=AgentName.SLOW, origin=Origin.DIFF, reason=f"idea {number}",
        directive=None, proposed_at=number, phase=Phase.FAILED, failure=FAILED,
    )  # fmt: skip


def plan(state: State, asked: tuple[str, ...] = ()) -> NotesPlan | None:
    return notes_plan(SearchView(state, lambda name: "", (), "kernel.cpp"), (), "old", asked)


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"c{number:04}" for number in numbers)


def test_a_late_result_is_told_and_none_is_told_twice() -> None:
    state = State()
    state.candidates = {c.id: c for c in map(candidate, range(1, NOTES_EVERY + 2))}
    state.candidates["c0001"] = replace(candidate(1), phase=Phase.BUILDING, failure=None)
    first = plan(state)
    assert first is not None and first.results == names(*range(2, NOTES_EVERY + 2))
    state.apply(NotesWritten(at=1, text="new", by="slow", results=first.results))

    state.candidates["c0001"] = candidate(1)
    assert plan(state) is None, "one result is little to add"
    more = range(NOTES_EVERY + 2, 2 * NOTES_EVERY + 1)
    state.candidates |= {c.id: c for c in map(candidate, more)}
    second = plan(state)
    assert second is not None and second.results == names(1, *more)
    assert "- c0001 idea 1: failed" in second.question and "c0002" not in second.question


def test_what_did_not_come_into_the_notes_is_told_again_with_the_next_results() -> None:
    state = State()
    state.candidates = {c.id: c for c in map(candidate, range(1, NOTES_EVERY + 1))}
    dropped = plan(state)
    assert dropped is not None
    assert plan(state, dropped.results) is None
    more = range(NOTES_EVERY + 1, 2 * NOTES_EVERY + 1)
    state.candidates |= {c.id: c for c in map(candidate, more)}
    again = plan(state, dropped.results)
    assert again is not None and again.results == names(*range(1, 2 * NOTES_EVERY + 1))


def asked_for_notes(model: ScriptedModel) -> list[ModelCall]:
    return [call for call in model.asked if call.role is Role.META]


def test_a_session_that_goes_on_pays_no_notes_again(folder: Path) -> None:
    """Nor if they came out as they were."""
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run(folder, model, candidates=NOTES_EVERY + 2)
    assert len(asked_for_notes(model)) == 1
    for more in (4, NOTES_EVERY + 4, NOTES_EVERY + 8):
        with Session.open(folder, writable=True) as session:
            state = load_state(session)
            path = "kernels/gemm_allgather/kernel.cpp"
            recorder = Recorder(session, state, path, lambda *_: None)
            limit = NOTES_EVERY + more
            recorder.record(BudgetSet(at=state.at + 1, candidates=limit, time_ns=None))
        run(folder, model, candidates=limit)
    assert len(asked_for_notes(model)) == 2, "once for every eight results"
    written = [event for event in events_of(folder) if isinstance(event, NotesWritten)]
    results = [name for event in written for name in event.results]
    assert len(results) >= 2 * NOTES_EVERY
    assert len(set(results)) == len(results)
