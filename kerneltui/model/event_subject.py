"""One line for a person about an event: the subject of its commit in the journal."""

from __future__ import annotations

from kerneltui.model.agent_event import (
    HandedOver,
    Migrated,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.event import (
    AgentMessage,
    BudgetSet,
    Calibrated,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    Decided,
    Event,
    PauseSet,
    RuleSet,
    SearchEnded,
    SessionOpened,
    event_kind,
)
from kerneltui.model.steer_event import ConstraintSet, ModelChosen, NotesWritten, Steered

__all__ = ["event_subject"]


def event_subject(event: Event) -> str:
    """Returns the readable subject line of an event's journal commit."""
    match event:
        case CandidateProposed():
            return f"{event.agent} proposed {event.id}: {event.reason}"
        case CandidateMeasured(measurement=m):
            return f"measured {event.id}: {m.ratio:.3f}x, {m.verdict} against {m.against}"
        case CandidateFailed(failure=f):
            return f"failed {event.id} in {f.stage}: {f.reason}"
        case Decided():
            what = f"{event.action} of {event.of}" if event.of else str(event.action)
            return f"{event.by}: {what} {event.candidate}"
        case Steered():
            return f"steer {event.number} to {event.to}: {event.text}"
        case SessionOpened():
            return f"opened {event.session}: {event.workload} on {event.target}"
        case (
            ModelCallStarted()
            | ModelCallGrew()
            | ModelCallEnded()
            | ProposalFailed()
            | HandedOver()
            | Migrated()
            | NotesWritten()
            | ModelChosen()
        ):
            return event.subject
        case ConstraintSet():
            lift = "" if event.active else "lift "
            return f"{lift}{event.kind} {event.field}={event.value}"
        case AgentMessage() | SearchEnded():
            text = event.text if isinstance(event, AgentMessage) else event.reason
            return f"{event_kind(event)}: {text}"
        case _:
            return f"{event_kind(event).replace('_', ' ')} {_what(event)}".strip()


def _what(event: Event) -> str:
    match event:
        case Calibrated():
            return f"{len(event.shapes)} shapes: a verdict needs {event.delta:.1%}"
        case BudgetSet():
            return f"to {event.text}"
        case RuleSet():
            return f"to {event.rule}"
        case PauseSet():
            return "on" if event.paused else "off"
        case _:
            return str(getattr(event, "id", ""))
