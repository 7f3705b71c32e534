"""Attempts of agents that came to nothing, and the candidates that islands take over from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kerneltui.model.agent_event import Migrated, ProposalFailed
from kerneltui.model.candidate import Candidate
from kerneltui.model.errors import RecordError

__all__ = [
    "BarrenAttempt",
    "barren_after",
    "failed_again",
    "migrate",
    "speaker",
    "without",
    "woken",
]


@dataclass(frozen=True, slots=True)
class BarrenAttempt:
    """An attempt that gave no kernel: when, which arm of the slow path made it, the calls that it took."""

    at: int
    arm: str
    calls: tuple[int, ...]


def speaker(agent: str, arm: str) -> str:
    """Under which name attempts in a row are counted: models of the slow path each for themselves."""
    return f"{agent} {arm}" if arm else agent


def barren_after(
    barren: tuple[BarrenAttempt, ...], event: ProposalFailed
) -> tuple[BarrenAttempt, ...]:
    """The attempts of arms after one more came to nothing."""
    if not event.arm:
        return barren
    return (*barren, BarrenAttempt(event.at, event.arm, event.calls))


def failed_again(fruitless: Mapping[str, int], event: ProposalFailed) -> dict[str, int]:
    """Attempts in a row that gave no proposal, after one more; one that was cut short is none."""
    if event.blameless:
        return dict(fruitless)
    name = speaker(event.agent, event.arm)
    return {**fruitless, name: fruitless.get(name, 0) + 1}


def without(fruitless: Mapping[str, int], agent: str, arm: str) -> dict[str, int]:
    """The same after a proposal."""
    name = speaker(agent, arm)
    return {key: count for key, count in fruitless.items() if key != name}


def woken(fruitless: Mapping[str, int], role: str, models: str) -> dict[str, int]:
    """The same after the human has named other models, with blanks between, for a role."""
    begin_anew = {role, *(speaker(role, model) for model in models.split())}
    return {key: count for key, count in fruitless.items() if key not in begin_anew}


def migrate(candidates: dict[str, Candidate], event: Migrated) -> None:
    """Makes candidates guests on islands.

    Raises:
        RecordError: One of them was never proposed, so the journal is broken.
    """
    for move in event.moves:
        old = candidates.get(move.candidate)
        if old is None:
            raise RecordError(f"'{move.candidate}' migrates and was never proposed")
        guest_of = tuple(sorted({*old.guest_of, *move.to}))
        candidates[move.candidate] = replace(old, guest_of=guest_of)
