"""A view of lines: the one widget that draws, scrolls and moves a cursor.

What it shows is built by a function from its width and height, so a resize builds again. Lines are
looked up one by one, so a long list costs no more than what is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kerneltui.tui.text import Line, line_width
from kerneltui.tui.theme import resolve

__all__ = ["Build", "LineView", "to_strip"]

_COMPARED = 200  # rows; longer texts change when they are shown anew
Build = Callable[[int, int], Sequence[Line]]


def to_strip(line: Line, ansi: bool) -> Strip:
    """Returns a line as segments; code never passes through markup."""
    return Strip([Segment(text, resolve(style, ansi)) for text, style in line if text])


def _nothing(width: int, height: int) -> Sequence[Line]:
    return ()


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
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
        self._rebuild()
        if home:
            self.following = self._follow
            if not self._follow:
                self.scroll_to(0, 0, animate=False, force=True)

    def _rebuild(self) -> None:
        width, height = self.size
        if not width:
            return
        lines = self._build(width, height)
        count = len(lines)
        small = count <= _COMPARED and isinstance(lines, list | tuple)
        if small and list(lines) == self._lines and not self._has_cursor:
            return  # nothing to draw, nothing on the wire
        self._lines = list(lines) if small else lines
        # Only views of code scroll sideways, and those are lists, not lazily built.
        longest = (
            max(map(line_width, self._lines), default=0)
            if isinstance(self._lines, list | tuple)
            else width
        )
        self.virtual_size = Size(max(longest, width), count)
        self.cursor = max(0, min(self.cursor, count - 1))
        if self._has_cursor:
            self._reveal()
        elif self.following:
            self.scroll_to(y=max(0, count - height), animate=False, force=True)
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Builds again for the new size."""
        self._rebuild()

    def _reveal(self) -> None:
        height = self.size.height
        top = self.scroll_offset.y
        # A few rows around the cursor stay in view, so that one sees what comes next.
        margin = min(3, max(0, (height - 1) // 3))
        last = max(0, len(self._lines) - height)
        if self.cursor - margin < top:
            top = max(0, self.cursor - margin)
        elif self.cursor + margin >= top + height:
            top = min(last, self.cursor + margin - height + 1)
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        """Draws one row; a span without text at the end of a line fills the rest in its style."""
        width = self.size.width
        left, top = self.scroll_offset
        index = y + top
        ansi = self.app.native_ansi_color
        base = self.rich_style
        if index >= len(self._lines):
            return Strip.blank(width, base)
        line = self._lines[index]
        fill = resolve(line[-1][1], ansi) if line and not line[-1][0] else None
        strip = to_strip(line, ansi).crop_extend(left, left + width, fill)
        if self._has_cursor and index == self.cursor:
            name = "cursor" if self.has_focus else "cursor-blurred"
            strip = Strip([Segment(s.text, (s.style or base) + resolve(name, ansi)) for s in strip])
        return strip.apply_style(base)

    def move(self, delta: int) -> None:
        """Moves the cursor, or scrolls where there is none."""
        if self._has_cursor:
            self.move_to(self.cursor + delta)
            return
        self.scroll_by(dy=delta)

    def move_to(self, row: int) -> None:
        """Moves the cursor to a row, or scrolls there."""
        count = len(self._lines)
        if not self._has_cursor:
            self.scroll_by(dy=row - self.scroll_offset.y)
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

    def scroll_by(self, dx: int = 0, dy: int = 0) -> None:
        """Scrolls by cells; a following view follows again once it is at its end."""
        x, y = self.scroll_offset
        limit = max(0, len(self._lines) - self.size.height)
        target = max(0, min(y + dy, limit))
        self.scroll_to(max(0, x + dx), target, animate=False, force=True)
        self.following = self._follow and target >= limit
        self.post_message(self.Scrolled(self))

    def watch_has_focus(self, value: bool) -> None:
        """Draws the cursor row in the style for focus or without it."""
        super().watch_has_focus(value)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the row that was clicked."""
        if self._has_cursor:
            offset = event.get_content_offset(self)
            if offset is not None:
                self.move_to(offset.y + self.scroll_offset.y)
