"""Decisions as folded from events."""

from __future__ import annotations

from dataclasses import dataclass

from kerneltui.model.event import Decision

__all__ = ["DecisionRecord"]


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision that stands or was taken back: the incumbent before and after it."""

    action: Decision
    candidate: str
    sha: str
    by: str
    note: str
    at: int
    incumbent_before: str
