r"""The text that edits are held against: lines without their ends, editable places, offsets.

Everything is counted on the text with `\n` at line ends; only `Page.write` knows the ends that the file
really has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from kerneltui.model.kernel import Kernel

__all__ = ["Change", "Page", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Lines that may be changed: [first, end), counted from 0."""

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Characters [start, end) of the page become the text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """A kernel text as the matcher sees it."""

    source: str
    text: str
    lines: tuple[str, ...]
    starts: tuple[int, ...]
    """Where each line starts, and as the last entry where the text ends, were it to end in a newline."""
    places: tuple[Place, ...]
    whole: bool
    """Whether the one place is the whole file."""
    _returns: tuple[int, ...]
    """Where in `text` the newlines stand that have a carriage return in front."""

    @classmethod
    def of(cls, kernel: Kernel, *, whole_file: bool = False) -> Self:
        """Reads a kernel; with `whole_file` all of it may be changed."""
        lines: list[str] = []
        starts = [0]
        returns: list[int] = []
        parts = kernel.source.split("\n")
        for index, line in enumerate(parts, start=1):
            # a carriage return that no newline follows is a character like others
            bare = line.removesuffix("\r") if index < len(parts) else line
            lines.append(bare)
            starts.append(starts[-1] + len(bare) + 1)
            if bare != line:
                returns.append(starts[-1] - 1)
        places = tuple(Place(r.name, r.first - 1, r.last) for r in kernel.regions)
        if whole_file:
            places = (Place("the file", 0, len(lines)),)
        text = "\n".join(lines)
        return cls(
            kernel.source, text, tuple(lines), tuple(starts), places, whole_file, tuple(returns)
        )

    @property
    def newline(self) -> str:
        """The end that new lines get: what most lines have."""
        return "\r\n" if 2 * len(self._returns) > len(self.lines) - 1 else "\n"

    def line_at(self, offset: int) -> int:
        """The line, counted from 0, in which an offset is."""
        return min(bisect_right(self.starts, offset) - 1, len(self.lines) - 1)

    def place_of(self, change: Change) -> Place | None:
        """The one place that holds a change entirely; at an edge, insertions of lines are inside."""
        lines = change.text.endswith("\n") or (not change.text and change.start in self.starts)
        for place in self.places:
            first, end = self.starts[place.first], self.starts[place.end]
            if first <= change.start and (change.end < end or (change.end == end and lines)):
                return place
        return None

    def place_at(self, line: int) -> Place | None:
        """The place that a line belongs to."""
        return next((place for place in self.places if place.first <= line < place.end), None)

    def write(self, changes: Iterable[Change]) -> str:
        """Returns the source with changes that do not overlap; other characters stay as they are."""
        parts: list[str] = []
        done = 0
        for change in sorted(changes):
            parts.append(self.source[self._real(done) : self._real(change.start)])
            parts.append(change.text.replace("\n", self.newline))
            done = change.end
        parts.append(self.source[self._real(done) :])
        return "".join(parts)

    def _real(self, offset: int) -> int:
        return offset + bisect_left(self._returns, offset)
