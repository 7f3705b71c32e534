"""The tabs that show what was noted beside the verdict; the same in a live session and in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kerneltui.model.candidate import Candidate
from kerneltui.model.state import State
from kerneltui.tui.draw.agents import has_models
from kerneltui.tui.draw.codegen import codegen_lines, is_machine_head
from kerneltui.tui.draw.counters import counter_lines
from kerneltui.tui.reports import Report
from kerneltui.tui.text import Line
from kerneltui.tui.view import Snapshot
from kerneltui.tui.widgets.main import GPU_TABS, MainPanel

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["Reporting", "ReportingScreen", "has_gpus"]


def has_gpus(state: State) -> bool:
    """Whether the target of a session runs on GPUs."""
    return state.target not in ("", "cpu")


class ReportingScreen(Protocol):
    """What a screen has for these tabs."""

    snapshot: Snapshot

    @property
    def owner(self) -> KernelTui:
        """The app."""
        ...

    @property
    def main(self) -> MainPanel:
        """The main panel."""
        ...

    @property
    def candidate(self) -> Candidate | None:
        """The candidate on screen."""
        ...


class Reporting:
    """Loads what the tab on screen needs, and draws it."""

    def __init__(self, screen: ReportingScreen) -> None:
        self._screen = screen
        self._loading: Candidate | None = None
        self._drawn: tuple[Report, str, int, Sequence[Line]] | None = None

    def draw(self) -> None:
        """Shows the tab for the candidate on screen; asks for its notes when they are not there."""
        screen = self._screen
        main, candidate = screen.main, screen.candidate
        main.offer_tabs(
            gpus=has_gpus(screen.snapshot.state), models=has_models(screen.snapshot.state)
        )
        if main.tab not in GPU_TABS or candidate is None:
            return
        report = screen.owner.reports.ready(candidate)
        if report is None:
            self._say(f"reading the notes on {candidate.id}…")
            if self._loading != candidate:
                self._loading = candidate
                screen.owner.run_worker(self._load(candidate), exclusive=True, group="report")
            return
        self._show(report)

    def machine_code(self) -> None:
        """Compares the machine code, in the codegen tab."""
        screen = self._screen
        candidate = screen.candidate
        if candidate is None:
            return
        screen.main.open_tab("Codegen")
        screen.owner.run_worker(self._compare(candidate), group="machine code")

    def machine_code_refusal(self) -> str:
        """Why the machine code cannot be compared; empty if it can."""
        if not has_gpus(self._screen.snapshot.state):
            return "only kernels for GPUs have machine code to compare"
        return "" if self._screen.candidate else "no candidate is on screen"

    def forget(self, candidate: str) -> None:
        """Reads the notes on a candidate again."""
        known = self._screen.snapshot.state.candidates.get(candidate)
        if known is not None:
            self._screen.owner.reports.forget(known)
            self._loading = None
            self.draw()

    async def _load(self, candidate: Candidate) -> None:
        screen = self._screen
        report = await screen.owner.reports.load(screen.snapshot.state, candidate)
        if report.error:
            self._loading = None
        if candidate == screen.candidate and screen.main.tab in GPU_TABS:
            self._show(report)

    async def _compare(self, candidate: Candidate) -> None:
        reports = self._screen.owner.reports
        report = reports.ready(candidate)
        if report is None:
            report = await reports.load(self._screen.snapshot.state, candidate)
        if not report.error and (report.machine is None or not report.machine.lines):
            report = reports.await_machine_code(candidate, report)
            self.draw()
            await reports.load_machine_code(candidate, report)
        self.draw()
        if candidate == self._screen.candidate and self._screen.main.tab == "Codegen":
            lines = self._screen.main.current.lines
            heads = [row for row, line in enumerate(lines) if is_machine_head(line)]
            self._screen.main.current.jump(heads[0] if heads else 0)

    def _say(self, text: str) -> None:
        self._screen.main.current.show(lambda _w, _h: [((f" {text}", "dim"),)])

    def _show(self, report: Report) -> None:
        tab = self._screen.main.tab
        draw = codegen_lines if tab == "Codegen" else counter_lines

        def build(width: int, height: int) -> Sequence[Line]:
            # A difference can have thousands of lines, and this is built at every progress.
            del height
            kept = self._drawn
            if kept is None or kept[0] is not report or kept[1:3] != (tab, width):
                self._drawn = kept = (report, tab, width, list(draw(report, width)))
            return kept[3]

        self._screen.main.current.show(build)
