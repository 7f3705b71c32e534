"""Lines for the screen: text with style names, before any widget or terminal.

Everything the panels show is made of these by pure functions. The text never passes through markup, so
`acc[i]` stays `acc[i]`, and control characters of kernels, compilers and agents never reach the
terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.content import Span as ContentSpan

__all__ = [
    "LazyLines",
    "Line",
    "Span",
    "clean",
    "content",
    "cut",
    "fit",
    "join",
    "line_width",
    "pad",
    "plain",
    "without",
    "wrap",
]

Span = tuple[str, str]
Line = tuple[Span, ...]

_TAB = 4
_BORDER_STYLES = {
    "verdict-faster": "bold $success",
    "verdict-slower": "bold $error",
    "verdict-unclear": "bold $warning",
    "state-quar": "bold $warning",
}


class LazyLines(Sequence[Line]):
    """So many lines, each drawn when it is looked at.

    Args:
        count: The number of lines.
        draw: From the index of a line to the line.
        widest: The width of the widest line in cells, when it may be wider than the view.
    """

    def __init__(self, count: int, draw: Callable[[int], Line], widest: int = 0) -> None:
        self._count = count
        self._draw = draw
        self.widest = widest

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        """Draws a line, or several."""
        if isinstance(index, slice):
            return [self._draw(i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._draw(index % self._count)


def clean(text: str) -> str:
    """Returns one line of foreign text with tabs expanded and control characters made visible."""
    if text.isprintable():
        return text
    text = text.expandtabs(_TAB)
    return "".join(part if part.isprintable() else "·" for part in text)


def plain(line: Line) -> str:
    """Returns the text of a line without styles."""
    return "".join(text for text, _ in line)


def line_width(line: Line) -> int:
    """Returns the width in terminal cells."""
    return sum(cell_len(text) for text, _ in line)


def fit(text: str, width: int) -> str:
    """Returns text of exactly `width` cells; what is cut ends in `…`."""
    if width <= 0:
        return ""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def cut(line: Line, width: int) -> Line:
    """Returns the line in at most `width` cells; what is cut ends in `…`."""
    if line_width(line) <= width:
        return line
    kept: list[Span] = []
    left = width
    for text, style in line:
        size = cell_len(text)
        if size >= left:
            # One cell is kept for the ellipsis, which a full span must give up as well.
            kept.append((fit(text + "…" if size == left else text, left), style))
            break
        kept.append((text, style))
        left -= size
    return tuple(kept)


def without(line: Line, start: int, end: int, sign: Span) -> Line:
    """Returns the line with a sign in place of its characters from `start` to `end`, if there are any."""
    if start >= end:
        return line
    kept: list[Span] = []
    at = 0
    for text, style in line:
        if at <= start < at + len(text):
            kept += [(text[: start - at], style), sign]
        elif at < start:
            kept.append((text, style))
        if at + len(text) > end:
            kept.append((text[max(end - at, 0) :], style))
        at += len(text)
    return tuple(kept)


def pad(line: Line, width: int, right: Line = ()) -> Line:
    """Returns the line over the whole width, with `right` at its right end if both fit."""
    space = width - line_width(line) - line_width(right)
    if right and space < 1:
        return cut(line, width)
    return (*cut(line, width), (" " * max(space, 0), ""), *right)


def join(parts: Iterable[Line], separator: Span) -> Line:
    """Returns the non-empty parts with a separator between them."""
    joined: list[Span] = []
    for part in parts:
        if part:
            if joined:
                joined.append(separator)
            joined += part
    return tuple(joined)


def content(line: Line) -> Content:
    """Returns a line for a border, where verdicts keep their colour; never parsed as markup."""
    spans: list[ContentSpan] = []
    at = 0
    for text, style in line:
        if style in _BORDER_STYLES:
            spans.append(ContentSpan(at, at + len(text), _BORDER_STYLES[style]))
        at += len(text)
    return Content(plain(line), spans)


def wrap(text: str, width: int) -> Sequence[str]:
    """Returns text broken at spaces into lines of at most `width` cells; long words are cut up."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        current = ""
        for word in clean(paragraph).split(" "):
            rest = word
            joined = f"{current} {rest}" if current else rest
            if cell_len(joined) <= width:
                current = joined
                continue
            if current:
                lines.append(current)
            while cell_len(rest) > width > 0:
                # A sign wider than the line is taken all the same, or this would never end.
                head = rest[: max(1, len(set_cell_size(rest, width).rstrip()))]
                lines.append(head)
                rest = rest[len(head) :]
            current = rest
        lines.append(current)
    return lines
