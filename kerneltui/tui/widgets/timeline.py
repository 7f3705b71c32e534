"""The timeline of a replay: best ratio over the steps, marks of decisions, and where we are."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from kerneltui.tui.format import elapsed, ratio, sparkline
from kerneltui.tui.text import LazyLines, Line, clean, fit
from kerneltui.tui.timeline import Timeline, event_text, mark_of
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.titles import set_subtitle

__all__ = ["TimelineView", "event_rows", "timeline_lines"]

_WEIGHT = {"a": 5, "u": 4, "r": 3, "s": 2, "f": 1, "─": 0}
_STYLES = {"a": "good", "r": "bad", "f": "bad", "s": "agent-human", "u": "warn", "─": "faint"}


def timeline_lines(timeline: Timeline, step: int, width: int) -> Sequence[Line]:
    """Returns the sparkline of the best ratio and, below it, the marks with the position."""
    known = [value for value in timeline.best if value is not None]
    low = ratio(known[0]) if known else "-"
    high = ratio(max(known)) if known else "-"
    area = max(width - len(low) - len(high) - 4, 10)
    blocks = sparkline(timeline.best, area)
    total = max(len(timeline), 1)
    position = min(step * area // total, area - 1)
    marks = ["─"] * area
    for number, event in enumerate(timeline.events, 1):
        column = min(number * area // total, area - 1)
        mark = mark_of(event)
        if _WEIGHT[mark] > _WEIGHT[marks[column]]:
            marks[column] = mark
    spans = [(mark, _STYLES[mark]) for mark in marks]
    spans[position] = ("●", "key")
    return [
        (
            (f" {low} ", "dim"),
            (blocks[:position], "good"),
            (blocks[position : position + 1], "key"),
            (blocks[position + 1 :], "faint"),
            (f" {high}", "good"),
        ),
        ((" " * (len(low) + 2), ""), *spans),
    ]


class TimelineView(LineView, inherit_bindings=False):
    """The timeline's panel."""

    def show_step(self, timeline: Timeline, step: int, *, playing: bool, speed: int) -> None:
        """Shows a position; the bottom line says where and when it is."""
        self.show(lambda w, _h: timeline_lines(timeline, step, w))
        event = timeline.events[step - 1] if 0 < step <= len(timeline) else None
        what = f"   {' '.join(event_text(event))}" if event else ""
        now, end = elapsed(timeline.time(step)), elapsed(timeline.time(len(timeline)))
        tail = f"   {now} / {end}   {'playing ' if playing else ''}x{speed}"
        head = f"step {step} of {len(timeline)}"
        room = max(self.size.width - len(head) - len(tail) - 6, 0)
        set_subtitle(self, Content(head + fit(what, min(room, len(what))) + tail))


def event_rows(timeline: Timeline, shown: Sequence[int], step: int, width: int) -> LazyLines:
    """Returns the events as rows: number, mark, time, who and what."""
    digits = len(str(len(timeline)))

    def draw(index: int) -> Line:
        number = shown[index]
        event = timeline.events[number - 1]
        who, text = event_text(event)
        mark = mark_of(event)
        here = number == step
        style = {"you": "agent-human", "fast": "agent-fast", "slow": "agent-slow"}.get(who, "dim")
        return (
            (" > " if here else "   ", "key"),
            (f"{number:>{digits}} ", "number"),
            (f"{mark if mark != '─' else ' '} ", _STYLES[mark]),
            (f"{elapsed(timeline.time(number)):>8}  ", "dim"),
            (f"{who:<7}", style),
            (fit(clean(text), max(width - 23 - digits, 4)), "strong" if here else "ink"),
        )

    return LazyLines(len(shown), draw)
