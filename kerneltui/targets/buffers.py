"""The buffers of a group between the processes that share them: descriptors, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kerneltui.targets.windows import GroupLayout

__all__ = ["RankFiles", "SharedMemory"]


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The three descriptors of one rank's buffers."""

    private: int
    symmetric: int
    signals: int


class SharedMemory(Protocol):
    """The buffers of a group as descriptors that ranks can map."""

    @property
    def layout(self) -> GroupLayout:
        """Where everything lies."""
        ...

    @property
    def files(self) -> tuple[RankFiles, ...]:
        """Descriptors, by rank."""
        ...

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Private, symmetric, signals of rank 0, then of rank 1, and so on."""
        ...

    def close(self) -> None:
        """Gives the descriptors back; may be called again."""
        ...
