"""How quantities are written, wherever they are shown."""

from __future__ import annotations

__all__ = ["milliseconds"]


def milliseconds(time_ns: int | float) -> str:
    """Returns a time in milliseconds with four significant digits, at most: `12.34`, `0.0821`."""
    value = time_ns / 1e6
    if value >= 1000:
        return f"{value:.0f}"
    if value >= 100:
        return f"{value:.1f}"
    if value >= 10:
        return f"{value:.2f}"
    if value >= 1:
        return f"{value:.3f}"
    return f"{value:.4f}"
