"""`kerneltui tune`: the engine without a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.headless.output import Exit, emit, say, table
from kerneltui.model.candidate import Candidate
from kerneltui.model.command import Progress
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    Calibrated,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    Decided,
    Event,
    SearchEnded,
    encode_event,
)
from kerneltui.model.record import parse_json
from kerneltui.model.state import State
from kerneltui.model.units import milliseconds

__all__ = ["tune"]


def tune(place: Place, start: Start, *, as_json: bool) -> int:
    """Tunes until the budget is used or the user stops it; returns the exit code."""
    narrator = _Narrator(as_json, f"session {place.session}")
    setup = EngineSetup(
        place=place,
        start=start,
        options=Options(undecided=None, leave_when_done=True),
        make_evaluator=make_evaluator,
        renew=True,
        on_event=narrator.event,
        on_progress=narrator.progress,
    )
    state, reason, failure = run_engine(setup)
    if failure is not None:
        say(f"{state.workload} was not tuned: {failure}")
        return Exit.REFUSED
    if as_json:
        emit(_summary(state, reason))
    else:
        print(_result_table(state))
    say(f"{reason}; see it again with: kerneltui open {place.session}")
    if reason in ("interrupted", "terminated"):
        return Exit.INTERRUPTED
    if start.rule is AcceptRule.AUTO and state.incumbent == state.base:
        return Exit.NOTHING_ACCEPTED
    return Exit.FINISHED


@dataclass(slots=True)
class _Narrator:
    """Tells what happens: JSON lines of the events, or one readable line each, behind a first line."""

    as_json: bool
    first: str
    _last: str = ""

    def event(self, event: Event, state: State) -> None:
        """Tells an event."""
        self._begin()
        if self.as_json:
            emit(parse_json(encode_event(event)))
        text = _line(event, state)
        if text:
            say(text)

    def progress(self, progress: Progress) -> None:
        """Tells progress that is no benchmark round and no reading of a GPU."""
        self._begin()
        about = f"{progress.about}: " if progress.about else ""
        text = f"  {about}{progress.text}"
        if progress.kind not in ("round", "gpu") and text != self._last:
            self._last = text
            say(text)

    def _begin(self) -> None:
        """Tells the first line once something happens: what is refused before has no session."""
        if self.first:
            say(self.first)
            self.first = ""


def _line(event: Event, state: State) -> str:
    match event:
        case Calibrated():
            share = ", ".join(f"{s.shape} {milliseconds(s.bound_ns)} ms" for s in event.shapes)
            return f"calibrated: noise {event.aa_half_width:.2%}, delta {event.delta:.2%}; bound {share}"
        case CandidateProposed():
            return f"{event.id} {event.agent:<5} {event.reason}"
        case CandidateFailed():
            return f"{event.id} FAIL  {event.failure.stage}: {event.failure.reason}"
        case CandidateMeasured():
            return f"{event.id} {_found(state.candidates[event.id])}"
        case Decided():
            return f"{event.candidate} {event.action} by {event.by}" + (
                f" ({event.note})" if event.note else ""
            )
        case AgentMessage():
            return f"{event.agent}: {event.text}"
        case SearchEnded():
            return f"ended: {event.reason}"
        case _:
            return ""


def _found(candidate: Candidate) -> str:
    measurement = candidate.measurement
    if measurement is None:
        return ""
    gain, low, high = measurement.geomean.ratio()
    found = (
        f"{measurement.verdict:<7} {measurement.ratio:.3f}x the reference, "
        f"{gain:.3f}x [{low:.3f}, {high:.3f}] {measurement.against}, "
        f"{measurement.bound_share:.1%} of the bound"
    )
    return "\n".join([found, *(f"      ! {remark}" for remark in measurement.remarks)])


def _result_table(state: State) -> str:
    best = state.candidates[state.incumbent]
    if best.measurement is None:
        return f"nothing was accepted; {best.id} ({best.seed_file}) stays on main"
    rows = [["shape", "time ms", "reference ms", "ratio", "95% CI", "verdict", "of bound"]]
    for part in best.measurement.shapes:
        _, low, high = part.reference_interval.ratio()
        rows.append(
            [
                part.shape,
                milliseconds(part.candidate_ns),
                milliseconds(part.reference_ns),
                f"{part.ratio:.3f}x",
                f"{low:.3f}-{high:.3f}",
                str(part.verdict),
                f"{part.bound_share:.1%}",
            ]
        )
    measurement = best.measurement
    rows.append(
        [
            "geomean",
            "",
            "",
            f"{measurement.ratio:.3f}x",
            "",
            str(measurement.verdict),
            f"{measurement.bound_share:.1%}",
        ]
    )
    head = f"{best.id} {best.reason}\n"
    if best.directive is not None:
        head += f"{best.directive.summary()}\n"
    graphs = ", ".join(measurement.graph_shapes)
    tail = f"\ncalls in a CUDA graph: {graphs}" if graphs else ""
    return head + table(rows, right=frozenset({1, 2, 3, 4, 6})) + tail


def _summary(state: State, reason: str) -> dict[str, object]:
    best = state.candidates[state.incumbent]
    counts = {str(word): count for word, count in state.counts().items() if count}
    ratio = best.measurement.ratio if best.measurement else math.nan
    return {
        "summary": True,
        "session": state.session,
        "workload": state.workload,
        "reason": reason,
        "accepted": best.id if best.id != state.base else None,
        "ratio": None if math.isnan(ratio) else ratio,
        "bound_share": best.measurement.bound_share if best.measurement else None,
        "counts": counts,
    }
