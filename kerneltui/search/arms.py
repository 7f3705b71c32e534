"""The pulls of the slow path's arms, as the history tells of them: what each proposal gained and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kerneltui.model.candidate import Candidate, Phase
from kerneltui.model.state import State
from kerneltui.search.bandit import Pull

__all__ = ["OFFLINE", "PLANNED", "pulls_of", "slot_micro_usd"]

OFFLINE = "offline"
"""The arm that is no model: the search over declared choices."""

PLANNED = 40
"""Candidates of a session whose number is not limited."""


def pulls_of(state: State, waiting: Iterable[tuple[str, tuple[int, ...]]] = ()) -> list[Pull]:
    """Returns all pulls, oldest first: candidates of an arm, and attempts that gave none.

    `waiting` are arm and calls of proposals that the history does not have yet.
    """
    pulls = [
        (
            candidate.proposed_at,
            Pull(candidate.arm, _gain(candidate, state), _paid(state, candidate.calls)),
        )
        for candidate in state.candidates.values()
        if candidate.arm
    ]
    pulls += [
        (attempt.at, Pull(attempt.arm, 0.0, _paid(state, attempt.calls)))
        for attempt in state.barren
    ]
    known = [pull for _, pull in sorted(pulls, key=lambda entry: entry[0])]
    return known + [Pull(arm, None, _paid(state, calls)) for arm, calls in waiting]


def slot_micro_usd(state: State) -> float | None:
    """Returns the money that is worth as much as one evaluation; None where money is not limited.

    A pull takes one of the candidates and some of the money: both are shares of what the session may use.
    """
    if not state.budget_micro_usd:
        return None
    return state.budget_micro_usd / max(state.budget_candidates or PLANNED, 1)


def _gain(candidate: Candidate, state: State) -> float | None:
    """The log of the best parent's time over the candidate's, if it is beyond the noise; None: not known."""
    if candidate.phase is Phase.FAILED:
        return None if candidate.harness_fault else 0.0
    measurement = candidate.measurement
    if candidate.phase is not Phase.MEASURED or measurement is None:
        return None
    if measurement.quarantine:
        return 0.0
    parents = [state.candidates[name].measurement for name in candidate.parents]
    # What was never measured is the seed: about the reference.
    best = max((found.ratio if found else 1.0 for found in parents), default=1.0)
    gain = math.log(measurement.ratio / best)
    return gain if gain > state.delta else 0.0


def _paid(state: State, calls: tuple[int, ...]) -> int | None:
    spent = state.spent(calls)
    return None if spent.unpriced else spent.micro_usd
