"""What the fast path leaves behind: how far it came, what failed and why, and what it knew of the problem."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kerneltui.agents.fast_path import landing_point, passed
from kerneltui.agents.news import HandOver
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import phrase
from kerneltui.agents.unknown_model import unknown_model
from kerneltui.model.candidate import AgentName, Candidate, Phase
from kerneltui.model.state import State

__all__ = [
    "GRAPH",
    "MOST_FRUITLESS",
    "MOST_REPAIRS",
    "failures",
    "gave_up",
    "graph_of",
    "hand_over",
    "handed_over_text",
]

MOST_REPAIRS = 20
MOST_FRUITLESS = 5
"""Attempts in a row without a proposal, after which an agent rests."""
GRAPH = "communication: "
"""How the message begins that tells the human of the communication graph."""
_DIRECTIVE = "; first directive: "
_MOST_FAILURES = 20
_MOST_DIAGNOSES = 3
_REASON_CHARACTERS = 240
_DIAGNOSIS_CHARACTERS = 600
_DIAGNOSED = re.compile(r"^c\d+: ")


def graph_of(state: State) -> tuple[str, str]:
    """The communication graph and the first directive, as the human was told of them; empty without."""
    for message in reversed(state.messages):
        if message.agent == AgentName.FAST and message.text.startswith(GRAPH):
            graph, _, directive = message.text.removeprefix(GRAPH).rpartition(_DIRECTIVE)
            return graph, directive
    return "", ""


def failures(view: SearchView) -> list[Candidate]:
    """The failed kernels of the fast path, oldest first; those that the harness failed are none of them."""
    mine = [c for c in view.state.candidates.values() if c.agent is AgentName.FAST]
    return [c for c in mine if c.phase is Phase.FAILED and not c.harness_fault]


def gave_up(view: SearchView) -> bool:
    """Whether the fast path has used all repairs, or nothing comes of its attempts."""
    fruitless = view.state.fruitless.get(str(AgentName.FAST), 0)
    if fruitless >= MOST_FRUITLESS or unknown_model(view.state, AgentName.FAST):
        return True
    return len(failures(view)) >= MOST_REPAIRS


def hand_over(view: SearchView) -> HandOver | None:
    """Returns what is handed over, if the time has come and it was not told yet."""
    landed = landing_point(view)
    if view.state.ranks == 1 or (landed is None and not gave_up(view)):
        return None
    told = view.state.handover
    if told is not None and (told.candidate or landed is None):
        return None
    return HandOver(AgentName.FAST, landed.id if landed is not None else "", _text(view, landed))


def handed_over_text(view: SearchView, notes: str) -> str:
    """What other questions are told of it: nothing where the lab notes still have it word for word.

    What is about to be told counts, since the first question of the slow path may come before that.
    """
    told = hand_over(view) or view.state.handover
    return "" if told is None or told.text in notes else told.text


def _text(view: SearchView, landed: Candidate | None) -> str:
    state = view.state
    mine = [c for c in state.candidates.values() if c.agent is AgentName.FAST]
    failed = failures(view)
    through = [c for c in mine if passed(c)]
    if landed is not None:
        count = _count(len(failed), "failed attempt")
        head = phrase("landed", id=landed.id, reason=landed.reason, failed=count)
    else:
        fruitless = state.fruitless.get(str(AgentName.FAST), 0)
        count = _count(len(failed), "attempt")
        head = phrase("not_landed", failed=count, fruitless=fruitless)
    graph, directive = graph_of(state)
    in_force = next((c.directive for c in [landed, *reversed(mine)] if c and c.directive), None)
    lines = [head]
    if graph:
        lines.append(phrase("graph", graph=graph))
    if in_force is not None:
        lines.append(phrase("in_force", directive=in_force.summary()))
    elif directive:
        lines.append(phrase("never_written", directive=directive))
    if through:
        lines.append(phrase("passed"))
        lines += [f"- {c.id}, {c.reason}{_measured(c)}" for c in through]
    if failed:
        lines.append(phrase("failed"))
        lines += [_failure(c) for c in failed[-_MOST_FAILURES:]]
    diagnoses = _diagnoses(state, {c.id for c in failed})
    if diagnoses:
        lines.append(phrase("diagnosed"))
        lines += [f"- {text}" for text in diagnoses]
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _measured(candidate: Candidate) -> str:
    found = candidate.measurement
    return f": {found.ratio:.3f}x the best baseline" if found is not None else ""


def _failure(candidate: Candidate) -> str:
    failure = candidate.failure
    why = f"in {failure.stage} ({failure.kind}): {failure.reason}" if failure else "no reason"
    lint = f"; lint: {candidate.findings[0]}" if candidate.findings else ""
    return f"- {candidate.id}, {candidate.reason}: {why}{lint}"[:_REASON_CHARACTERS]


def _diagnoses(state: State, failed: set[str]) -> Sequence[str]:
    """The last ones; that of the last failure was not followed by a kernel that passes."""
    said = [
        " ".join(message.text.split())[:_DIAGNOSIS_CHARACTERS]
        for message in state.messages
        if message.agent == AgentName.FAST
        and _DIAGNOSED.match(message.text)
        and message.text.partition(":")[0] in failed
    ]
    return said[-_MOST_DIAGNOSES:]
