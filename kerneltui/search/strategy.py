"""What a strategy promises, and what it hands out.

A strategy is asked for proposals and told what became of them. Its answers depend on nothing but
its seed and what it was told (results in whatever order, pins, bans, forces, rejections), so a
strategy that is told the same story again goes on as if it had never stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kerneltui.search.parameter import Configuration, Value

__all__ = ["Move", "Proposal", "Strategy"]


class Move(StrEnum):
    """How a proposal came about."""

    START = "start"
    FILL = "fill"
    NEIGHBOUR = "neighbour"
    PAIR = "pair"
    CROSSOVER = "crossover"
    RANDOM = "random"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration that is worth an evaluation.

    Attributes:
        configuration: Valid, not banned, neither told nor handed out before.
        parent: The configuration that it was made from, if any.
        second_parent: The other one of a crossover.
        move: How it was made.
        reason: One line for the human.
    """

    configuration: Configuration
    parent: Configuration | None
    second_parent: Configuration | None
    move: Move
    reason: str


class Strategy(Protocol):
    """An ask/tell search over a space. Values are log time ratios: smaller is better."""

    def ask(self, count: int) -> list[Proposal]:
        """Proposes up to ``count`` configurations; an empty list means that the space is used up.

        What was asked for and not yet told is never proposed again.
        """
        ...

    def tell(
        self,
        configuration: Configuration,
        value: float | None,
        screened: bool = False,
        label: str = "",
    ) -> None:
        """Records a result, also one that was never asked for.

        Args:
            configuration: Legal values; the combination may lie outside the space.
            value: The log time ratio; ``None`` if it failed to build, run or verify.
            screened: The value is a rough one from a measurement that was abandoned as too slow.
            label: The candidate's name for reasons, such as ``c0012``.
        """
        ...

    def pin(self, configuration: Configuration) -> None:
        """Makes the neighbours of this configuration come next."""
        ...

    def ban(self, name: str, value: Value) -> None:
        """Never proposes this value again; refused if nothing would be left."""
        ...

    def force(self, name: str, value: Value) -> None:
        """Proposes only this value from now on; refused if nothing would be left."""
        ...

    def release(self, name: str) -> None:
        """Lifts every ban and force on a parameter."""
        ...

    def reject(self, configuration: Configuration) -> None:
        """Lowers the weight of a configuration that the human refused, and of its surroundings."""
        ...

    def best(self) -> Configuration | None:
        """Gives the best configuration so far; among ties the one nearest to the defaults."""
        ...
