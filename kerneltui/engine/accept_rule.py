"""The rule `auto`: which measured candidates are accepted without the human, and why others are not."""

from __future__ import annotations

from kerneltui.engine import decisions
from kerneltui.engine.recorder import Recorder
from kerneltui.model.candidate import AgentName, Candidate, CandidateState
from kerneltui.model.command import Accept, Reject
from kerneltui.model.event import AcceptRule
from kerneltui.model.statistics import Verdict

__all__ = ["apply_rule", "rule_verdict"]


def apply_rule(recorder: Recorder, identifier: str) -> bool:
    """Decides a measured candidate if the session's rule is to; True if it was put on main.

    What the human made waits for the human.
    """
    state = recorder.state
    candidate = state.candidates[identifier]
    if state.rule is not AcceptRule.AUTO or candidate.agent is AgentName.HUMAN:
        return False
    if state.state_of(identifier) is not CandidateState.PEND:
        return False
    if _accepts(candidate, state.incumbent):
        decisions.accept(recorder, Accept(identifier, candidate.sha, by="rule"))
        return True
    note = rule_verdict(candidate)
    decisions.reject(recorder, Reject(identifier, candidate.sha, note=note, by="rule"))
    return False


def _accepts(candidate: Candidate, incumbent: str) -> bool:
    """Whether it is confirmed FASTER against main, no shape SLOWER, no doubt."""
    measurement = candidate.measurement
    return (
        measurement is not None
        and measurement.against == incumbent
        and measurement.acceptable_by_rule
    )


def rule_verdict(candidate: Candidate) -> str:
    """Returns why the rule turns a measured candidate down, in percent faster."""
    measurement = candidate.measurement
    if measurement is None:
        return "not measured"
    faster, low, high = ((ratio - 1) * 100 for ratio in measurement.geomean.ratio())
    found = f"{measurement.verdict} {faster:+.1f}% [{low:+.1f}, {high:+.1f}]"
    if measurement.verdict is Verdict.FASTER and measurement.slower_shapes:
        return f"{found}, but slower on {', '.join(measurement.slower_shapes)}"
    return found
