"""Decisions: accept, reject, undo, redo, by the human or by a rule.

A decision binds to the commit that was displayed; an acceptance puts exactly the candidate's tree on
`main`; undo is another event.
"""

from __future__ import annotations

from kerneltui.agents.port import Proposal
from kerneltui.engine.errors import Refused
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.model.candidate import (
    AgentName,
    Candidate,
    CandidateState,
    DecisionKind,
    Origin,
)
from kerneltui.model.command import Accept, Edit, Reject
from kerneltui.model.directive import Directive
from kerneltui.model.errors import DefinitionError, PatchError
from kerneltui.model.event import Decided, Decision
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.patch import apply_hunks, diff_hunks
from kerneltui.model.state import DecisionRecord
from kerneltui.model.statistics import Verdict

__all__ = [
    "accept",
    "edited",
    "redo",
    "refusal",
    "reject",
    "selected_hunks",
    "undo",
]

_NOT_ACCEPTABLE = {
    CandidateState.BASE: "it is the seed",
    CandidateState.BEST: "it is already on main",
    CandidateState.OK: "it was accepted earlier; edit it or undo to come back to it",
    CandidateState.PROP: "it is not measured yet",
    CandidateState.BUILD: "it is not measured yet",
    CandidateState.CHECK: "it is not measured yet",
    CandidateState.BENCH: "it is not measured yet",
    CandidateState.FAIL: "it failed",
    CandidateState.REJ: "it was rejected; undo first",
    CandidateState.INT: "its evaluation was interrupted; benchmark it again (b)",
    CandidateState.STALE: "it was measured against an older main; benchmark it again (b)",
}


def refusal(recorder: Recorder, candidate: Candidate) -> str:
    """Returns why a candidate cannot be accepted now, or an empty text."""
    state = candidate.state(recorder.state.incumbent, recorder.state.base)
    return _NOT_ACCEPTABLE.get(state, "")


def accept(recorder: Recorder, command: Accept) -> None:
    """Puts a candidate on main.

    Raises:
        Refused: The commit is not the one displayed, or the candidate is not acceptable.
    """
    candidate = _displayed(recorder, command.candidate, command.sha)
    reason = refusal(recorder, candidate)
    if reason:
        raise Refused(f"{candidate.id} cannot be accepted: {reason}")
    measurement = candidate.measurement
    if measurement is None:
        raise Refused(f"{candidate.id} cannot be accepted: it is not measured yet")
    doubtful = measurement.quarantine or measurement.verdict is not Verdict.FASTER
    if command.by == "human" and doubtful and not command.note.strip():
        what = "quarantined" if measurement.quarantine else str(measurement.verdict)
        raise Refused(f"{candidate.id} is {what}: accept it with a note that says why")
    at = now_ns()
    verdict = f"{measurement.verdict} against {measurement.against}"
    main = recorder.session.accept(
        candidate.sha,
        subject=f"Accept {candidate.id}: {candidate.reason}",
        body=f"{measurement.ratio:.3f}x the reference, {verdict}.\n{command.note}".strip(),
        trailers={"Kerneltui-Candidate": candidate.id, "Kerneltui-Decision": command.by},
        at_ns=at,
    )
    recorder.record(
        Decided(
            at=at,
            action=Decision.ACCEPT,
            candidate=candidate.id,
            sha=candidate.sha,
            by=command.by,
            main=main,
            note=command.note,
        )
    )


def reject(recorder: Recorder, command: Reject) -> None:
    """Turns a candidate down; it stays in the repository.

    Raises:
        Refused: The commit is not the one displayed, or it was decided before.
    """
    candidate = _displayed(recorder, command.candidate, command.sha)
    if candidate.id == recorder.state.base:
        raise Refused(f"{candidate.id} is the seed")
    if candidate.decision is not DecisionKind.NONE:
        raise Refused(f"{candidate.id} was {candidate.decision} before; undo first (z)")
    recorder.record(
        Decided(
            at=now_ns(),
            action=Decision.REJECT,
            candidate=candidate.id,
            sha=candidate.sha,
            by=command.by,
            main=recorder.state.main,
            note=command.note,
        )
    )


def undo(recorder: Recorder) -> str:
    """Takes back the last decision and returns the candidate that it was about.

    Raises:
        Refused: There is no decision to take back.
    """
    if not recorder.state.decisions:
        raise Refused("there is no decision to undo")
    record = recorder.state.decisions[-1]
    subject = f"Undo the acceptance of {record.candidate}"
    return _turn(recorder, Decision.UNDO, record, record.incumbent_before, subject)


