"""The time below which none is believed: what the work takes at the peak, if no library is faster."""

from __future__ import annotations

__all__ = ["believed_floor"]

_LIBRARY_FLOOR = 0.8


def believed_floor(floor_ns: int, fastest_ns: float | None) -> int:
    """Returns the floor of a shape, which a trusted library may lower, in nanoseconds.

    Args:
        floor_ns: What the work takes at the measured peak.
        fastest_ns: Shortest time of a verified baseline, or None where there is none.
    """
    if fastest_ns is None:
        return floor_ns
    # A trusted library that is faster shows that the peak was measured on a busy machine.
    return min(floor_ns, round(_LIBRARY_FLOOR * fastest_ns))
