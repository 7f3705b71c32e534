"""The main panel: tabs for diff, code, log, job log, shapes and directive of one candidate."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.content import Span as ContentSpan
from textual.message import Message

from kerneltui.model.candidate import Candidate
from kerneltui.tui.draw.code import code_lines
from kerneltui.tui.draw.diff import Diff, DiffLines, draw_diff
from kerneltui.tui.draw.tables import bench_table, candidate_log, directive_lines
from kerneltui.tui.keymap import Scope, bindings
from kerneltui.tui.sources import Loaded
from kerneltui.tui.text import Line
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.titles import set_subtitle, set_title

__all__ = [
    "ALL_TABS",
    "GPU_TABS",
    "JOB_LINES",
    "MODEL_TABS",
    "TABS",
    "DecisionDiff",
    "DiffView",
    "MainPanel",
]

TABS = ("Diff", "Code", "Log", "Jobs", "Bench", "Directive", "Grid", "Notes")
GPU_TABS = ("Codegen", "Counters")
"""Tabs of a target whose code runs on GPUs."""

MODEL_TABS = ("Agents", "Spend")
"""Tabs of a session in which language models are asked."""

ALL_TABS = (*TABS, *GPU_TABS, *MODEL_TABS)

JOB_LINES = 5_000


class DiffView(LineView, inherit_bindings=False):
    """The diff with a current hunk and selected hunks."""

    class HunksChanged(Message):
        """Another hunk is current, or the selection changed."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.diff: Diff | None = None
        self.hunks_selected: frozenset[int] = frozenset()
        self.current = 0
        self.context = 3
        self._drawn = DiffLines(())
        self._waiting = ""

    def wait_for(self, text: str) -> None:
        """Shows that the diff is not there yet, or why it is not."""
        self.diff = None
        self.hunks_selected = frozenset()
        self._waiting = text
        self.show(lambda _w, _h: [((f" {text}", "dim"),)], home=True)
        self.post_message(self.HunksChanged())

    def show_diff(self, diff: Diff) -> None:
        """Shows a diff with all hunks selected."""
        self.diff = diff
        self.hunks_selected = frozenset(hunk.index for hunk in diff.hunks)
        self.current = 0
        self._redraw(home=True)

    def _redraw(self, *, home: bool = False) -> None:
        self.show(self._build_diff, home=home)
        self.post_message(self.HunksChanged())

    def _build_diff(self, width: int, height: int) -> Sequence[Line]:
        if self.diff is None:
            return [((f" {self._waiting}", "dim"),)]
        self._drawn = draw_diff(
            self.diff,
            selected=self.hunks_selected,
            current=self.current,
            context=self.context,
            width=width,
        )
        return self._drawn.lines

    def hop(self, direction: int) -> None:
        """Goes to the next or previous hunk."""
        if self.diff is None or not self.diff.hunks:
            return
        self.current = max(0, min(self.current + direction, len(self.diff.hunks) - 1))
        self._redraw()
        start = self._drawn.starts[self.current]
        end = (*self._drawn.starts[1:], len(self._drawn.lines))[self.current]
        top, height = self.top, self.size.height
        if start < top or min(end, start + height) > top + height:
            # The first hunk brings the line above it along: what is compared with what.
            self.jump(0 if self.current == 0 else start)

    def toggle(self) -> None:
        """Selects the current hunk, or leaves it out."""
        if self.diff is None or not self.diff.hunks:
            return
        self.hunks_selected ^= {self.current}
        self._redraw()

    def widen(self, step: int) -> None:
        """Shows more or less context."""
        self.context = max(0, min(self.context + step, 40))
        self._redraw()

    def follow_scroll(self) -> None:
        """Makes a visible hunk the current one after scrolling."""
        starts = self._drawn.starts
        if self.diff is None or not starts:
            return
        top, bottom = self.top, self.top + self.size.height
        ends = (*starts[1:], len(self._drawn.lines))
        seen = [i for i, start in enumerate(starts) if start < bottom and ends[i] > top]
        if seen and self.current not in seen:
            self.current = seen[0]
            self._redraw()