def redo(recorder: Recorder) -> str:
    """Makes the last undone decision again and returns the candidate that it is about.

    Raises:
        Refused: Nothing was undone since the last decision.
    """
    if not recorder.state.undone:
        raise Refused("there is nothing to redo")
    record = recorder.state.undone[-1]
    subject = f"Accept {record.candidate} again"
    return _turn(recorder, Decision.REDO, record, record.candidate, subject)


def _turn(
    recorder: Recorder, action: Decision, record: DecisionRecord, tree_of: str, subject: str
) -> str:
    """Undo and redo alike: main gets a new commit with an earlier tree if it was an acceptance."""
    at = now_ns()
    main = recorder.state.main
    if record.action is Decision.ACCEPT:
        candidate = recorder.state.candidates[tree_of]
        main = recorder.session.restore(
            candidate.sha,
            subject=subject,
            body="",
            trailers={"Kerneltui-Candidate": candidate.id},
            at_ns=at,
        )
    recorder.record(
        Decided(
            at=at,
            action=action,
            candidate=record.candidate,
            sha=record.sha,
            by="human",
            main=main,
            note=record.note if action is Decision.REDO else "",
            of=record.action,
        )
    )
    return record.candidate


def selected_hunks(recorder: Recorder, command: Accept) -> Proposal | None:
    """Returns the new candidate that a strict subset of hunks makes; None if all are selected.

    Raises:
        Refused: No hunk is selected, or one does not exist.
    """
    candidate = _displayed(recorder, command.candidate, command.sha)
    if command.hunks is None or not candidate.parents:
        return None
    old = recorder.source(candidate.parents[0])
    new = recorder.source(candidate.id)
    total = len(diff_hunks(old, new))
    chosen = sorted(set(command.hunks))
    if len(chosen) == total:
        return None
    if not chosen:
        raise Refused("no hunk is selected; select one with space, or reject (r)")
    try:
        text = apply_hunks(old, new, chosen)
    except PatchError as error:
        raise Refused(str(error)) from error
    numbers = ", ".join(str(index + 1) for index in chosen)
    reason = f"hunks {numbers} of {total} of {candidate.id}"
    return _by_hand(
        recorder,
        candidate,
        text,
        reason=reason,
        origin=Origin.HUNKS,
        parents=candidate.parents,
    )


def edited(recorder: Recorder, command: Edit) -> Proposal:
    """Returns the human's own version of a candidate as a proposal.

    Raises:
        Refused: The candidate is unknown, nothing was changed, or the text's declarations are wrong.
    """
    candidate = recorder.state.candidates.get(command.candidate)
    if candidate is None:
        raise Refused(f"there is no candidate {command.candidate}")
    if command.source == recorder.source(candidate.id):
        raise Refused("nothing was changed, so there is nothing to evaluate")
    return _by_hand(
        recorder,
        candidate,
        command.source,
        reason=command.reason,
        origin=Origin.EDIT,
        parents=(candidate.id,),
    )


def _displayed(recorder: Recorder, identifier: str, sha: str) -> Candidate:
    candidate = recorder.state.candidates.get(identifier)
    if candidate is None:
        raise Refused(f"there is no candidate {identifier}")
    if candidate.sha != sha:
        raise Refused(f"{identifier} is now another commit than the one displayed; look again")
    return candidate


def _by_hand(
    recorder: Recorder,
    candidate: Candidate,
    text: str,
    *,
    reason: str,
    origin: Origin,
    parents: tuple[str, ...],
) -> Proposal:
    dimensions = recorder.state.shapes[0].dimensions
    directive: Directive | None = candidate.directive
    try:
        kernel = parse_kernel(text, candidate.seed_file)
        if directive is not None:
            directive = kernel.directive(dimensions)
    except DefinitionError as error:
        raise Refused(f"the text cannot become a candidate: {error}") from error
    return Proposal(
        source=text,
        reason=reason,
        agent=AgentName.HUMAN,
        origin=origin,
        parents=parents,
        directive=directive,
        seed_file=candidate.seed_file,
        generation=candidate.generation + 1,
        configuration={name: str(value) for name, value in kernel.configuration.items()},
    )
