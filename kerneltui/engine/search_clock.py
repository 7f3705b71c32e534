"""How long a search has run, over all sittings: what a budget of time is held against.

Time counts while an engine runs and the search is neither paused nor over. Of earlier sittings the journal
tells: of each it counts up to its last event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kerneltui.engine.opening import read_events
from kerneltui.engine.recorder import Recorder
from kerneltui.model.event import Event, SessionResumed
from kerneltui.model.state import State

__all__ = ["SearchClock", "sittings"]


def sittings(events: Iterable[Event]) -> list[int]:
    """How long the search ran in each sitting, in nanoseconds, from the whole journal."""
    state, times = State(), [0]
    for event in events:
        if isinstance(event, SessionResumed):
            times.append(0)
        elif state.position and not (state.paused or state.ended):
            times[-1] += max(
                0, event.at - state.at
            )  # a clock of the machine may have been set back
        state.apply(event)
    return times


@dataclass(slots=True)
class SearchClock:
    """Counts the time of a search while its engine runs.

    Attributes:
        recorder: Of the session.
        now: A clock that is never set, in nanoseconds.
    """

    recorder: Recorder
    now: Callable[[], int] = time.monotonic_ns
    _looked: int = field(init=False)
    _runs: bool = field(init=False)
    _used: int = 0
    _before: int | None = None

    def __post_init__(self) -> None:
        self._looked = self.now()
        self._runs = not self.recorder.state.paused

    def look(self) -> None:
        """Counts the time since the last look; to be called at least whenever the engine's loop turns."""
        now, state = self.now(), self.recorder.state
        if self._runs:
            self._used += now - self._looked
        self._looked, self._runs = now, not (state.paused or state.ended)

    def used_ns(self) -> int:
        """The time of all sittings."""
        self.look()
        if self._before is None:  # read only where time is limited
            self._before = sum(sittings(read_events(self.recorder.session))[:-1])
        return self._before + self._used
