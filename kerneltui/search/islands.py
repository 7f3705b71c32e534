"""Islands: families of candidates that evolve apart, and take over each other's best now and then.

A model that always sees the best kernel stays with its ideas. On islands several ideas live side by side
until one is clearly better. All of this follows from the history alone: candidates with the island that was
recorded with them, and migrations, which are events.

What no island made is common to all: the seed, what the fast path landed on, what the human wrote; and the
kernel on `main`, wherever it comes from. CUCo and ShinkaEvolve move candidates at random; here the best of an
island is a guest of the others, and stays at home.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from kerneltui.model.agent_event import Move
from kerneltui.model.candidate import AgentName, Candidate, DecisionKind, Phase
from kerneltui.model.directive import Backend
from kerneltui.model.state import State

__all__ = [
    "MIGRATE_EVERY",
    "home_of",
    "is_fit",
    "migration",
    "next_island",
    "possible_parents",
    "results_of",
]

MIGRATE_EVERY = 8
"""Results of islands between two migrations."""


def is_fit(candidate: Candidate) -> bool:
    """Whether a candidate can be a parent: measured, believable, and not turned down by the human."""
    if candidate.phase is not Phase.MEASURED or candidate.measurement is None:
        return False
    human = candidate.decided_by == "human"
    rejected = candidate.decision is DecisionKind.REJECTED and human
    return not rejected and not candidate.measurement.quarantine


def home_of(candidate: Candidate, islands: int) -> int:
    """Returns the island of a candidate, 0 if it is common to all: also where there are fewer islands now."""
    return candidate.island if islands > 1 and candidate.island <= islands else 0


def possible_parents(
    state: State, island: int, islands: int, *, host_seed: bool = False
) -> dict[str, float]:
    """Returns what can be a parent on an island, with its score: the log of its ratio to the reference.

    The incumbent can, too. What the host drives is left behind once there is a kernel whose ranks move data
    themselves, also if it is on `main`; one rank has nothing to move.

    Args:
        state: The history.
        island: Which; 0 stands for all of them.
        islands: How many there are.
        host_seed: Whether the host drives the seed, whose directive no event tells.
    """
    fit = [candidate for candidate in state.candidates.values() if is_fit(candidate)]
    left = _host_driven(state, host_seed) if state.ranks > 1 else frozenset[str]()
    own = [candidate for candidate in fit if candidate.id not in left]
    incumbent = state.candidates[state.incumbent]
    # On main may be one that is not fit, such as one that is too good to be true and was accepted.
    landed = bool(own) or incumbent.id not in left | {state.base}
    found: dict[str, float] = {}
    for candidate in own if landed else fit:
        home = home_of(candidate, islands)
        here = not island or home in (0, island) or island in candidate.guest_of
        if here and candidate.measurement is not None:
            found[candidate.id] = math.log(candidate.measurement.ratio)
    if found and landed and incumbent.id in left:
        return found
    known = incumbent.measurement
    lowest = min(found.values(), default=0.0)
    found.setdefault(incumbent.id, math.log(known.ratio) if known else lowest)
    return found


def next_island(state: State, islands: int, waiting: Iterable[int] = ()) -> int:
    """Returns the island whose turn it is, the one with the fewest proposals of models; 0 without islands.

    `waiting` are the islands of proposals that the history does not have yet.
    """
    if islands < 2:
        return 0
    made = Counter(waiting)
    made.update(
        candidate.island
        for candidate in state.candidates.values()
        if candidate.agent is AgentName.SLOW and candidate.calls
    )
    return min(range(1, islands + 1), key=lambda island: (made[island], island))


def results_of(state: State) -> int:
    """Counts the results of islands, also of those that there are no more: the count never goes back."""
    return sum(
        candidate.island > 0 and candidate.phase in (Phase.MEASURED, Phase.FAILED)
        for candidate in state.candidates.values()
    )


def migration(state: State, islands: int, every: int = MIGRATE_EVERY) -> Sequence[Move]:
    """Returns who becomes a guest where, or nothing while it is not time or nobody is new.

    The best of each island goes to all others; the incumbent need not, since it is everywhere.
    """
    if islands < 2 or results_of(state) - state.migrated < every:
        return ()
    moves: list[Move] = []
    for island in range(1, islands + 1):
        best = _best_of(state, island, islands)
        if best is None or best.id == state.incumbent:
            continue
        others = (other for other in range(1, islands + 1) if other != island)
        to = tuple(other for other in others if other not in best.guest_of)
        if to:
            moves.append(Move(best.id, to))
    return moves


def _host_driven(state: State, host_seed: bool) -> frozenset[str]:
    found = {
        name
        for name, candidate in state.candidates.items()
        if candidate.directive is not None and candidate.directive.backend is Backend.HOST
    }
    return frozenset(found | {state.base} if host_seed else found)


def _best_of(state: State, island: int, islands: int) -> Candidate | None:
    """The fastest that an island itself made; among equals the oldest."""
    natives = [
        candidate
        for candidate in state.candidates.values()
        if home_of(candidate, islands) == island and is_fit(candidate)
    ]
    ratio = {c.id: c.measurement.ratio for c in natives if c.measurement is not None}
    return max(natives, key=lambda candidate: ratio[candidate.id], default=None)
