"""Which decisions can be made on what is displayed, and why not: pure rules, used by keys and palette."""

from __future__ import annotations

from dataclasses import dataclass

from kerneltui.model.candidate import CandidateState
from kerneltui.model.state import State
from kerneltui.model.statistics import Verdict
from kerneltui.tui.draw.diff import Diff
from kerneltui.tui.view import Snapshot

__all__ = [
    "GRACE_NS",
    "RULE_TEXT",
    "Displayed",
    "accept_refusal",
    "may_send",
    "needs_note",
    "reject_refusal",
]

GRACE_NS = 300_000_000

RULE_TEXT = (
    "Rule: accept a candidate without asking when its geomean over the shapes is FASTER than "
    "the incumbent, no shape is SLOWER, this is confirmed over three fresh process groups, and "
    "it is not quarantined. Everything else still waits for you."
)


@dataclass(frozen=True, slots=True)
class Displayed:
    """The candidate on the screen, its diff once it is there, and since when (monotonic ns)."""

    candidate: str
    since: int
    diff: Diff | None = None
    selected: frozenset[int] = frozenset()

    @property
    def partial(self) -> tuple[int, ...] | None:
        """The selected hunks when they are fewer than all; None is the whole."""
        if self.diff is None or len(self.selected) == len(self.diff.hunks):
            return None
        return tuple(sorted(self.selected))


def _closed(snapshot: Snapshot) -> str:
    link = snapshot.link
    if link.status == "replay":
        return "a replay is read only"
    if link.status == "gone":
        return "the engine is gone; reconnect from the palette (ctrl+p)"
    if link.status == "starting":
        return "the engine is not up yet"
    if not link.writer:
        return "this terminal is read only; take over from the palette (ctrl+p)"
    return ""


def may_send(snapshot: Snapshot) -> str:
    """Returns why no command can be sent, or nothing."""
    return _closed(snapshot)


def _shown(state: State, displayed: Displayed | None, now: int) -> str:
    if displayed is None or displayed.candidate not in state.candidates:
        return "no candidate is on screen"
    if now - displayed.since < GRACE_NS:
        return f"{displayed.candidate} came on screen just now; press the key again"
    if displayed.diff is None:
        return f"the diff of {displayed.candidate} is not on screen yet"
    if displayed.diff.sha != state.candidates[displayed.candidate].sha:
        return f"{displayed.candidate} has changed since it was displayed; look at it again"
    return ""


def accept_refusal(snapshot: Snapshot, displayed: Displayed | None, now: int) -> str:
    """Returns why the displayed candidate cannot be accepted, or nothing."""
    state = snapshot.state
    refusal = _closed(snapshot) or _shown(state, displayed, now)
    if refusal or displayed is None:
        return refusal
    id_ = displayed.candidate
    word = state.state_of(id_)
    candidate = state.candidates[id_]
    partial = displayed.partial
    if partial is not None and not partial:
        return "no hunk is selected; space selects one"
    reasons = {
        CandidateState.BASE: f"{id_} is the seed of the session",
        CandidateState.BEST: f"{id_} is on main already",
        CandidateState.OK: f"{id_} was accepted earlier; z undoes a decision",
        CandidateState.REJ: f"{id_} was rejected; z undoes a decision",
        CandidateState.INT: f"{id_} was interrupted; b measures it again",
        CandidateState.STALE: (
            f"{id_} was measured against an older main; b measures it again, then it can be accepted"
        ),
    }
    if word is CandidateState.FAIL and candidate.failure:
        return f"{id_} failed in {candidate.failure.stage}: it was not verified and measured"
    if word in reasons:
        return reasons[word]
    if candidate.measurement is None:
        return f"{id_} is not measured yet"
    return ""


def reject_refusal(snapshot: Snapshot, displayed: Displayed | None, now: int) -> str:
    """Returns why the displayed candidate cannot be rejected, or nothing."""
    state = snapshot.state
    refusal = _closed(snapshot) or _shown(state, displayed, now)
    if refusal or displayed is None:
        return refusal
    word = state.state_of(displayed.candidate)
    if word in (CandidateState.PEND, CandidateState.STALE, CandidateState.QUAR):
        return ""
    if word in (CandidateState.BASE, CandidateState.BEST, CandidateState.OK):
        return f"{displayed.candidate} is part of main; z undoes a decision"
    if word in (CandidateState.REJ, CandidateState.FAIL):
        return f"{displayed.candidate} is {word} already"
    return f"{displayed.candidate} is still {word}; wait for its measurement"


def needs_note(snapshot: Snapshot, displayed: Displayed) -> str:
    """Returns why accepting needs a note from the human, or nothing.

    A part of the hunks is measured again as a new candidate, so nothing is accepted yet.
    """
    measurement = snapshot.state.candidates[displayed.candidate].measurement
    if measurement is None or displayed.partial is not None:
        return ""
    if measurement.quarantine:
        return f"it is quarantined: {measurement.quarantine}"
    if measurement.verdict is not Verdict.FASTER:
        return f"it is {measurement.verdict} against the incumbent"
    return ""
