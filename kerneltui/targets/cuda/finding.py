"""What a check of device code has to say, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "one_line"]


class Level(StrEnum):
    """What follows from a finding."""

    BLOCK = "block"
    """It is not launched."""
    ERROR = "error"
    """It is not benchmarked."""
    WARN = "warn"
    """It is shown beside the code, and given back to the agent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        rule: Its id, such as "L01".
        level: What follows.
        line: Line of the source, from 1; 0 if it has none (a symbol, the launch).
        text: One line: what is there, and what to do about it.
    """

    rule: str
    level: Level
    line: int
    text: str


def one_line(finding: Finding, file: str = "kernel.cu") -> str:
    """A finding as a compiler would print it."""
    place = f"{file}:{finding.line}: " if finding.line else f"{file}: "
    return f"{place}{finding.level}: {finding.rule}: {finding.text}"
