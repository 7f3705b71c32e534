"""A dishonest kernel, and what must become of it."""

from __future__ import annotations

from dataclasses import dataclass

from kerneltui.model.measurement import FailureKind

__all__ = ["Cheat"]


@dataclass(frozen=True)
class Cheat:
    """A dishonest kernel, and for which reason it must be refused."""

    source: str
    kinds: tuple[FailureKind, ...]
    reason: str
