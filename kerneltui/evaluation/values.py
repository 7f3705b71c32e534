"""What the judge is asked for: value classes of inputs, and what it found. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

__all__ = ["Fault", "FaultKind", "Report", "ValueClass"]


class ValueClass(StrEnum):
    """How inputs are drawn. Each class shows a kind of mistake that the others hide."""

    NATURAL = "natural"
    """As the workload declares, N(0,1) by default: the class that is timed."""
    UNIFORM = "uniform"
    """Uniform in [0,1): nothing cancels, so a missing part of a sum stands out."""
    EXACT = "exact"
    """Zeros and ones: every sum is exact, so the output must match bit for bit."""
    WIDE = "wide"
    """Both signs, magnitudes from 2^-14 to 2^4: shows a narrow exponent."""
    LARGE_ROWS = "large_rows"
    """Rows of the first input up to 2^10 larger than others: shows a tolerance that hides rows."""
    SPIKE = "spike"
    """One large element in each row of the first input: shows a dropped slice of the reduction."""


class FaultKind(StrEnum):
    """What is wrong with the memory of a group after a call."""

    VALUE = "value"
    NOT_FINITE = "not_finite"
    INACCURATE = "inaccurate"
    INPUT_CHANGED = "input_changed"
    GUARD_BROKEN = "guard_broken"
    NOT_REPEATABLE = "not_repeatable"


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: rank, buffer set, what, in one readable line."""

    kind: FaultKind
    rank: int
    buffer_set: int
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What the judge found in the memory of a group.

    Attributes:
        faults: Nothing here means that all is well.
        error: Largest error of an element, as a share of what the tolerance allows.
        library_share: RMS error, as a share of what is allowed against the vendor library.
        digests: A digest of the outputs for every checked set; equal bits give equal digests.
    """

    faults: tuple[Fault, ...]
    error: float
    library_share: float
    digests: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    @property
    def reason(self) -> str:
        """The first finding as one line, with the number of the others."""
        if not self.faults:
            return "matches"
        more = len(self.faults) - 1
        return self.faults[0].text + (f" (and {more} more findings)" if more else "")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what the judge sent."""
        return cls(
            faults=tuple(
                Fault(FaultKind(f["kind"]), f["rank"], f["buffer_set"], f["text"])
                for f in data["faults"]
            ),
            error=float(data["error"]),
            library_share=float(data["library_share"]),
            digests=tuple(data["digests"]),
        )
