"""The steer line: an address, an input with history, and its own few keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from kerneltui.tui.keymap import Scope, bindings
from kerneltui.tui.widgets.lineview import LineView

__all__ = ["SteerInput", "SteerLineBar"]


class SteerInput(Input):
    """The text; a draft stays when the focus leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.STEER)]


class SteerLineBar(Horizontal):
    """Address and input in one line: `@fast > also check odd row counts`."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.to = "all"
        self._history: list[str] = []
        self._at = 0
        self._draft = ""

    def compose(self) -> ComposeResult:
        """Yields address and input."""
        yield LineView(id="steer-to", focusable=False)
        yield SteerInput(
            id="steer-input",
            compact=True,
            select_on_focus=False,  # a draft is gone on with, not typed over
            placeholder="s steers the agents: text, @slow text, /pin c0012",
        )

    def on_mount(self) -> None:
        """Draws the address."""
        self.input.cursor_blink = False
        self.address(self.to)

    @property
    def input(self) -> SteerInput:
        """The input."""
        return self.query_one(SteerInput)

    def address(self, to: str) -> None:
        """Sets whom the line is for."""
        self.to = to
        style = f"agent-{to}" if to in ("fast", "slow") else "key"
        label = self.query_one("#steer-to", LineView)
        label.styles.width = len(to) + 5
        label.show(lambda _w, _h: [((" @" + to, style), (" > ", "dim"))])

    def take(self) -> str:
        """Returns the text and remembers it; the line is empty then."""
        text = self.input.value
        self._history = [*[old for old in self._history if old != text], text][-100:]
        self._at = len(self._history)
        self.input.value = ""
        return text

    def give_back(self, text: str) -> None:
        """Puts a text back that was refused, unless another one was begun."""
        if not self.input.value:
            self.input.value = text
            self.input.cursor_position = len(text)

    def recall(self, direction: int) -> None:
        """Brings back a line that was sent before (-1), or a later one (1), up to the draft."""
        if self._at == len(self._history):
            self._draft = self.input.value
        self._at = max(0, min(self._at + direction, len(self._history)))
        text = self._draft if self._at == len(self._history) else self._history[self._at]
        self.input.value = text
        self.input.cursor_position = len(text)

    def on_input_changed(self) -> None:
        """Turns `@slow ` at the beginning into the address."""
        for to in ("fast", "slow", "all"):
            if self.input.value.startswith(f"@{to} "):  # more may have been typed since the event
                self.address(to)
                self.input.value = self.input.value[len(to) + 2 :]
                self.input.cursor_position = len(self.input.value)
