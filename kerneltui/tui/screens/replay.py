"""The replay screen: a session step by step, by the same fold as live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from kerneltui.model.candidate import Candidate
from kerneltui.model.state import State
from kerneltui.tui.draw.agents import strip_line
from kerneltui.tui.draw.chart import chart_lines, chart_of, difference_text
from kerneltui.tui.draw.header import header_line, hints_line
from kerneltui.tui.keymap import ACTIONS, Scope, bindings, hints
from kerneltui.tui.layout import Panel, Plan, Zoom, plan_replay
from kerneltui.tui.screens.copying import copy_menu
from kerneltui.tui.screens.dialogs import NoteDialog
from kerneltui.tui.screens.panels import Handler, PanelScreen
from kerneltui.tui.screens.reporting import Reporting
from kerneltui.tui.screens.session_tabs import SessionTabs
from kerneltui.tui.sources import Loaded, SourceError
from kerneltui.tui.text import Line, content
from kerneltui.tui.timeline import Timeline, event_text
from kerneltui.tui.view import Link, Live, Snapshot
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.main import DiffView, MainPanel
from kerneltui.tui.widgets.timeline import TimelineView, event_rows
from kerneltui.tui.widgets.titles import set_subtitle, set_title

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["ReplayScreen"]

_SPEEDS = (1, 2, 4, 8, 16, 32)
_STEP_SECONDS = 1.0
_OWN_KEYS = (",", ".", "<", ">", "home", "end")


class ReplayScreen(PanelScreen, inherit_bindings=False):
    """A recorded session; nothing here can change it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(Scope.GLOBAL, Scope.MOVE, without=_OWN_KEYS),
        *bindings(Scope.REPLAY),
    ]
    scopes = (Scope.REPLAY, Scope.GLOBAL, Scope.MOVE)
    tab_order = (Panel.EVENTS, Panel.MAIN, Panel.BENCH)
    home_panel = Panel.EVENTS

    def __init__(self, snapshot: Snapshot, step: int | None) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.timeline = Timeline(())
        self.step = 0
        self._wanted = step
        self._needle = ""
        self._shown: Sequence[int] = ()
        self._speed = 2
        self._player: Timer | None = None
        self._mark: int | None = None
        self.loaded: Loaded | None = None
        self._loading: tuple[str, str] | None = None
        self.reporting = Reporting(self)
        self.session_tabs = SessionTabs(self)

    @property
    def candidate(self) -> Candidate | None:
        """The candidate that the step is about."""
        state = self.snapshot.state
        return state.candidates.get(self.timeline.candidate_at(self.step, state))

    @property
    def owner(self) -> KernelTui:
        """The app, by its type."""
        return self.app  # pyright: ignore[reportReturnType]

    def compose(self) -> ComposeResult:
        """Yields the panels; the plan says which are on screen."""
        yield LineView(id=Panel.HEADER, focusable=False)
        yield TimelineView(id=Panel.TIMELINE, classes="panel", focusable=False)
        yield LineView(id=Panel.EVENTS, classes="panel", cursor=True)
        yield MainPanel(id=Panel.MAIN, deciding=False)
        yield LineView(id=Panel.BENCH, classes="panel")
        yield LineView(id=Panel.STRIP, focusable=False)
        yield LineView(id=Panel.FOOTER, focusable=False)
        yield LineView(id=Panel.NOTICE, focusable=False)

    def on_mount(self) -> None:
        """Draws the first frame."""
        set_title(self._line(Panel.TIMELINE), Content("Timeline"))
        set_title(self._line(Panel.EVENTS), Content("1 Events"))
        self.main.diff.wait_for("reading the journal…")
        self.replan()
        self._line(Panel.EVENTS).focus()
        self.receive(self.snapshot)
        self.call_after_refresh(self.owner.reconnect)  # the first frame goes first

    @property
    def main(self) -> MainPanel:
        """The main panel."""
        return self.query_one(MainPanel)

    def _line(self, panel: Panel) -> LineView:
        return self.query_one(f"#{panel}", LineView)

    # Layout

    def plan(self, width: int, height: int) -> Plan:
        """Returns where the panels lie."""
        return plan_replay(width, height, self.zoom, self.body_panel)

    def focusable_of(self, panel: Panel) -> Widget:
        """Returns the widget that has the focus when a panel has it."""
        return self.main.current if panel is Panel.MAIN else self._line(panel)

    def footer(self, width: int) -> Line:
        """Returns the hints."""
        return hints_line(hints((Scope.REPLAY, Scope.GLOBAL)), width)

    # What comes in

    def receive(self, snapshot: Snapshot) -> None:
        """Takes what the link says; the state shown is the timeline's own."""
        self.snapshot = snapshot
        if not len(self.timeline):
            self._draw_header(snapshot.state)
            self._line(Panel.EVENTS).show(
                lambda _w, _h: [((f" {snapshot.link.text}", "dim"),)], cursor=0
            )
        elif snapshot.link.status == "gone":
            self.say(f"the engine is gone ({snapshot.link.text}); texts not loaded yet stay away")

    def add_jobs(self, lines: Sequence[str]) -> None:
        """Adds lines to the job log."""
        self.main.show_jobs(lines)

    def show_timeline(self, timeline: Timeline) -> None:
        """Takes the whole session and goes to the wanted step, or to the end."""
        self.timeline = timeline
        self._filter("")
        self.go(len(timeline) if self._wanted is None else self._wanted)

    def go(self, step: int) -> None:
        """Goes to a step: folds the state and shows it."""
        self.step = self.timeline.clamp(step)
        state = self.timeline.state(self.step)
        link = Link(self.snapshot.link.status, self.snapshot.link.text)
        self.snapshot = Snapshot(state, Live(), link)
        self._draw_header(state)
        self._draw_timeline()
        self._draw_events()
        shown = state.candidates.get(self.timeline.candidate_at(self.step, state))
        self._show_candidate(state, shown)

    def _draw_header(self, state: State) -> None:
        link = Link("replay", self.snapshot.link.text)
        snapshot = Snapshot(state, Live(), link)
        self._line(Panel.HEADER).show(lambda w, _h: [header_line(snapshot, state.at, w)])
        self._line(Panel.STRIP).show(lambda w, _h: [strip_line(state, Live(), state.at, w)])
        self.draw_footer()

    def _draw_timeline(self) -> None:
        self.query_one(TimelineView).show_step(
            self.timeline,
            self.step,
            playing=self._player is not None,
            speed=_SPEEDS[self._speed],
        )

    def _draw_events(self) -> None:
        events = self._line(Panel.EVENTS)
        if not self._shown:
            text = f" nothing fits '{self._needle}'" if self._needle else " step 0: before it began"
            events.show(lambda _w, _h: [((text, "dim"),)], cursor=0)
            return
        row = max((i for i, number in enumerate(self._shown) if number <= self.step), default=0)
        timeline, shown, step = self.timeline, self._shown, self.step
        events.show(lambda w, _h: event_rows(timeline, shown, step, w), cursor=row)
        tail = f"/{self._needle}   " if self._needle else ""
        set_subtitle(events, Content(f"{tail}a accept  r reject  f fail  s steer  u undo"))

    def _show_candidate(self, state: State, candidate: Candidate | None) -> None:
        bench = self._line(Panel.BENCH)
        chart = chart_of(state, candidate)
        bench.show(lambda w, h: chart_lines(chart, w, h))
        room = bench.size.width - 12
        set_title(bench, Content(f"3 Bench then  {chart.title_for(room - 5)}"))
        set_subtitle(bench, content(difference_text(state, candidate, room)))
        self.reporting.draw()
        self.session_tabs.draw(state.at)
        if candidate is None:
            self.main.diff.wait_for("no candidate yet")
            return
        self.main.show_candidate(self.snapshot, candidate)
        self.main.show_log(self.snapshot, candidate, self.loaded.log if self.loaded else "")
        wanted = (candidate.id, candidate.sha)
        if self._loading == wanted:
            return
        self._loading = wanted
        ready = self.owner.sources.ready(candidate)
        if ready:
            self._show_loaded(ready)
        else:
            self.loaded = None
            self.main.diff.wait_for(f"loading {candidate.id}…")
            self.run_worker(self._load(candidate), exclusive=True, group="source")

    async def _load(self, candidate: Candidate) -> None:
        try:
            loaded = await self.owner.sources.load(candidate)
        except SourceError as error:
            self.main.diff.wait_for(str(error))
            return
        if self._loading == (candidate.id, candidate.sha):
            self._show_loaded(loaded)

    def _show_loaded(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.main.show_source(loaded)

    def on_main_panel_tab_opened(self, event: MainPanel.TabOpened) -> None:
        """Shows what the tab needs."""
        event.stop()
        self.reporting.draw()
        self.session_tabs.draw(self.snapshot.state.at)

    def on_line_view_cursor_moved(self, event: LineView.CursorMoved) -> None:
        """Goes to the step of the event under the cursor."""
        event.stop()
        if event.view.id == Panel.EVENTS and event.row < len(self._shown):
            self.go(self._shown[event.row])

    def on_diff_view_hunks_changed(self, event: DiffView.HunksChanged) -> None:
        """Nothing depends on hunks outside the main panel."""
        event.stop()

    # Filter

    def _filter(self, needle: str) -> None:
        self._needle = needle
        words = needle.lower().split()
        self._shown = [
            number
            for number, event in enumerate(self.timeline.events, 1)
            if not words or all(word in " ".join(event_text(event)).lower() for word in words)
        ]
        self._draw_events()

    def _open_filter(self) -> None:
        def chosen(text: str | None) -> None:
            if text is None:
                return
            self._filter(text)
            if self._shown and self.step not in self._shown:  # go where the cursor is
                before = [number for number in self._shown if number < self.step]
                self.go(before[-1] if before else self._shown[0])

        about = "Words that an event must have; none shows all events again."
        dialog = NoteDialog("Filter events", about, initial=self._needle)
        self.app.push_screen(dialog, chosen)

    # Actions

    def on_key(self, event: events.Key) -> None:
        """Says of a key that decides elsewhere why it does nothing here."""
        for entry in ACTIONS:
            if entry.scope in (Scope.DECISION, Scope.TUNING) and event.character in entry.keys:
                self.say(f"{event.character} {entry.text}: this is a replay, and read only")
                return

    def refusal(self, id_: str) -> str:
        """Returns why an action cannot be done now, or nothing."""
        if id_ == "code.machine":
            return self.reporting.machine_code_refusal()
        if id_.startswith("replay.") and not len(self.timeline):
            return "the journal is still being read"
        return ""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns what each action does."""
        timeline = self.timeline
        return {
            **self.common_handlers(),
            **self.panel_handlers(
                {"0": Panel.MAIN, "1": Panel.EVENTS, "2": Panel.MAIN, "3": Panel.BENCH}
            ),
            "replay.play": self._play,
            "replay.back": lambda: self.go(self.step - 1),
            "replay.forward": lambda: self.go(self.step + 1),
            "replay.previous": lambda: self.go(timeline.previous_decision(self.step)),
            "replay.next": lambda: self.go(timeline.next_decision(self.step)),
            "replay.slower": lambda: self._change_speed(-1),
            "replay.faster": lambda: self._change_speed(1),
            "replay.goto": self._goto,
            "replay.first": lambda: self.go(1),
            "replay.last": lambda: self.go(len(timeline)),
            "replay.mark": self._set_mark,
            **self.session_tabs.handlers(),
            "filter": self._open_filter,
            "copy": self._copy,
            "code.machine": self.reporting.machine_code,
            "escape": self._escape,
            "interrupt": self.owner.interrupt,
            "quit": self.owner.ask_quit,
        }

    def _play(self) -> None:
        if self._player is not None:
            self._player.stop()
            self._player = None
        else:
            if self.step >= len(self.timeline):
                self.go(1)
            self._player = self.set_interval(_STEP_SECONDS / _SPEEDS[self._speed], self._advance)
        self._draw_timeline()

    def _advance(self) -> None:
        self.go(self.step + 1)
        if self.step >= len(self.timeline):
            self._play()

    def _change_speed(self, direction: int) -> None:
        self._speed = max(0, min(self._speed + direction, len(_SPEEDS) - 1))
        if self._player is not None:
            self._player.stop()
            self._player = self.set_interval(_STEP_SECONDS / _SPEEDS[self._speed], self._advance)
        self._draw_timeline()

    def _goto(self) -> None:
        def chosen(text: str | None) -> None:
            if text and text.isdigit():
                self.go(int(text))
            elif text:
                self.say(f"goto: '{text}' is not a step; there are {len(self.timeline)}")

        self.app.push_screen(
            NoteDialog("Go to step", f"A number from 0 to {len(self.timeline)}."), chosen
        )

    def _set_mark(self) -> None:
        if self._mark is None or self._mark == self.step:
            self._mark = self.step
            self.say(f"mark set at step {self.step}; m elsewhere comes back here")
        else:
            back, self._mark = self._mark, None
            self.go(back)

    def _copy(self) -> None:
        candidate = self.candidate
        if candidate:
            copy_menu(self.owner, self.snapshot.state, candidate, self.loaded, self.say)

    def _escape(self) -> None:
        if self.zoom is not Zoom.NORMAL:
            self.set_zoom(Zoom.NORMAL)
        elif self._needle:
            self._filter("")
