"""The candidates: the list with its cursor, the filter, and details of the selected one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from kerneltui.tui.draw.candidates import (
    Row,
    Sort,
    candidate_line,
    details,
    footer_text,
    mark_line,
    rows,
)
from kerneltui.tui.keymap import Scope, bindings
from kerneltui.tui.text import LazyLines, Line
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.lineview import LineView
from kerneltui.tui.widgets.titles import set_subtitle, set_title

__all__ = ["CandidateList", "CandidatesPanel"]

_DETAILS_FROM = 16  # rows of the panel from which details fit below the tree


class CandidateList(LineView, inherit_bindings=False):
    """The list itself; decision keys are bound here and on the diff only."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.DECISION)]


class CandidatesPanel(Vertical):
    """The panel of candidates; the selection is an id, so it survives any new order."""

    class Selected(Message):
        """Another candidate is selected."""

        def __init__(self, candidate: str) -> None:
            self.candidate = candidate
            super().__init__()

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        set_title(self, Content("1 Candidates"))
        self._snapshot: Snapshot | None = None
        self._shown: Sequence[Row] = ()
        self._tree = False
        self.selected = ""
        self.sort = Sort.PENDING
        self.needle = ""
        self.marked: set[str] = set()

    def compose(self) -> ComposeResult:
        """Yields list, filter and details."""
        yield CandidateList(id="candidate-list", cursor=True)
        yield Input(id="filter", compact=True, placeholder="filter: words of id, state, reason")
        yield LineView(id="details", focusable=False)

    def on_mount(self) -> None:
        """Hides what is shown on demand."""
        self.filter_input.display = False
        self.details.display = False

    @property
    def shown(self) -> Sequence[str]:
        """The candidates in the list, in its order."""
        return [row.id for row in self._shown]

    def mark(self) -> None:
        """Marks the selected row, or takes its mark away, and goes on to the next one."""
        self.marked ^= {self.selected}
        ids = self.shown
        if self.selected in ids:
            self.select(ids[min(ids.index(self.selected) + 1, len(ids) - 1)])

    def unmark(self) -> None:
        """Takes all marks away."""
        self.marked.clear()
        if self._snapshot:
            self.show(self._snapshot)

    @property
    def list(self) -> CandidateList:
        """The list."""
        return self.query_one(CandidateList)

    @property
    def filter_input(self) -> Input:
        """The input of the filter."""
        return self.query_one("#filter", Input)

    @property
    def details(self) -> LineView:
        """The lines on the selected candidate."""
        return self.query_one("#details", LineView)

    def arrange_for(self, *, tree: bool, height: int) -> None:
        """Draws as a tree or flat, and with details when there is room for them."""
        self._tree = tree
        self.details.display = tree and height >= _DETAILS_FROM
        if self._snapshot:
            self.show(self._snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Shows a snapshot; the selection stays on its candidate."""
        self._snapshot = snapshot
        state = snapshot.state
        tree = self._tree and self.sort is Sort.PENDING
        self._shown = rows(state, sort=self.sort, needle=self.needle, tree=tree)
        ids = [row.id for row in self._shown]
        if self.selected not in ids:
            waiting = {candidate.id for candidate in state.pending()} & set(ids)
            flat = rows(state, sort=Sort.PENDING) if waiting else ()
            pending = next((row.id for row in flat if row.id in waiting), "")
            best = state.incumbent if state.incumbent in ids else ""
            self._select(pending or best or (ids[0] if ids else ""))
        index = ids.index(self.selected) if self.selected in ids else 0
        selected, shown, marked = self.selected, self._shown, frozenset(self.marked)
        if ids:

            def build(width: int, height: int) -> Sequence[Line]:
                def draw(number: int) -> Line:
                    row = shown[number]
                    here = row.id == selected
                    line = candidate_line(state, snapshot.live, row, selected=here, width=width)
                    return mark_line(line) if row.id in marked else line

                return LazyLines(len(shown), draw)

            self.list.show(build, cursor=index)
        else:
            self.list.show(lambda _w, _h: self._empty(snapshot), cursor=0)
        text = footer_text(
            state,
            len(ids),
            index,
            sort=self.sort,
            needle=self.needle,
            tree=tree and not self.needle,
        )
        set_subtitle(self, Content(f"{len(marked)} marked  {text}" if marked else text))
        candidate = state.candidates.get(selected)
        if candidate:
            self.details.show(lambda w, _h: [(("─" * w, "faint"),), *details(state, candidate, w)])

    def _empty(self, snapshot: Snapshot) -> Sequence[Line]:
        if self.needle:
            return [((f"   nothing fits '{self.needle}'", "dim"),)]
        text = snapshot.live.calibration or snapshot.link.text or "no candidates yet"
        return [((f"   {text}", "dim"),)]

    def _select(self, candidate: str) -> None:
        if candidate != self.selected:
            self.selected = candidate
            self.post_message(self.Selected(candidate))

    def select(self, candidate: str) -> None:
        """Selects a candidate and shows the list again."""
        self._select(candidate)
        if self._snapshot:
            self.show(self._snapshot)

    def on_line_view_cursor_moved(self, event: LineView.CursorMoved) -> None:
        """Follows the cursor."""
        event.stop()
        if event.row < len(self._shown):
            self.select(self._shown[event.row].id)

    def next_pending(self, direction: int) -> bool:
        """Selects the next (1) or previous (-1) candidate that waits; tells whether there is one."""
        if not self._snapshot:
            return False
        waiting = {candidate.id for candidate in self._snapshot.state.pending()}
        ids = [row.id for row in self._shown]
        start = ids.index(self.selected) if self.selected in ids else 0
        for offset in range(1, len(ids) + 1):
            found = ids[(start + direction * offset) % len(ids)]
            if found in waiting:
                self.select(found)
                return True
        return False

    def next_sort(self) -> Sort:
        """Sorts by the next order and returns it."""
        orders = list(Sort)
        self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        if self._snapshot:
            self.show(self._snapshot)
        return self.sort

    def open_filter(self) -> None:
        """Shows the filter's input and focuses it."""
        self.filter_input.display = True
        self.screen.set_focus(self.filter_input)

    def close_filter(self, *, clear: bool) -> None:
        """Goes back to the list, with the filter or without."""
        self.filter_input.display = False
        if clear:
            self.filter_input.value = ""
            self.needle = ""
        self.screen.set_focus(self.list)
        if self._snapshot:
            self.show(self._snapshot)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while it is typed."""
        event.stop()
        self.needle = event.value
        if self._snapshot:
            self.show(self._snapshot)

    def on_input_blurred(self, event: Input.Blurred) -> None:
        """Takes an empty filter away when the focus goes elsewhere."""
        event.stop()
        if not self.needle:
            self.filter_input.display = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keeps the filter and goes back to the list."""
        event.stop()
        self.close_filter(clear=False)
