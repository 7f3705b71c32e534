"""What the two screens have in common: planned panels, one way for every key, a line for notices."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from textual import events
from textual.layout import Layout
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from kerneltui.tui.keymap import ACTIONS, LIVE_WHILE_TYPING, Action, Scope, action, short_key
from kerneltui.tui.layout import MINIMUM, Panel, Plan, Zoom
from kerneltui.tui.screens.dialogs import HelpDialog
from kerneltui.tui.screens.starting import PlannedLayout
from kerneltui.tui.text import Line, pad
from kerneltui.tui.timeline import Timeline
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.main import MainPanel

__all__ = ["Handler", "PanelScreen"]

Handler = Callable[[], Awaitable[object] | object]

_NOTICE_SECONDS = 6.0
_CYCLE = (Zoom.NORMAL, Zoom.HALF, Zoom.FULL)


def _free(folder: Path, name: str) -> Path:
    """Returns a file that does not exist yet: `name-1.svg`, else `name-2.svg`, and so on."""
    return next(
        file
        for file in (folder / f"{name}-{number}.svg" for number in count(1))
        if not file.exists()
    )


class PanelScreen(Screen[None], inherit_bindings=False):
    """A screen of planned panels. A key names an action; the action says why it cannot be done."""

    scopes: Sequence[Scope] = ()

    def __init__(self) -> None:
        super().__init__()
        self.zoom = Zoom.NORMAL
        self._planned = PlannedLayout(self.plan)
        self._notice = ""
        self._notice_timer = None
        self._before_small: Panel | None = None
        self._beside_steer = self.home_panel

    # What a screen adds

    snapshot: Snapshot

    @abstractmethod
    def receive(self, snapshot: Snapshot) -> None:
        """Shows a new snapshot."""

    @abstractmethod
    def add_jobs(self, lines: Sequence[str]) -> None:
        """Adds lines to the job log."""

    def show_timeline(self, timeline: Timeline) -> None:
        """Takes a whole session; only a replay asks for one."""

    @abstractmethod
    def plan(self, width: int, height: int) -> Plan:
        """Returns where the panels lie."""

    @abstractmethod
    def handlers(self) -> Mapping[str, Handler]:
        """Returns what each action does."""

    @abstractmethod
    def refusal(self, id_: str) -> str:
        """Returns why an action cannot be done now, or nothing."""

    @abstractmethod
    def footer(self, width: int) -> Line:
        """Returns the hints."""

    @abstractmethod
    def focusable_of(self, panel: Panel) -> Widget:
        """Returns the widget that has the focus when a panel has it."""

    # Layout

    @property
    def layout(self) -> Layout:
        """The layout by plan."""
        return self._planned

    @property
    def focused_panel(self) -> Panel:
        """The panel that has the focus."""
        node = self.focused
        while node is not None and node is not self:
            if node.id in set(Panel):
                return Panel(node.id)
            node = node.parent if isinstance(node.parent, Widget) else None
        return self.home_panel

    home_panel = Panel.CANDIDATES

    @property
    def body_panel(self) -> Panel:
        """The panel that has the focus, or had it before a line was typed: a zoom goes by it."""
        panel = self.focused_panel
        return self._beside_steer if panel is Panel.STEER else panel

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """Focuses a widget, and remembers the panel that the steer line takes the focus from."""
        self._beside_steer = self.body_panel
        super().set_focus(widget, scroll_visible, from_app_focus)

    def replan(self) -> None:
        """Lays out again; a panel that is gone gives the focus to the main panel."""
        plan = self.plan(*self.app.size)
        if self._before_small is not None and Panel.NOTICE not in plan.panels:
            self.set_focus(self.focusable_of(self._before_small))
            self._before_small = None
            plan = self.plan(*self.app.size)  # a zoom goes by the focus
        for panel in Panel:
            for widget in self.query(f"#{panel}"):
                widget.display = panel in plan.panels
        if Panel.NOTICE in plan.panels:
            # What is hidden loses the focus, so that no key would mean anything afterwards.
            self._before_small = self._before_small or self.focused_panel
            width, height = self.app.size
            text = f"{width}x{height} is too small: kerneltui needs {MINIMUM[0]}x{MINIMUM[1]}"
            self.query_one(f"#{Panel.NOTICE}", LineView).show(
                lambda w, _h: [pad(((text, "warn"),), w)]
            )
        elif self.focused_panel not in plan.panels:
            self.focus_panel(Panel.MAIN if Panel.MAIN in plan.panels else next(iter(plan.panels)))
        # A screen keeps its last arrangement until one of its children asks for another.
        self.children[0].refresh(layout=True)

    def on_resize(self, event: events.Resize) -> None:
        """Lays out for the new size."""
        self.replan()

    def focus_panel(self, panel: Panel) -> None:
        """Focuses a panel, and shows it where only one is shown.

        At once: `Widget.focus` waits its turn, and the next key would still mean the panel before.
        """
        self.set_focus(self.focusable_of(panel))
        if self.zoom is not Zoom.NORMAL and panel is not Panel.STEER:
            self.replan()

    def step_focus(self, direction: int) -> None:
        """Focuses the next or previous panel that is on screen."""
        shown = self.plan(*self.app.size).panels
        order = [panel for panel in self.tab_order if panel in shown]
        if order:
            here = order.index(self.focused_panel) if self.focused_panel in order else -direction
            self.focus_panel(order[(here + direction) % len(order)])

    tab_order: Sequence[Panel] = ()

    def set_zoom(self, zoom: Zoom) -> None:
        """Zooms the focused panel."""
        self.zoom = zoom
        self.replan()

    # Keys

    @property
    def typing(self) -> bool:
        """Whether a text input has the focus."""
        return isinstance(self.focused, Input)

    async def action_act(self, id_: str) -> None:
        """Does an action, or says why not."""
        entry = action(id_)
        if self.typing and entry.scope is not Scope.STEER and id_ not in LIVE_WHILE_TYPING:
            return
        self.clear_notice()
        await self.perform(entry)

    async def perform(self, entry: Action) -> None:
        """Does an action by whatever way it was asked for: key or palette."""
        refusal = self.refusal(entry.id)
        if refusal:
            key = f"{entry.keys[0]} " if entry.keys else ""
            self.say(f"{key}{entry.text}: {refusal}")
            return
        result = self.handlers()[entry.id]()
        if inspect.isawaitable(result):
            await result

    def offered(self) -> Sequence[Action]:
        """Returns the actions of this screen, for palette and help."""
        known = self.handlers()
        return [entry for entry in ACTIONS if entry.scope in self.scopes and entry.id in known]

    def common_handlers(self) -> Mapping[str, Handler]:
        """Returns the actions that are the same on every screen."""

        def cursor(step: Callable[[LineView], object]) -> Handler:
            def do() -> None:
                if isinstance(self.focused, LineView):
                    step(self.focused)

            return do

        main = self.query_one(MainPanel)
        return {
            "help": self.show_help,
            "palette": self.app.action_command_palette,
            "suspend": self.app.action_suspend_process,
            "screenshot": lambda: self.call_after_refresh(self.save_screenshot),
            "tab.next": lambda: main.step_tab(1),
            "tab.previous": lambda: main.step_tab(-1),
            "zoom.full": lambda: self.set_zoom(
                Zoom.NORMAL if self.zoom is Zoom.FULL else Zoom.FULL
            ),
            "zoom.more": lambda: self.set_zoom(_CYCLE[min(_CYCLE.index(self.zoom) + 1, 2)]),
            "zoom.less": lambda: self.set_zoom(_CYCLE[max(_CYCLE.index(self.zoom) - 1, 0)]),
            "focus.next": lambda: self.step_focus(1),
            "focus.previous": lambda: self.step_focus(-1),
            "move.down": cursor(lambda view: view.move(1)),
            "move.up": cursor(lambda view: view.move(-1)),
            "move.first": cursor(lambda view: view.move_to(0)),
            "move.last": cursor(lambda view: view.move_to(len(view.lines))),
            "move.page_up": cursor(lambda view: view.page(-1)),
            "move.page_down": cursor(lambda view: view.page(1)),
            "main.down": lambda: main.current.shift(rows=3),
            "main.up": lambda: main.current.shift(rows=-3),
            "main.right": lambda: main.current.shift(columns=8),
            "main.left": lambda: main.current.shift(columns=-8),
        }

    def panel_handlers(self, panels: Mapping[str, Panel]) -> Mapping[str, Handler]:
        """Returns the actions that focus panels by number."""

        def focus(panel: Panel) -> Handler:
            def do() -> None:
                if panel in self.plan(*self.app.size).panels:
                    self.focus_panel(panel)
                else:
                    self.say(f"the panel '{panel}' is not on a screen of this size")

            return do

        return {f"focus.{number}": focus(panel) for number, panel in panels.items()}

    def show_help(self) -> None:
        """Opens the help."""
        dimmed = frozenset(entry.id for entry in self.offered() if self.refusal(entry.id))
        self.app.push_screen(HelpDialog(self.scopes, dimmed))

    def save_screenshot(self, folder: Path | None = None) -> None:
        """Saves what is on the screen as an SVG, in the working folder if none is named."""
        name = self.snapshot.state.session or "kerneltui"
        try:
            file = _free(folder or Path.cwd(), name)
            file.write_text(self.app.export_screenshot(title=name), encoding="utf-8")
        except OSError as error:
            self.say(f"screenshot: cannot be written ({error.strerror})")
            return
        self.say(f"screenshot: {file}")

    # Notices

    def say(self, text: str) -> None:
        """Shows one line at the foot for some seconds, or until the next key."""
        self._notice = text
        if self._notice_timer is not None:
            self._notice_timer.stop()
        self._notice_timer = self.set_timer(_NOTICE_SECONDS, self.clear_notice)
        self.draw_footer()

    @property
    def notice(self) -> str:
        """The line shown at the foot, if any."""
        return self._notice

    def clear_notice(self) -> None:
        """Shows the hints again."""
        if self._notice:
            self._notice = ""
            self.draw_footer()

    def draw_footer(self) -> None:
        """Draws hints or notice."""
        notice = self._notice
        view = self.query_one(f"#{Panel.FOOTER}", LineView)
        if notice:
            view.show(lambda w, _h: [pad(((f" {notice}", "notice"),), w)])
        else:
            view.show(lambda w, _h: [self.footer(w)])

    def key_of(self, id_: str) -> str:
        """Returns the key of an action as the footer writes it."""
        return short_key(action(id_).keys[0])
