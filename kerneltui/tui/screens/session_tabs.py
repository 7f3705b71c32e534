"""The tabs on the session as a whole: grid, lab notes, agents, spend; live and in a replay alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kerneltui.model.command import ReadLabNotes
from kerneltui.tui.draw.agents import agents_lines
from kerneltui.tui.draw.coverage import coverage_lines, fields_of
from kerneltui.tui.draw.spend import spend_lines
from kerneltui.tui.keymap import Scope
from kerneltui.tui.screens.panels import Handler
from kerneltui.tui.text import Line, wrap
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.main import MainPanel

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["SessionTabs", "TabbedScreen"]


class TabbedScreen(Protocol):
    """What a screen has for these tabs."""

    snapshot: Snapshot

    @property
    def scopes(self) -> Sequence[Scope]:
        """Whose keys it has."""
        ...

    @property
    def owner(self) -> KernelTui:
        """The app."""
        ...

    @property
    def main(self) -> MainPanel:
        """The main panel."""
        ...


class SessionTabs:
    """Draws the tab on screen, if it is one of these."""

    def __init__(self, screen: TabbedScreen) -> None:
        self._screen = screen
        self._rows, self._columns = "backend", "placement"
        self._notes: dict[str, str] = {}
        self._reading = ""

    def draw(self, now: int) -> None:
        """Shows what the tab on screen needs."""
        main, snapshot = self._screen.main, self._screen.snapshot
        state, live = snapshot.state, snapshot.live
        rows, columns = self._rows, self._columns
        match main.tab:
            case "Grid":
                main.current.show(lambda w, _h: coverage_lines(state, rows, columns, w))
            case "Agents":
                main.current.show(lambda w, _h: agents_lines(state, live, now, w))
            case "Spend":
                main.current.show(lambda w, _h: spend_lines(state, w))
            case "Notes":
                self._draw_notes()
            case _:
                return

    def handlers(self) -> Mapping[str, Handler]:
        """Returns what each action does."""
        return {
            "grid.rows": lambda: self._turn(rows=True),
            "grid.columns": lambda: self._turn(rows=False),
        }

    def _turn(self, *, rows: bool) -> None:
        """Takes the next field for a side of the grid; the first time it only opens the tab."""
        if self._screen.main.tab != "Grid":
            self._screen.main.open_tab("Grid")
            return
        fields = fields_of(self._screen.snapshot.state)
        mine, other = (self._rows, self._columns) if rows else (self._columns, self._rows)
        start = fields.index(mine) if mine in fields else -1
        found = next(
            field
            for step in range(1, len(fields) + 1)
            if (field := fields[(start + step) % len(fields)]) != other
        )
        self._rows, self._columns = (found, other) if rows else (other, found)
        self._screen.main.current.show(lambda _w, _h: (), home=True)
        self.draw(self._screen.owner.clock())

    # Lab notes

    @property
    def notes(self) -> str | None:
        """The lab notes, once they are there."""
        state = self._screen.snapshot.state
        return state.notes if state.notes is not None else self._notes.get(state.main)

    def with_notes(self, use: Callable[[str], None]) -> None:
        """Calls a function with the notes, at once or when they were read."""
        notes = self.notes
        if notes is not None:
            use(notes)
            return

        async def read() -> None:
            main = self._screen.snapshot.state.main
            reply = await self._screen.owner.feed.ask(ReadLabNotes())
            if not reply.error:
                self._notes[main] = str(reply.data.get("text", ""))
                use(self._notes[main])
            elif self._screen.main.tab == "Notes":
                self._show([((f" no notes: {reply.error}", "dim"),)])

        self._screen.owner.run_worker(read(), group="lab notes", exclusive=True)

    def _draw_notes(self) -> None:
        state, notes = self._screen.snapshot.state, self.notes
        if notes is None:
            if state.main and self._reading != state.main:
                self._reading = state.main
                self._show([((" reading the lab notes…", "dim"),)])
                self.with_notes(lambda _text: self._draw_notes())
            return
        if self._screen.main.tab != "Notes":
            return
        edited = state.notes is not None
        how = "; E edits them, agents read them" if Scope.TUNING in self._screen.scopes else ""

        def build(width: int, height: int) -> Sequence[Line]:
            del height
            about = "as you wrote them" if edited else "as they are on main"
            lines: list[Line] = [
                ((f" notes.md, {about}{how}", "dim"),),
                (),
            ]
            for part in notes.rstrip("\n").split("\n"):
                style = "title" if part.startswith("#") else "ink"
                lines += [((f" {text}", style),) for text in wrap(part, max(width - 2, 10))]
            return lines

        self._screen.main.current.show(build)

    def _show(self, lines: Sequence[Line]) -> None:
        self._screen.main.current.show(lambda _w, _h: lines)
