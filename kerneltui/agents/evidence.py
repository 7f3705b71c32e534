"""What is known of candidates, as text for a prompt: numbers, verdicts, failures, the human's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kerneltui.agents.prompt_files import phrase
from kerneltui.model.candidate import Candidate, DecisionKind, Phase
from kerneltui.model.state import State
from kerneltui.model.winners import shape_winners

__all__ = [
    "candidate_evidence",
    "history_text",
    "limits_text",
    "rejections",
    "siblings_text",
    "steering_text",
    "winners_text",
]

_MOST_SIBLINGS = 12


def limits_text(state: State) -> str:
    """The shapes with their measured bound and best baseline, as a table."""
    lines = ["| shape | bound | limited by | best baseline |", "|---|---|---|---|"]
    for part in state.calibrations.values():
        best = next((b for b in part.baselines if b.name == part.reference), None)
        time = f"{best.time_ns / 1e6:.4f} ms" if best else "?"
        lines.append(
            f"| {part.shape} | {part.bound_ns / 1e6:.4f} ms | {part.bound_kind} "
            f"| {part.reference} {time} |"
        )
    if not state.calibrations:
        return "Nothing was measured yet."
    return "\n".join(lines)


def candidate_evidence(candidate: Candidate, state: State) -> str:
    """Directive, tunables, verdict and times of a candidate, or why it failed."""
    lines = [f"{candidate.id} ({state.state_of(candidate.id)}): {_flat(candidate.reason)}"]
    if candidate.directive is not None:
        lines.append(f"directive: {candidate.directive.summary()}")
    if candidate.configuration:
        values = ", ".join(f"{key}={value}" for key, value in candidate.configuration.items())
        lines.append(f"tunables: {values}")
    lines += [f"lint: {_flat(finding)}" for finding in candidate.findings]
    if candidate.failure is not None:
        failure = candidate.failure
        lines.append(f"failed in {failure.stage} ({failure.kind}): {_flat(failure.reason)}")
    measurement = candidate.measurement
    if measurement is not None:
        numbers = {"ratio": f"{measurement.ratio:.3f}", "share": f"{measurement.bound_share:.1%}"}
        lines.append(
            phrase("measured", verdict=measurement.verdict, against=measurement.against, **numbers)
        )
        lines += [
            "| shape | time | x best baseline | of bound | verdict |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {part.shape} | {part.candidate_ns / 1e6:.4f} ms{' (CUDA graph)' if part.graph else ''} "
            f"| {part.ratio:.3f} "
            f"| {part.bound_share:.1%} | {part.verdict} |"
            for part in measurement.shapes
        ]
    if candidate.note and candidate.decided_by == "human":
        lines.append(f"the human {candidate.decision} it: {candidate.note}")
    return "\n".join(lines)


def siblings_text(parent: str, state: State) -> str:
    """What was tried from the same parent, newest last, in a line each."""
    tried = [c for c in state.candidates.values() if parent in c.parents]
    return "\n".join(_line(candidate) for candidate in tried[-_MOST_SIBLINGS:])


def winners_text(candidate: str, state: State) -> str:
    """Who is faster than a candidate on a shape alone, in a line each; empty if nobody is."""
    lines: list[str] = []
    for winner in shape_winners(state.candidates.values(), candidate):
        gain, loss = (part.interval.ratio()[0] for part in (winner.part, winner.worst))
        shapes = {"shape": winner.part.shape, "worst": winner.worst.shape}
        who = {"id": winner.candidate.id, "reason": _flat(winner.candidate.reason)}
        lines.append(phrase("winner", gain=f"{gain:.3f}", loss=f"{loss:.3f}", **shapes, **who))
    return "\n".join([phrase("winners"), *lines]) if lines else ""


def steering_text(
    state: State, agent: str, answered: frozenset[int] = frozenset()
) -> tuple[str, tuple[int, ...]]:
    """The goal in force, the messages that wait for an agent, with their numbers, and the constraints.

    `answered` are messages that are part of another question already.
    """
    waiting = [s for s in state.steers if s.waits_for(agent) and s.number not in answered]
    lines = [f"- the goal in force: {state.goal}"] if state.goal else []
    lines += [f"- message {steer.number}: {steer.text}" for steer in waiting if not steer.is_goal]
    lines += [f"- {c.kind}: {c.field} {c.value}".rstrip() for c in state.constraints]
    return "\n".join(lines), tuple(steer.number for steer in waiting)


def history_text(candidates: Iterable[Candidate]) -> str:
    """Failures in a line each, oldest first."""
    return "\n".join(_line(candidate) for candidate in candidates) or "none"


def rejections(candidates: Sequence[Candidate]) -> str:
    """What the human turned down and why."""
    lines = [
        f"- {c.id} ({_flat(c.reason)}): {c.note}"
        for c in candidates
        if c.decision is DecisionKind.REJECTED and c.decided_by == "human" and c.note
    ]
    return "\n".join(lines)


def _line(candidate: Candidate) -> str:
    if candidate.harness_fault:
        found = "not measured, by a fault of the harness"
    elif candidate.failure is not None:
        found = f"failed in {candidate.failure.stage}: {_flat(candidate.failure.reason)}"
    elif candidate.measurement is not None:
        gain = candidate.measurement.geomean.ratio()[0]
        found = f"{candidate.measurement.verdict}, {gain:.3f}x of {candidate.measurement.against}"
    else:
        found = "not measured" if candidate.phase is not Phase.INTERRUPTED else "interrupted"
    return f"- {candidate.id} {_flat(candidate.reason)}: {found}"


def _flat(text: str) -> str:
    """One line: what a kernel or a tool says cannot begin a section."""
    return " ".join(text.split())
