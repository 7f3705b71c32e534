"""Candidates that wait for their evaluation: in which order, and who is measured once more."""

from __future__ import annotations

from collections import deque

from kerneltui.model.candidate import CandidateState
from kerneltui.model.state import State
from kerneltui.model.statistics import Verdict

__all__ = ["Waiting"]

_CLEARLY_WORSE = 0.97
"""A ratio to the reference below so much of the incumbent's needs no second look."""


class Waiting:
    """The candidates that wait, each with whether it was measured before."""

    def __init__(self) -> None:
        self._entries: deque[tuple[str, bool]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._entries)

    @property
    def candidates(self) -> set[str]:
        """Who waits."""
        return {candidate for candidate, _ in self._entries}

    def add(self, candidate: str, *, rebench: bool, first: bool = False) -> None:
        """Has a candidate wait, unless it does already."""
        entry = (candidate, rebench)
        if entry in self._entries:
            return
        if first:
            self._entries.appendleft(entry)
        else:
            self._entries.append(entry)

    def add_stale(self, state: State) -> None:
        """Has all wait that were measured against an old main and may still be better than the new one."""
        for candidate in list(state.candidates):
            if state.state_of(candidate) is CandidateState.STALE:
                self.add_if_worth(state, candidate)

    def add_if_worth(self, state: State, candidate: str) -> None:
        """Has a candidate wait that may be better than the incumbent, by what was measured of both."""
        measurement = state.candidates[candidate].measurement
        incumbent = state.candidates[state.incumbent].measurement
        if measurement is None or measurement.verdict is Verdict.SLOWER:
            return
        # Both ratios are against the reference, so they can be compared.
        if incumbent is not None and measurement.ratio < _CLEARLY_WORSE * incumbent.ratio:
            return
        self.add(candidate, rebench=True)

    def next(self) -> tuple[str, bool]:
        """Takes out who comes next, and whether it was measured before.

        Raises:
            IndexError: If nobody waits.
        """
        return self._entries.popleft()