class DecisionDiff(DiffView, inherit_bindings=False):
    """The diff of the tuning screen, on which decision keys are bound."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.DECISION)]


class MainPanel(Vertical):
    """The tabs. What they show belongs to one candidate, except for the job log."""

    class TabOpened(Message):
        """Another tab is on screen."""

    def __init__(self, *, id: str, deciding: bool, number: str = "2 ") -> None:
        super().__init__(id=id, classes="panel")
        self._deciding = deciding
        self._number = number
        self.tab = "Diff"
        self.tabs = TABS
        self.jobs: deque[str] = deque(maxlen=JOB_LINES)
        self._note = ""

    def compose(self) -> ComposeResult:
        """Yields one view for each tab."""
        yield (DecisionDiff if self._deciding else DiffView)(id="tab-diff")
        yield LineView(id="tab-code")
        yield LineView(id="tab-log")
        yield LineView(id="tab-jobs", follow=True)
        yield LineView(id="tab-bench")
        yield LineView(id="tab-directive")
        for name in (*TABS[6:], *GPU_TABS, *MODEL_TABS):
            yield LineView(id=f"tab-{name.lower()}", follow=name == "Agents")

    def on_mount(self) -> None:
        """Shows the first tab."""
        self.show_jobs(())
        self.open_tab("Diff")

    @property
    def diff(self) -> DiffView:
        """The view of the diff."""
        return self.query_one("#tab-diff", DiffView)

    def view(self, tab: str) -> LineView:
        """Returns the view of a tab."""
        return self.query_one(f"#tab-{tab.lower()}", LineView)

    @property
    def current(self) -> LineView:
        """The view on screen."""
        return self.view(self.tab)

    def open_tab(self, tab: str) -> None:
        """Shows a tab; the focus goes along when it was in this panel."""
        inside = self.screen.focused in list(self.query(LineView))
        self.tab = tab
        for name in ALL_TABS:
            self.view(name).display = name == tab
        if inside:
            self.screen.set_focus(self.current)
        self._retitle()
        self.post_message(self.TabOpened())

    def offer_tabs(self, *, gpus: bool, models: bool) -> None:
        """Says whether there are the tabs of a target with GPUs, and those of language models."""
        tabs = (*TABS, *(GPU_TABS if gpus else ()), *(MODEL_TABS if models else ()))
        if tabs != self.tabs:
            self.tabs = tabs
            self._retitle()

    def step_tab(self, direction: int) -> None:
        """Shows the next or previous tab."""
        self.open_tab(self.tabs[(self.tabs.index(self.tab) + direction) % len(self.tabs)])

    def _retitle(self) -> None:
        text, start = self._number, 0
        for name in self._titles():
            if name == self.tab:
                start = len(text)
                text += f"[{name}] "
            else:
                text += f"{name}  "
        text = text.rstrip()
        span = ContentSpan(start, start + len(self.tab) + 2, "bold")
        set_title(self, Content(text, [span]))
        set_subtitle(self, Content(self._subtitle()))

    def _titles(self) -> Sequence[str]:
        """The names of the tabs, or those around the one on screen when there is no room for all."""
        room = self.size.width - len(self._number) - 4
        first, last = 0, len(self.tabs)
        at = self.tabs.index(self.tab)
        while first < at and sum(len(name) + 2 for name in self.tabs[first:last]) > room > 0:
            first += 1
        return self.tabs[first:last]

    def _subtitle(self) -> str:
        if self.tab != "Diff":
            return self._note if self.tab in ("Code", "Bench", *GPU_TABS) else ""
        diff = self.diff.diff
        if diff is None or not diff.hunks:
            return ""
        on = "[x]" if self.diff.current in self.diff.hunks_selected else "[ ]"
        text = f"hunk {self.diff.current + 1}/{len(diff.hunks)} {on}  +{diff.added} -{diff.removed}"
        return f"{text}  context {self.diff.context}" if self.size.width >= 60 else text

    def show_candidate(self, snapshot: Snapshot, candidate: Candidate) -> None:
        """Shows what the state knows of a candidate; texts come with `show_source`."""
        state = snapshot.state
        self._note = candidate.id
        self.view("Bench").show(lambda w, _h: bench_table(state, candidate, w))
        self.view("Directive").show(lambda w, _h: directive_lines(state, candidate, w))
        self._retitle()

    def show_log(self, snapshot: Snapshot, candidate: Candidate, log: str) -> None:
        """Shows the story of a candidate's evaluation with the log of its failure."""
        state = snapshot.state
        self.view("Log").show(lambda w, _h: candidate_log(state, candidate, log, w))

    def show_source(self, loaded: Loaded) -> None:
        """Shows diff and code."""
        self.diff.show_diff(loaded.diff)
        changed = frozenset(
            line.new
            for hunk in loaded.diff.hunks
            for line in hunk.lines
            if line.kind == "+" and line.new
        )
        lines = code_lines(loaded.source, loaded.tokens, changed)
        self.view("Code").show(lambda _w, _h: lines, home=True)
        self._retitle()

    def show_jobs(self, lines: Sequence[str]) -> None:
        """Adds lines to the job log, which keeps the last 5,000."""
        self.jobs.extend(lines)
        kept: list[Line] = [((f" {text}", "ink"),) for text in self.jobs]
        if not kept:
            nothing = (
                "nothing ran yet" if self._deciding else "a replay has no output of jobs; see Log"
            )
            kept = [((f" {nothing}", "dim"),)]
        self.view("Jobs").show(lambda _w, _h: kept)

    def on_diff_view_hunks_changed(self, event: DiffView.HunksChanged) -> None:
        """Keeps the bottom line current."""
        event.stop()
        self._retitle()

    def on_line_view_scrolled(self, event: LineView.Scrolled) -> None:
        """Keeps the current hunk in view."""
        event.stop()
        if event.view is self.diff:
            self.diff.follow_scroll()
