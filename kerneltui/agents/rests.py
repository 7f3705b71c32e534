"""Models that their server wants to be left alone for a while: until when, and how that is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["Rests", "rest_text"]


def _times() -> dict[str, float]:
    return {}


@dataclass(slots=True)
class Rests:
    """Until when each model is not asked. For any thread; all agents of a session share one.

    Attributes:
        clock: Seconds since the epoch: the times are told to people, and a suspended machine counts.
    """

    clock: Callable[[], float] = time.time
    _until: dict[str, float] = field(default_factory=_times)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, model: str, milliseconds: int) -> None:
        """Lets a model rest from now on; of two times the later one counts."""
        until = self.clock() + milliseconds / 1000
        with self._guard:
            self._until[model] = max(until, self._until.get(model, until))

    def until(self, model: str, now: float | None = None) -> float | None:
        """When a model may be asked again; None if it may be now."""
        with self._guard:
            until = self._until.get(model)
        moment = self.clock() if now is None else now
        return until if until is not None and until > moment else None

    def end(self, models: Iterable[str] | None = None) -> None:
        """Ends the rest of some models, or of all: the human wants them to be asked all the same."""
        with self._guard:
            for model in list(self._until) if models is None else models:
                self._until.pop(model, None)


def rest_text(until: float, now: float) -> str:
    """Says until when an agent rests, as `rests until 14:05:20: the server asked for that`."""
    then = time.localtime(until)
    same_day = then[:3] == time.localtime(now)[:3]
    said = time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", then)
    return f"rests until {said}: the server asked for that"
