"""Faults of the harness in a row: after some of them the search does not go on by itself."""

from __future__ import annotations

from collections.abc import Callable

from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.model.event import AgentMessage, PauseSet

__all__ = ["FaultsInARow"]

_MOST_FAULTS = 3


class FaultsInARow:
    """Counts evaluations that ended one after the other without a verdict.

    Args:
        recorder: Knows how they ended, and pauses the search.
        end: Ends the search; None where somebody is there to go on after a pause.
    """

    def __init__(self, recorder: Recorder, end: Callable[[str], None] | None) -> None:
        self._recorder = recorder
        self._end = end
        self._count = 0

    def evaluated(self, candidate: str) -> None:
        """Told of every evaluation that has ended and is recorded: pauses or ends the search."""
        known = self._recorder.state.candidates[candidate]
        self._count = self._count + 1 if known.harness_fault else 0
        if self._count < _MOST_FAULTS:
            return
        self._count = 0
        reason = known.failure.reason if known.failure is not None else ""
        text = f"{_MOST_FAULTS} faults of the harness in a row: {reason}"
        if self._end is not None:
            self._end(text)
            return
        message = AgentMessage(at=now_ns(), agent="engine", text=f"paused after {text}")
        self._recorder.record(message)
        self._recorder.record(PauseSet(at=now_ns(), paused=True))
