"""Text with a bound in tokens, by its length: whole lines, from the front or from the end."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["estimate_tokens", "first_lines", "last_lines"]

_CHARACTERS_PER_TOKEN = 3.5  # of C++ and Markdown; what a server counts is in the record of a call


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return round(len(text) / _CHARACTERS_PER_TOKEN)


def first_lines(text: str, tokens: int) -> str:
    """The lines at the front that have room, and how many more there were."""
    lines = text.split("\n")
    kept = _fitting(lines, tokens)
    left = len(lines) - len(kept)
    return "\n".join([*kept, f"(and {left} more lines)"] if left else kept)


def last_lines(text: str, tokens: int) -> str:
    """The lines at the end that have room, and how many stood before them."""
    lines = text.rstrip("\n").split("\n")
    kept = _fitting(lines[::-1], tokens)[::-1]
    left = len(lines) - len(kept)
    return "\n".join([f"({left} lines before)", *kept] if left else kept)


def _fitting(lines: Sequence[str], tokens: int) -> list[str]:
    """As many lines as have room; the first one is cut rather than left out."""
    room = round(tokens * _CHARACTERS_PER_TOKEN)
    kept: list[str] = []
    for line in lines:
        if len(line) + 1 > room:
            if not kept and room > 1:
                kept.append(line[: room - 1])
            break
        kept.append(line)
        room -= len(line) + 1
    return kept
