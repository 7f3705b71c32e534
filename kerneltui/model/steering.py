"""What the human asked of the agents and what came of it, as folded from events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kerneltui.model.record import LATER
from kerneltui.model.steer_event import ConstraintKind, ConstraintSet, SteerDelivered

__all__ = ["GOAL", "Constraint", "Message", "SteerRecord", "constrained", "delivered", "goal_of"]

GOAL = "goal: "
"""How a message to all begins that stays in force until another one replaces it."""


@dataclass(frozen=True, slots=True)
class SteerRecord:
    """A message of the human and what became of it.

    `delivered_to` names who took it; a message to all that two agents took has both names, the later one
    last, as `candidate` is that of the later one.
    """

    number: int
    to: str
    text: str
    at: int
    delivered_to: str = ""
    candidate: str = ""
    answer: str = ""

    def waits_for(self, agent: str) -> bool:
        """Whether it is for an agent that did not take it yet."""
        return self.to in ("all", agent) and agent not in self.delivered_to.split()

    @property
    def is_goal(self) -> bool:
        """Whether it states a goal for all agents."""
        return self.to == "all" and self.text.startswith(GOAL.rstrip())


@dataclass(frozen=True, slots=True)
class Constraint:
    """An active constraint on the search."""

    kind: ConstraintKind
    field: str
    value: str


@dataclass(frozen=True, slots=True)
class Message:
    """What an agent said, and lines that stand behind it."""

    at: int
    agent: str
    text: str
    detail: str = field(default="", metadata=LATER)


def delivered(steers: tuple[SteerRecord, ...], event: SteerDelivered) -> tuple[SteerRecord, ...]:
    """The messages after one was delivered."""
    return tuple(
        replace(
            record,
            delivered_to=f"{record.delivered_to} {event.agent}".strip(),
            candidate=event.candidate or record.candidate,
            answer=_joined(record.answer, event.answer),
        )
        if record.number == event.number
        else record
        for record in steers
    )


def _joined(earlier: str, answer: str) -> str:
    """Both answers, the earlier one in the first line."""
    return f"{' '.join(earlier.split())}\n{answer}" if earlier else answer


def constrained(
    constraints: tuple[Constraint, ...], event: ConstraintSet
) -> tuple[Constraint, ...]:
    """The constraints after one was set or lifted: one pin at most, one forced value for a field."""
    constraint = Constraint(event.kind, event.field, event.value)
    others = [c for c in constraints if c != constraint]
    if event.active and event.kind is ConstraintKind.PIN:
        others = [c for c in others if c.kind is not ConstraintKind.PIN]
    if event.active and event.kind is ConstraintKind.FORCE:
        others = [c for c in others if (c.kind, c.field) != (event.kind, event.field)]
    return (*others, constraint) if event.active else tuple(others)


def goal_of(steers: tuple[SteerRecord, ...]) -> str:
    """The goal in force: that of the newest message to all that states one; empty if it lifts it."""
    for steer in reversed(steers):
        if steer.is_goal:
            return steer.text.removeprefix(GOAL.rstrip()).strip()
    return ""
