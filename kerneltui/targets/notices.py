"""What a target has to tell the user at once: somebody else on the devices, one that is given up, a wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Notice", "Notices"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user.

    Attributes:
        text: The line.
        passing: True for what is over soon, such as a wait: it is shown, and not kept in the session.
    """

    text: str
    passing: bool = False


class Notices:
    """Hands notices to whoever listens; until somebody does they are kept. From any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._kept: list[Notice] = []
        self._hear: Callable[[Notice], None] | None = None

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Tells `hear` what was said until now, and from now on everything; the one before no more."""
        with self._changing:
            self._hear, kept, self._kept = hear, self._kept, []
            for notice in kept:
                hear(notice)

    def say(self, text: str, *, passing: bool = False) -> None:
        """Says a line."""
        notice = Notice(text, passing)
        with self._changing:
            if self._hear is None:
                self._kept.append(notice)
            else:
                self._hear(notice)
