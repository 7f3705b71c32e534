"""The first frame: empty panels where they will be, drawn before anything else is imported.

Importing what the real screens need takes as long as Textual itself does, so it waits until this is on
the screen. This module must stay light: no model, no other widgets.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.screen import Screen
from textual.widget import Widget

from kerneltui.tui.layout import Panel, Plan, plan_replay, plan_tuning
from kerneltui.tui.widgets.lineview import LineView

__all__ = ["PlannedLayout", "StartingScreen"]

_TITLES = {
    Panel.CANDIDATES: "1 Candidates",
    Panel.MAIN: "2 [Diff] Code  Log  Jobs  Bench  Directive  Grid  Notes",
    Panel.BENCH: "3 Bench",
    Panel.AGENTS: "4 Agents",
    Panel.MACHINE: "5 Machine",
    Panel.JOBS: "Job log",
    Panel.TIMELINE: "Timeline",
    Panel.EVENTS: "1 Events",
}


class PlannedLayout(Layout):
    """Places the children of a screen where its plan says, in the same frame as a resize."""

    name = "planned"

    def __init__(self, plan: Callable[[int, int], Plan]) -> None:
        self._plan = plan

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        """Returns a placement for every child that the plan knows."""
        plan = self._plan(size.width, size.height)
        placements: list[WidgetPlacement] = []
        for child in children:
            rect = plan.panels.get(Panel(child.id)) if child.id in set(Panel) else None
            if rect:
                region = Region(rect.x, rect.y, rect.width, rect.height)
                placements.append(WidgetPlacement(region, NULL_OFFSET, Spacing(), child))
        return placements


class StartingScreen(Screen[None], inherit_bindings=False):
    """Empty panels and one line on what happens."""

    def __init__(self, *, replay: bool) -> None:
        super().__init__()
        self._planned = PlannedLayout(plan_replay if replay else plan_tuning)
        self._text = "reading the session…" if replay else "starting the engine…"

    @property
    def layout(self) -> Layout:
        """The layout by plan."""
        return self._planned

    def compose(self) -> ComposeResult:
        """Yields a view for every panel."""
        for panel in Panel:
            title = _TITLES.get(panel)
            view = LineView(id=panel, classes="panel" if title else None, focusable=False)
            if title:
                view.border_title = Content(title)  # pyright: ignore[reportAttributeAccessIssue]
            yield view

    def on_mount(self) -> None:
        """Draws the one line."""
        text = self._text
        self.query_one(f"#{Panel.HEADER}", LineView).show(
            lambda _w, _h: [((" kerneltui", "title"), (" | ", "faint"), (text, "dim"))]
        )
