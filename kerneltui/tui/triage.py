"""Triage: many decisions by a rule that the user states, as ordinary ones that can be undone one by one.

The rule is read and applied here, on what the terminal shows; the engine gets a command for each
candidate, bound to its commit, with a note that names the rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kerneltui.model.candidate import Candidate, CandidateState
from kerneltui.model.command import Accept, Reject
from kerneltui.model.state import State
from kerneltui.model.statistics import Verdict

__all__ = ["RULES", "Rule", "RuleError", "chosen", "commands", "parse_rule"]

RULES = (
    "reject slower",
    "reject unclear",
    "reject unclear older than 20",
    "reject stale",
    "reject quarantined",
    "accept best",
)
"""What can be said, as examples; `older than N` fits every rejection."""

_OLDER = re.compile(r"\s+older\s+than\s+(\d+)$")
_WAITING = (CandidateState.PEND, CandidateState.STALE, CandidateState.QUAR)


class RuleError(Exception):
    """The text is no rule; one line for the user."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is decided: `what` is slower, unclear, stale, quarantined, or best (which accepts).

    `older` asks that so many candidates were proposed after it.
    """

    what: str
    older: int = 0

    @property
    def accepts(self) -> bool:
        """Whether it accepts one rather than rejecting many."""
        return self.what == "best"

    @property
    def text(self) -> str:
        """The rule in words, for the note."""
        if self.accepts:
            return "accept best"
        return f"reject {self.what}" + (f" older than {self.older}" if self.older else "")


def parse_rule(text: str) -> Rule:
    """Reads a rule.

    Raises:
        RuleError: It is none.
    """
    words = " ".join(text.lower().split())
    older = _OLDER.search(words)
    if older:
        words = words[: older.start()]
    verb, _, what = words.partition(" ")
    what = what.removeprefix("all ")
    if verb == "accept" and what in ("best", "best faster") and not older:
        return Rule("best")
    if verb == "reject" and what in ("slower", "unclear", "stale", "quarantined"):
        return Rule(what, int(older.group(1)) if older else 0)
    raise RuleError(f"'{text.strip()}' is no rule; up and down show what can be said")


def chosen(state: State, rule: Rule, among: Sequence[str]) -> Sequence[Candidate]:
    """Returns the candidates that a rule decides, of those named; only what waits for a decision."""
    order = {id_: index for index, id_ in enumerate(state.candidates)}
    found = [
        candidate
        for id_ in among
        if (candidate := state.candidates.get(id_)) is not None
        and state.state_of(id_) in _WAITING
        and len(order) - 1 - order[id_] >= rule.older
        and _fits(state, rule, candidate)
    ]
    if rule.accepts:
        found.sort(key=lambda c: c.measurement.geomean.estimate if c.measurement else 0.0)
        return found[:1]
    return found


def _fits(state: State, rule: Rule, candidate: Candidate) -> bool:
    word = state.state_of(candidate.id)
    measured = candidate.measurement
    if measured is None:
        return False
    match rule.what:
        case "best":
            return word is CandidateState.PEND and measured.acceptable_by_rule
        case "stale":
            return word is CandidateState.STALE
        case "quarantined":
            return word is CandidateState.QUAR
        case _:
            # A verdict against an older main says nothing about this one, so STALE is a rule of its own.
            verdict = Verdict.SLOWER if rule.what == "slower" else Verdict.UNCLEAR
            return word is CandidateState.PEND and measured.verdict is verdict


def commands(rule: Rule, candidates: Sequence[Candidate]) -> Sequence[Accept | Reject]:
    """Returns the decisions, each bound to the commit that was shown."""
    note = f"triage: {rule.text}"
    kind = Accept if rule.accepts else Reject
    return [kind(candidate.id, candidate.sha, note=note) for candidate in candidates]
