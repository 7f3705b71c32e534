"""A view of lines: the one widget that draws, scrolls and moves a cursor.

What it shows is built by a function from its width and height, so a resize builds again. Lines are
looked up one by one, so a long list costs no more than what is visible. It scrolls by itself: a scroll
view of Textual lays out the whole screen again whenever the number of lines changes, which is every
time that a log grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from kerneltui.tui.text import LazyLines, Line, line_width, plain
from kerneltui.tui.theme import resolve

__all__ = ["Build", "LineView", "to_strip"]

_COMPARED = 200  # rows; longer texts change when they are shown anew
Build = Callable[[int, int], Sequence[Line]]


def to_strip(line: Line, ansi: bool) -> Strip:
    """Returns a line as segments; code never passes through markup."""
    return Strip([Segment(text, resolve(style, ansi)) for text, style in line if text])


def _nothing(width: int, height: int) -> Sequence[Line]:
    return ()


class LineView(Widget, can_focus=True, inherit_bindings=False):
    """Lines that scroll, with a cursor row or without.

    Args:
        id: The widget's id.
        cursor: Whether one row is the current one.
        follow: Whether the view stays at the end while lines are added, until the user scrolls up.
        focusable: Whether it can have the focus.
    """

    class CursorMoved(Message):
        """The user moved the cursor to another row."""

        def __init__(self, view: LineView, row: int) -> None:
            self.view = view
            self.row = row
            super().__init__()

        @property
        def control(self) -> LineView:
            """The view whose cursor moved."""
            return self.view

    class Scrolled(Message):
        """The user scrolled."""

        def __init__(self, view: LineView) -> None:
            self.view = view
            super().__init__()

    def __init__(
        self,
        *,
        id: str | None = None,
        classes: str | None = None,
        cursor: bool = False,
        follow: bool = False,
        focusable: bool = True,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.can_focus = focusable
        self._build: Build = _nothing
        self._lines: Sequence[Line] = ()
        self._has_cursor = cursor
        self._stale = True
        self._widest = 0
        self._base = Style.null()
        self.top = 0
        self.left = 0
        self.cursor = 0
        self.following = follow
        self._follow = follow

    @property
    def lines(self) -> Sequence[Line]:
        """The lines as last built."""
        return self._lines

    def show(self, build: Build, *, cursor: int | None = None, home: bool = False) -> None:
        """Shows what a function builds for the size of this view.

        Args:
            build: From width and height to lines.
            cursor: The row to move the cursor to without telling anyone.
            home: Whether to scroll back to the beginning.
        """
        self._build = build
        if cursor is not None:
            self.cursor = cursor
        if home:
            self.top = self.left = 0
            self.following = self._follow
        self._rebuild()

    def _rebuild(self) -> None:
        width, height = self.size
        # What is not on screen is built when it comes there: most tabs never do for a candidate.
        self._stale = not self.display or not width
        if self._stale:
            return
        lines = self._build(width, height)
        before = (self.top, self.left, self.cursor)
        count = len(lines)
        lazy = isinstance(lines, LazyLines)
        same = not lazy and count <= _COMPARED and list(lines) == self._lines
        self._lines = lines if lazy else list(lines)
        self._widest = lines.widest if lazy else max(map(line_width, lines), default=0)
        self.cursor = max(0, min(self.cursor, count - 1))
        self.top = max(0, min(self.top, count - height))
        if self._has_cursor:
            self._reveal()
        elif self.following:
            self.top = max(0, count - height)
        # Nothing to draw is nothing on the wire.
        if not same or before != (self.top, self.left, self.cursor):
            self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Builds again for the new size."""
        self._rebuild()

    def on_show(self, event: events.Show) -> None:
        """Builds what was asked for while this was not on screen."""
        if self._stale:
            self._rebuild()

    def _reveal(self) -> None:
        height = self.size.height
        # A few rows around the cursor stay in view, so that one sees what comes next.
        margin = min(3, max(0, (height - 1) // 3))
        last = max(0, len(self._lines) - height)
        if self.cursor - margin < self.top:
            self.top = max(0, self.cursor - margin)
        elif self.cursor + margin >= self.top + height:
            self.top = min(last, self.cursor + margin - height + 1)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draws rows; the style that lies below them is looked up once, not for each."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draws one row; a span without text at the end of a line fills the rest in its style."""
        width = self.size.width
        index = y + self.top
        ansi = self.app.native_ansi_color
        if index >= len(self._lines):
            return Strip.blank(width, self._base)
        line = self._lines[index]
        below = self._base
        if self._has_cursor and index == self.cursor:
            over = resolve("cursor" if self.has_focus else "cursor-blurred", ansi)
            line = (*line, ("", ""))
            strip = to_strip(line, ansi).crop_extend(self.left, self.left + width, None)
            return Strip([Segment(s.text, below + (s.style or below) + over) for s in strip], width)
        fill = resolve(line[-1][1], ansi) if line and not line[-1][0] else None
        whole = to_strip(line, ansi)
        strip = whole.crop_extend(self.left, self.left + width, fill)
        if self.left or whole.cell_length > width:
            written = cell_len(plain(line).rstrip())
            strip = self._marked(strip, written, resolve("dim", ansi))
        return strip.apply_style(below)

    def _marked(self, strip: Strip, length: int, dim: Style) -> Strip:
        """A row with a mark at each end behind which its line, of so many cells, goes on."""
        width = self.size.width
        if width < 3 or length <= self.left:
            return strip

        def mark(at: int) -> Strip:
            (cell, *_) = strip.crop(at, at + 1)
            return Strip([Segment("…", (cell.style or Style.null()) + dim)], 1)

        first, last = (1 if self.left else 0), (width - 1 if length > self.left + width else width)
        parts = [mark(0)] if first else []
        parts.append(strip.crop(first, last))
        if last < width:
            parts.append(mark(last))
        return Strip.join(parts)

    def jump(self, top: int) -> None:
        """Scrolls so that a row is the first, as far as there are rows."""
        self.top = max(0, min(top, len(self._lines) - self.size.height))
        self.refresh()

    def move(self, delta: int) -> None:
        """Moves the cursor, or scrolls where there is none."""
        if self._has_cursor:
            self.move_to(self.cursor + delta)
        else:
            self.shift(rows=delta)

    def move_to(self, row: int) -> None:
        """Moves the cursor to a row, or scrolls there."""
        count = len(self._lines)
        if not self._has_cursor:
            self.shift(rows=row - self.top)
            return
        row = max(0, min(row, count - 1))
        if row != self.cursor and count:
            self.cursor = row
            self._reveal()
            self.refresh()
            self.post_message(self.CursorMoved(self, row))

    def page(self, direction: int) -> None:
        """Moves by a page, up (-1) or down (1)."""
        self.move(direction * max(1, self.size.height - 1))

    def shift(self, columns: int = 0, rows: int = 0) -> None:
        """Scrolls by cells; a following view follows again once it is at its end."""
        limit = max(0, len(self._lines) - self.size.height)
        self.top = max(0, min(self.top + rows, limit))
        self.left = max(0, min(self.left + columns, self._widest - self.size.width))
        self.following = self._follow and self.top >= limit
        self.refresh()
        self.post_message(self.Scrolled(self))

    def watch_has_focus(self, value: bool) -> None:
        """Draws the cursor row in the style for focus or without it."""
        super().watch_has_focus(value)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the row that was clicked."""
        offset = event.get_content_offset(self)
        if self._has_cursor and offset is not None:
            self.move_to(offset.y + self.top)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Moves on by the wheel."""
        event.stop()
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Moves back by the wheel."""
        event.stop()
        self.move(-3)
