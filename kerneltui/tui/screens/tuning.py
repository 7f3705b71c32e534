"""The tuning screen: candidates, diff, chart, agents, steer line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from kerneltui.model.candidate import Candidate
from kerneltui.model.event import AcceptRule
from kerneltui.tui import decide
from kerneltui.tui.decide import Displayed
from kerneltui.tui.draw.agents import agents_lines, agents_summary, has_models, strip_line
from kerneltui.tui.draw.chart import chart_lines, chart_of, difference_text, shape_charts
from kerneltui.tui.draw.gpus import gpu_line
from kerneltui.tui.draw.header import header_line, hints_line
from kerneltui.tui.draw.tables import machine_lines
from kerneltui.tui.format import mode_word
from kerneltui.tui.keymap import Scope, bindings, hints
from kerneltui.tui.layout import Panel, Plan, Zoom, plan_tuning
from kerneltui.tui.screens.copying import copy_menu
from kerneltui.tui.screens.deciding import Deciding
from kerneltui.tui.screens.panels import Handler, PanelScreen
from kerneltui.tui.screens.reporting import Reporting
from kerneltui.tui.screens.session_tabs import SessionTabs
from kerneltui.tui.screens.triage import Triage
from kerneltui.tui.sources import Loaded, SourceError
from kerneltui.tui.text import Line, content, plain
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.candidates import CandidatesPanel
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.main import DiffView, MainPanel
from kerneltui.tui.widgets.steer import SteerLineBar
from kerneltui.tui.widgets.titles import set_subtitle, set_title

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["TuningScreen"]

_SOON_SECONDS = 0.08
_ROOMY = 24  # rows of the agents' panel from which a reply is shown as a whole
_STEER_HINTS = (
    ("Enter", "send"),
    ("^j", "newline"),
    ("^g", "editor"),
    ("@fast @slow @all", ""),
    ("/goal /budget /pin /ban /force /pause", ""),
    ("Esc", "back to the panes"),
)


class TuningScreen(PanelScreen, inherit_bindings=False):
    """The main screen of a live session."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.GLOBAL, Scope.MOVE, Scope.TUNING)]
    scopes = (Scope.DECISION, Scope.TUNING, Scope.GLOBAL, Scope.MOVE, Scope.STEER)
    tab_order = (
        Panel.CANDIDATES,
        Panel.MAIN,
        Panel.BENCH,
        Panel.AGENTS,
        Panel.MACHINE,
        Panel.JOBS,
    )

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.loaded: Loaded | None = None
        self._since = 0
        self._loading: tuple[str, str, str] | None = None
        self._soon: Timer | None = None
        self._deciding = Deciding(self)
        self.reporting = Reporting(self)
        self.session_tabs = SessionTabs(self)
        self._triage = Triage(self)
        self._gpus = False

    @property
    def owner(self) -> KernelTui:
        """The app, by its type."""
        return self.app  # pyright: ignore[reportReturnType]

    def compose(self) -> ComposeResult:
        """Yields the panels; the plan says which are on screen."""
        yield LineView(id=Panel.HEADER, focusable=False)
        yield LineView(id=Panel.GPUS, focusable=False)
        yield CandidatesPanel(id=Panel.CANDIDATES)
        yield MainPanel(id=Panel.MAIN, deciding=True)
        yield LineView(id=Panel.BENCH, classes="panel")
        yield LineView(id=Panel.AGENTS, classes="panel", follow=True)
        yield LineView(id=Panel.STRIP, focusable=False)
        yield LineView(id=Panel.MACHINE, classes="panel")
        yield LineView(id=Panel.JOBS, classes="panel", follow=True)
        yield SteerLineBar(id=Panel.STEER)
        yield LineView(id=Panel.HINTS, focusable=False)
        yield LineView(id=Panel.FOOTER, focusable=False)
        yield LineView(id=Panel.NOTICE, focusable=False)

    def on_mount(self) -> None:
        """Draws the first frame and keeps clocks going."""
        set_title(self._line(Panel.MACHINE), Content("5 Machine"))
        set_title(self._line(Panel.JOBS), Content("Job log"))
        self._line(Panel.HINTS).show(lambda w, _h: [hints_line(_STEER_HINTS, w)])
        self.add_jobs(())
        self.replan()
        self.candidates.list.focus()
        self.receive(self.snapshot)
        self.main.diff.wait_for("no candidate yet")
        self.set_interval(1.0, self.tick)
        self.call_after_refresh(self.owner.reconnect)  # the first frame goes first

    @property
    def candidates(self) -> CandidatesPanel:
        """The panel of candidates."""
        return self.query_one(CandidatesPanel)

    @property
    def main(self) -> MainPanel:
        """The main panel."""
        return self.query_one(MainPanel)

    @property
    def steer(self) -> SteerLineBar:
        """The steer line."""
        return self.query_one(SteerLineBar)

    def _line(self, panel: Panel) -> LineView:
        return self.query_one(f"#{panel}", LineView)

    @property
    def candidate(self) -> Candidate | None:
        """The selected candidate."""
        return self.snapshot.state.candidates.get(self.candidates.selected)

    @property
    def displayed(self) -> Displayed | None:
        """What is on screen, as a decision binds to it."""
        candidate = self.candidate
        if candidate is None:
            return None
        diff = self.main.diff.diff
        if diff is not None and diff.candidate != candidate.id:
            diff = None
        return Displayed(candidate.id, self._since, diff, self.main.diff.hunks_selected)

    # Layout

    def plan(self, width: int, height: int) -> Plan:
        """Returns where the panels lie."""
        models = has_models(self.snapshot.state)
        return plan_tuning(
            width, height, self.zoom, self.body_panel, gpus=self._gpus, models=models
        )

    def replan(self) -> None:
        """Lays out again, the list as a tree where there is room."""
        super().replan()
        plan = self.plan(*self.app.size)
        rect = plan.panels.get(Panel.CANDIDATES)
        if rect:
            self.candidates.arrange_for(tree=plan.tree, height=rect.height)

    def focusable_of(self, panel: Panel) -> Widget:
        """Returns the widget that has the focus when a panel has it."""
        match panel:
            case Panel.CANDIDATES:
                return self.candidates.list
            case Panel.MAIN:
                return self.main.current
            case Panel.STEER:
                return self.steer.input
            case _:
                return self._line(panel)

    def footer(self, width: int) -> Line:
        """Returns the hints: of the steer line while it is typed, else of the panes."""
        if self.focused_panel is Panel.STEER and self.typing:
            return hints_line(_STEER_HINTS if width < 100 else hints((Scope.STEER,)), width)
        scopes = (Scope.DECISION, Scope.TUNING, Scope.GLOBAL)
        return hints_line(hints(scopes), width)

    # What comes in

    def receive(self, snapshot: Snapshot) -> None:
        """Shows a new snapshot."""
        before = {c.id for c in self.snapshot.state.pending()}
        models = has_models(self.snapshot.state)
        self.snapshot = snapshot
        if bool(snapshot.live.readings) != self._gpus or models != has_models(snapshot.state):
            self._gpus = bool(snapshot.live.readings)
            self.replan()
        self.candidates.show(snapshot)
        self.show_candidate()
        self.tick()
        waiting = {c.id for c in snapshot.state.pending()}
        if snapshot.link.status == "live" and waiting - before:
            self.owner.attention(len(waiting))

    def on_candidates_panel_selected(self, event: CandidatesPanel.Selected) -> None:
        """Shows another candidate; decisions wait until it has been on screen for a moment."""
        event.stop()
        self._since = self.owner.monotonic()
        # The list is painted first; while a key repeats, only the last candidate is shown.
        if self._soon is not None:
            self._soon.stop()
        self._soon = self.set_timer(_SOON_SECONDS, self.show_candidate)

    def show_candidate(self) -> None:
        """Shows the selected candidate, and loads its texts when they are not there."""
        candidate = self.candidate
        self.reporting.draw()
        if candidate is None:
            self.draw_bench()
            return
        self.main.show_candidate(self.snapshot, candidate)
        log = candidate.failure.log if candidate.failure else ""
        wanted = (candidate.id, candidate.sha, log)
        if self._loading != wanted:
            self._loading = wanted
            self.loaded = None
            ready = self.owner.sources.ready(candidate)
            if ready:
                self.show_loaded(ready)
            else:
                self.main.diff.wait_for(f"loading {candidate.id}…")
                self.run_worker(self._load(candidate), exclusive=True, group="source")
        kept = self.loaded.log if self.loaded else ""
        self.main.show_log(self.snapshot, candidate, kept)
        self.draw_bench()

    async def _load(self, candidate: Candidate) -> None:
        try:
            loaded = await self.owner.sources.load(candidate)
        except SourceError as error:
            self._loading = None if self.snapshot.link.status != "live" else self._loading
            self.main.diff.wait_for(str(error))
            return
        if candidate.id == self.candidates.selected:
            self.show_loaded(loaded)

    def show_loaded(self, loaded: Loaded) -> None:
        """Shows texts that came."""
        self.loaded = loaded
        self._since = self.owner.monotonic()
        self.main.show_source(loaded)
        if self.candidate:
            self.main.show_log(self.snapshot, self.candidate, loaded.log)

    def draw_bench(self) -> None:
        """Draws the chart; with room, shape by shape below it."""
        state, candidate = self.snapshot.state, self.candidate
        chart = chart_of(state, candidate)
        view = self._line(Panel.BENCH)
        calibration = self.snapshot.live.calibration

        def build(width: int, height: int) -> Sequence[Line]:
            if not chart.bars and state.session and not state.calibrations:
                return [((f" calibrating: {calibration or 'about to begin'}", "dim"),)]
            shapes = shape_charts(state, candidate) if candidate and self.zoom is Zoom.FULL else ()
            if not shapes:
                return chart_lines(chart, width, height)
            lines = [*chart_lines(chart, width, len(chart.bars) + 1)]
            for part in shapes:
                lines += [(), ((f" {part.title}", "title"),), *chart_lines(part, width, 3)]
            return lines

        view.show(build)
        room = view.size.width - 12
        set_title(view, Content(f"3 Bench  {chart.title_for(room)}"))
        set_subtitle(view, content(difference_text(state, candidate, room)))

    def tick(self) -> None:
        """Draws what shows the time: header, agents, machine."""
        snapshot, now = self.snapshot, self.owner.clock()
        state, live = snapshot.state, snapshot.live
        self._line(Panel.HEADER).show(lambda w, _h: [header_line(snapshot, now, w)])
        self._line(Panel.GPUS).show(lambda w, _h: [gpu_line(state, live, w)])
        self._line(Panel.STRIP).show(lambda w, _h: [strip_line(state, live, now, w)])
        agents = self._line(Panel.AGENTS)
        agents.show(lambda w, h: agents_lines(state, live, now, w, None if h > _ROOMY else h // 2))
        set_title(agents, Content(f"4 Agents  {plain(agents_summary(state, live, now))}"))
        set_subtitle(agents, Content("follow" if agents.following else "scrolled"))
        self.session_tabs.draw(now)
        self._line(Panel.MACHINE).show(lambda w, h: machine_lines(state, w, h))
        self.draw_footer()

    def add_jobs(self, lines: Sequence[str]) -> None:
        """Adds lines to the job log."""
        self.main.show_jobs(lines)
        kept = [((f" {text}", "ink"),) for text in self.main.jobs] or [
            ((" nothing ran yet", "dim"),)
        ]
        self._line(Panel.JOBS).show(lambda _w, _h: kept)

    def on_diff_view_hunks_changed(self, event: DiffView.HunksChanged) -> None:
        """Nothing depends on hunks outside the main panel."""
        event.stop()

    def on_main_panel_tab_opened(self, event: MainPanel.TabOpened) -> None:
        """Shows what the tab needs."""
        event.stop()
        self.reporting.draw()
        self.session_tabs.draw(self.owner.clock())

    def on_descendant_focus(self) -> None:
        """Shows the hints of what has the focus."""
        self.draw_footer()

    def on_descendant_blur(self) -> None:
        """Shows the hints of what has the focus."""
        self.draw_footer()

    # Actions

    def refusal(self, id_: str) -> str:
        """Returns why an action cannot be done now, or nothing."""
        if id_ == "code.machine":
            return self.reporting.machine_code_refusal()
        if id_ == "triage":
            return self._triage.refusal()
        return self._deciding.refusal(id_)

    def handlers(self) -> Mapping[str, Handler]:
        """Returns what each action does."""
        diff = self.main.diff
        return {
            **self.common_handlers(),
            **self.panel_handlers(
                {
                    "0": Panel.MAIN,
                    "1": Panel.CANDIDATES,
                    "2": Panel.MAIN,
                    "3": Panel.BENCH,
                    "4": Panel.AGENTS,
                    "5": Panel.MACHINE,
                }
            ),
            **self._deciding.handlers(),
            **self.session_tabs.handlers(),
            "triage": self._triage.open,
            "unmark": self.candidates.unmark,
            "candidate.mark": self.candidates.mark,
            "hunk.toggle": diff.toggle,
            "hunk.previous": lambda: diff.hop(-1),
            "hunk.next": lambda: diff.hop(1),
            "context.less": lambda: diff.widen(-1),
            "context.more": lambda: diff.widen(1),
            "pending.next": lambda: self._pending(1),
            "pending.previous": lambda: self._pending(-1),
            "list.sort": lambda: self.say(f"sorted by {self.candidates.next_sort()}"),
            "filter": self._open_filter,
            "copy": self._copy,
            "code.machine": self.reporting.machine_code,
            "escape": self._escape,
            "interrupt": self.owner.interrupt,
            "quit": self.owner.ask_quit,
        }

    def _open_filter(self) -> None:
        self.focus_panel(Panel.CANDIDATES)  # a zoom may have taken the list off the screen
        self.candidates.open_filter()

    def _pending(self, direction: int) -> None:
        if not self.candidates.next_pending(direction):
            self.say("no candidate waits for a decision")

    def _copy(self) -> None:
        candidate = self.candidate
        if candidate:
            copy_menu(self.owner, self.snapshot.state, candidate, self.loaded, self.say)

    def _escape(self) -> None:
        if self.focused is self.candidates.filter_input:
            self.candidates.close_filter(clear=True)
        elif self.typing:
            self.focus_panel(self.body_panel)
        elif self.zoom is not Zoom.NORMAL:
            self.set_zoom(Zoom.NORMAL)
        elif self.candidates.needle:
            self.candidates.close_filter(clear=True)

    def mode_text(self, rule: AcceptRule) -> str:
        """Returns what a mode means, in one line."""
        if rule is AcceptRule.AUTO:
            return f"{mode_word(rule)}: the rule accepts what is FASTER, confirmed, nowhere SLOWER"
        return f"{mode_word(rule)}: only you accept"

    def may_send(self) -> str:
        """Returns why no command can be sent, or nothing."""
        return decide.may_send(self.snapshot)
