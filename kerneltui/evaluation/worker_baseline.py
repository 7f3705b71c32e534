"""A trusted implementation that is set up in a rank, and what it wants the engine to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BaselineCall", "PreparedBaseline"]

BaselineCall = Callable[[int], None]
"""Does one call of a trusted implementation on a buffer set."""


def _nothing() -> Mapping[str, Any]:
    return {}


def _no_end() -> None:
    return None


@dataclass(frozen=True, slots=True)
class PreparedBaseline:
    """What a trusted implementation gives back when it is set up.

    Attributes:
        call: Does one call; called through Python. Or
        native: address of a function like a kernel's `run`, and its state: called from C, as kernels are.
        filled: Told, outside of all timing, which buffer sets have new inputs. For what a user of the
            library would have ready, such as an operand in another layout. It is in the baseline's favour.
        choose: Takes another of its `choices`, the fastest of which is found out by timing.
        choices: How many there are; the first is what it thinks the best.
        note: For the record: what it is, and of each choice what that is.
        end: Gives back what it took.
        kept: What must live as long as it does, such as the state of `native`.
    """

    call: BaselineCall | None = None
    native: tuple[int, int] | None = None
    filled: Callable[[Sequence[int]], None] | None = None
    choose: Callable[[int], None] | None = None
    choices: int = 0
    note: Mapping[str, Any] = field(default_factory=_nothing)
    end: Callable[[], None] = _no_end
    kept: object = None

    @property
    def facts(self) -> dict[str, Any]:
        """What goes to the engine."""
        return {
            "note": dict(self.note),
            "choices": self.choices,
            "wants_fills": self.filled is not None,
            "from_python": self.native is None,
        }
