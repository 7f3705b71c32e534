"""How the terminal ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quit"]


@dataclass(frozen=True, slots=True)
class Quit:
    """How the terminal ended.

    Attributes:
        stop_engine: The user wants the engine stopped; the command was sent if the link was up.
        exit_code: What the process should return.
        message: One line for the user, or nothing.
    """

    stop_engine: bool = False
    exit_code: int = 0
    message: str = ""
