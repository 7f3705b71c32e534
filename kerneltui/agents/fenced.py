"""Text that is data, between fences that nothing in it can close."""

from __future__ import annotations

import re

__all__ = ["fenced"]

_TICKS = re.compile("`{3,}")


def fenced(text: str, language: str = "") -> str:
    """Returns a text between fences longer than any in it, so that it stays as it is, to be copied from."""
    longest = max((len(run) for run in _TICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
