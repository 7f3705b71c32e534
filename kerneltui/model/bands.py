"""Bands of problem sizes by their operations: what holds for small ones need not for large ones."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["BANDS", "Band", "band_of"]

_EDGES = (25, 29, 33, 37, 40)
"""Powers of two of operations: for a product they are M N K of 2^24, 2^28, 2^32, 2^36 and 2^39."""


@dataclass(frozen=True, slots=True)
class Band:
    """Problems of so many operations.

    Attributes:
        low: Power of two from which it begins, or None.
        high: Power of two below which it ends, or None.
    """

    low: int | None
    high: int | None

    @property
    def name(self) -> str:
        """For a table."""
        if self.low is None:
            return f"< 2^{self.high} FLOP"
        if self.high is None:
            return f">= 2^{self.low} FLOP"
        return f"2^{self.low}-{self.high} FLOP"


BANDS = tuple(Band(low, high) for low, high in zip((None, *_EDGES), (*_EDGES, None), strict=True))
"""All bands, least work first."""


def band_of(flops: float) -> Band:
    """Returns the band of a problem of so many operations."""
    return BANDS[bisect_right([2.0**edge for edge in _EDGES], flops)]
