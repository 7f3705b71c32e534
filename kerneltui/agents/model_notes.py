"""Lab notes by a model: every few results it writes what helps, what does not, and what was never tried."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kerneltui.agents.evidence import history_text
from kerneltui.agents.model_port import (
    Block,
    FailureKind,
    ModelCall,
    ModelFailure,
    Role,
    Turn,
)
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.agents.thinking import Talk
from kerneltui.agents.tools import NOTES
from kerneltui.model.candidate import Candidate, Phase

__all__ = ["NOTES_EVERY", "NotesPlan", "notes_plan", "write_notes"]

NOTES_EVERY = 8
"""Results between two notes."""


@dataclass(frozen=True, slots=True)
class NotesPlan:
    """What is asked: the standing instructions, the question, the notes and the results that it is about."""

    system: Sequence[Block]
    question: str
    notes: str
    results: tuple[str, ...]


def notes_plan(
    view: SearchView, system: Sequence[Block], notes: str, asked: Collection[str]
) -> NotesPlan | None:
    """Returns what to ask for new notes, or None while there is little to add.

    Args:
        view: The state now.
        system: Standing instructions.
        notes: The notes now.
        asked: The candidates of the last question, whether or not anything came of it. Those that did not
            come into the notes are told again.
    """
    state = view.state
    results = [c for c in state.candidates.values() if c.id not in state.noted and _has_result(c)]
    if sum(candidate.id not in asked for candidate in results) < NOTES_EVERY:
        return None
    question = prompt("meta", notes=notes.strip() or "none", results=history_text(results))
    return NotesPlan(system, question, notes, tuple(candidate.id for candidate in results))


def write_notes(talk: Talk, plan: NotesPlan) -> None:
    """Asks for the notes, and hands them in; without them the search goes on.

    Raises:
        ModelFailure: Somebody asked for the end, or nothing is left of the budget.
    """
    turns = [Turn("user", plan.question)]
    call = ModelCall(Role.META, plan.system, turns, [NOTES], True, "lab notes")
    try:
        text = str(talk.ask(call).tools[0].input["notes"]).strip()
    except ModelFailure as failure:
        if talk.stopped() or failure.kind is FailureKind.BUDGET:
            raise
        talk.say(f"no lab notes: {failure.reason}")
        return
    if text:
        talk.note(text + "\n", plan.notes, plan.results)


def _has_result(candidate: Candidate) -> bool:
    return candidate.phase in (Phase.MEASURED, Phase.FAILED) and not candidate.harness_fault
