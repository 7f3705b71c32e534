"""Events by which the human steers the search: messages, constraints, lab notes, the choice of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kerneltui.model.record import LATER

__all__ = [
    "ConstraintKind",
    "ConstraintSet",
    "ModelChosen",
    "NotesWritten",
    "SteerDelivered",
    "Steered",
]


class ConstraintKind(StrEnum):
    """What the human can ask of the search."""

    PIN = "pin"
    BAN = "ban"
    FORCE = "force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """The human sent a message to an agent (`fast`, `slow` or `all`)."""

    at: int
    number: int
    to: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerDelivered:
    """An agent took a message, and answers."""

    at: int
    number: int
    agent: str
    answer: str
    candidate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSet:
    """A constraint on the search: pin a candidate as parent, ban or force a value; or lift it."""

    at: int
    kind: ConstraintKind
    field: str
    value: str
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NotesWritten:
    """The human or an agent wrote the lab notes; every candidate from then on has them in its tree.

    `results` are the candidates whose results a model was told of when it wrote them.
    """

    at: int
    text: str
    by: str = field(default="human", metadata=LATER)
    results: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"{self.by} wrote the lab notes, {len(self.text.splitlines())} lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChosen:
    """The human named another model for a role, from its next call on."""

    at: int
    role: str
    model: str

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"model of {self.role}: {self.model}"
