"""Moves new lines to the indentation that the place of an edit has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

__all__ = ["BLANKS", "Indent", "collapsed", "indent_of", "learned", "shift_between", "shifted"]

Indent = Callable[[str], str | None]
"""Returns a line with its new indentation, or None if it cannot have one."""

BLANKS = " \t"
"""Only these are spaces between tokens; a non-breaking space is a wrong character."""


def indent_of(line: str) -> str:
    """The blanks that a line begins with."""
    return line[: len(line) - len(line.lstrip(BLANKS))]


def collapsed(line: str) -> str:
    """A line with every run of blanks as one space, and none at its ends."""
    return " ".join(part for part in line.replace("\t", " ").split(" ") if part)


def shift_between(search: Sequence[str], lines: Sequence[str]) -> tuple[str, str] | None:
    """Returns what is in front of the searched lines and of the real ones, if all differ in that alone.

    One of the two is empty. None if the lines differ otherwise, or not in the same way.
    """
    found: set[tuple[str, str]] = set()
    for wanted, line in zip(search, lines, strict=True):
        if not wanted.strip(BLANKS):
            continue
        mine, real = indent_of(wanted), indent_of(line)
        if real.endswith(mine):
            found.add(("", real[: len(real) - len(mine)]))
        elif mine.endswith(real):
            found.add((mine[: len(mine) - len(real)], ""))
        else:
            return None
    return found.pop() if len(found) == 1 else None


def shifted(shift: tuple[str, str]) -> Indent:
    """Moves every line by the same blanks."""
    extra, missing = shift

    def indent(line: str) -> str | None:
        if not line.strip(BLANKS):
            return line
        return missing + line.removeprefix(extra) if line.startswith(extra) else None

    return indent


def learned(search: Sequence[str], lines: Sequence[str], *, strict: bool) -> Indent | None:
    """Learns from pairs of lines how indentation is written; other depths go in proportion.

    Args:
        search: Lines of the reply.
        lines: The real lines that they are.
        strict: Whether indentation has a meaning: then None if one depth has two counterparts.
    """
    known: dict[str, str] = {}
    for wanted, line in zip(search, lines, strict=True):
        if not wanted.strip(BLANKS):
            continue
        mine, real = indent_of(wanted), indent_of(line)
        if strict and known.get(mine, real) != real:
            return None
        known.setdefault(mine, real)
    tab = _tab(known)
    widths = {_width(mine, tab): real for mine, real in known.items()}
    order = sorted(widths)
    reals = [_width(widths[width], tab) for width in order]
    if strict and any(a >= b for a, b in itertools.pairwise(reals)):
        return None

    def indent(line: str) -> str | None:
        if not line.strip(BLANKS):
            return line
        mine = indent_of(line)
        real = known.get(mine)
        if real is None:
            real = _between(_width(mine, tab), order, widths, tab)
        return real + line[len(mine) :]

    return indent


def _between(width: int, order: Sequence[int], widths: dict[int, str], tab: int) -> str:
    """Indentation of a depth that no pair shows: from the nearest one, at the ratio of the deepest."""
    base = max((known for known in order if known <= width), default=order[0])
    deepest = order[-1]
    span = deepest - order[0]
    scale = (_width(widths[deepest], tab) - _width(widths[order[0]], tab)) / span if span else 1.0
    if scale <= 0:
        scale = 1.0
    columns = max(0, _width(widths[base], tab) + round((width - base) * scale))
    if any("\t" in real for real in widths.values()):
        return "\t" * (columns // tab) + " " * (columns % tab)
    return " " * columns


def _tab(known: dict[str, str]) -> int:
    """Columns of a tab: as many as the first pair of tabs and spaces says, else 4."""
    for mine, real in known.items():
        for tabs, spaces in ((mine, real), (real, mine)):
            if tabs and not tabs.strip("\t") and spaces and not spaces.strip(" "):
                return max(1, len(spaces) // len(tabs))
    return 4


def _width(indent: str, tab: int) -> int:
    return sum(tab if blank == "\t" else 1 for blank in indent)
