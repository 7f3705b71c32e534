"""Replay: the live fold up to any step, with keyframes so that a jump is short."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kerneltui.model.agent_event import (
    HandedOver,
    Migrated,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.event import (
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
    SteerDelivered,
    Steered,
)
from kerneltui.model.state import State
from kerneltui.tui.format import difference, mode_word, ratio

__all__ = ["KEYFRAME_EVERY", "Timeline", "event_text", "mark_of"]

KEYFRAME_EVERY = 200


class Timeline:
    """All events of a session and the state after any of them.

    Step `n` is the state after `n` events, so step 0 is empty.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = tuple(events)
        self._keyframes: list[State] = [State()]
        self.best: list[float | None] = [None]
        state = State()
        for number, event in enumerate(self.events, 1):
            state.apply(event)
            incumbent = state.candidates.get(state.incumbent)
            measurement = incumbent.measurement if incumbent else None
            # The seed is measured against the reference only through baselines, so it may have none.
            self.best.append(measurement.ratio if measurement else self.best[-1])
            if number % KEYFRAME_EVERY == 0:
                self._keyframes.append(state.copy())
        self.decisions = tuple(
            number for number, event in enumerate(self.events, 1) if isinstance(event, Decided)
        )

    def __len__(self) -> int:
        return len(self.events)

    def state(self, step: int) -> State:
        """Returns the state after `step` events, as a state of its own."""
        step = self.clamp(step)
        state = self._keyframes[step // KEYFRAME_EVERY].copy()
        for event in self.events[step // KEYFRAME_EVERY * KEYFRAME_EVERY : step]:
            state.apply(event)
        return state

    def clamp(self, step: int) -> int:
        """Returns the nearest step that exists."""
        return max(0, min(step, len(self.events)))

    def next_decision(self, step: int) -> int:
        """Returns the step of the next decision after `step`, or the last step."""
        index = bisect_right(self.decisions, step)
        return self.decisions[index] if index < len(self.decisions) else len(self.events)

    def previous_decision(self, step: int) -> int:
        """Returns the step of the last decision before `step`, or the first step."""
        index = bisect_left(self.decisions, step)
        return self.decisions[index - 1] if index else min(1, len(self.events))

    def time(self, step: int) -> int:
        """Returns nanoseconds since the session opened, at a step."""
        if not self.events or step <= 0:
            return 0
        return self.events[self.clamp(step) - 1].at - self.events[0].at

    def candidate_at(self, step: int, state: State) -> str:
        """Returns the candidate to show at a step: the one that the event is about, or the incumbent."""
        for number in range(self.clamp(step), 0, -1):
            event = self.events[number - 1]
            if isinstance(event, Decided):
                return event.candidate
            found = getattr(event, "id", "")
            if isinstance(found, str) and found in state.candidates:
                return found
        return state.incumbent


def mark_of(event: Event) -> str:
    """Returns the letter of an event on the timeline: a accept, r reject, f fail, s steer, u undo."""
    match event:
        case Decided(action=Decision.ACCEPT) | Decided(action=Decision.REDO, of=Decision.ACCEPT):
            return "a"
        case Decided(action=Decision.UNDO):
            return "u"
        case Decided():
            return "r"
        case CandidateFailed():
            return "f"
        case Steered():
            return "s"
        case _:
            return "─"


def event_text(event: Event) -> tuple[str, str]:
    """Returns who did something and what, in words for the list of events."""
    match event:
        case SessionOpened():
            return "you", f"opened {event.session}: {event.workload} on {event.target}"
        case SessionResumed():
            return "engine", "opened the session again"
        case Calibrated():
            return (
                "engine",
                f"calibrated {len(event.shapes)} shapes, a verdict needs {event.delta:.1%}",
            )
        case CandidateProposed():
            how = "" if event.origin in (Origin.TUNABLES, Origin.DIFF) else f" ({event.origin})"
            who = "you" if event.agent is AgentName.HUMAN else str(event.agent)
            return who, f"proposed {event.id}{how}  {event.reason}"
        case Decided():
            return _decision_text(event)
        case _:
            return _evaluation_text(event) or _model_text(event) or _session_text(event)


def _evaluation_text(event: Event) -> tuple[str, str] | None:
    match event:
        case EvaluationStarted():
            return "engine", f"{'measures' if event.rebench else 'builds'} {event.id}"
        case CandidateBuilt():
            cached = " (cached)" if event.cached else ""
            return "engine", f"built {event.id} in {event.build_ns / 1e9:.1f} s{cached}"
        case CandidateVerified():
            return "judge", f"verified {event.id}"
        case CandidateMeasured(measurement=m):
            text = f"measured {event.id} {ratio(m.ratio)}  {difference(m.geomean, m.verdict)}"
            return "judge", text
        case CandidateFailed(failure=failure):
            return "judge", f"{event.id} failed in {failure.stage}: {failure.reason}"
        case EvaluationInterrupted():
            return "engine", f"was interrupted while it evaluated {event.id}"
        case _:
            return None


def _model_text(event: Event) -> tuple[str, str] | None:
    match event:
        case NotesWritten() | ModelChosen():
            return "you", event.subject
        case ModelCallStarted():
            return event.agent, f"asks {event.model}: {event.purpose}"
        case ModelCallGrew():
            return "engine", event.subject
        case ModelCallEnded():
            why = f": {event.reason}" if event.reason else ""
            return "engine", f"call {event.number} ended, {event.outcome}{why}"
        case HandedOver():
            return event.agent, f"hands over: {event.text.partition(chr(10))[0]}"
        case ProposalFailed():
            return event.agent, f"has no proposal from {event.parent}: {event.reason}"
        case Migrated():
            return "engine", event.subject
        case _:
            return None


def _decision_text(event: Decided) -> tuple[str, str]:
    who = "you" if event.by == "human" else event.by
    words = {Decision.ACCEPT: "accepted", Decision.REJECT: "rejected"}
    of = words.get(event.of, "") if event.of else ""
    what = (
        words.get(event.action) or f"{'undid' if event.action is Decision.UNDO else 'redid'} {of}"
    )
    note = f": {event.note}" if event.note else ""
    return who, f"{what} {event.candidate}{note}"


def _session_text(event: Event) -> tuple[str, str]:
    match event:
        case Steered():
            return "you", f"steered {event.to}: {event.text}"
        case SteerDelivered():
            return event.agent, f"answered steer {event.number}: {event.answer}"
        case ConstraintSet():
            what = f"{event.field}={event.value}" if event.field else event.value
            return "you", f"{'' if event.active else 'lifted '}{event.kind} {what}"
        case RuleSet():
            return "you", f"set the mode to {mode_word(event.rule)}"
        case PauseSet():
            return "you", "paused the search" if event.paused else "let the search go on"
        case BudgetSet():
            return "you", f"set the budget to {event.text}"
        case AgentMessage():
            return event.agent, event.text.split("\n", 1)[0]
        case SearchEnded():
            return "engine", f"search ended: {event.reason}"
        case _:
            return "engine", type(event).__name__
