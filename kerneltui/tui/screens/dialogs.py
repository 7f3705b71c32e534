"""Dialogs: a choice by letters, a note, and help. Esc closes them and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from kerneltui.tui.keymap import ACTIONS, Scope
from kerneltui.tui.steering import HELP
from kerneltui.tui.text import Line, wrap
from kerneltui.tui.widgets.lineview import LineView

__all__ = ["Choice", "ChoiceDialog", "HelpDialog", "NoteDialog"]

_CLOSE: list[BindingType] = [Binding("escape", "dismiss_dialog", show=False)]


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: its key, what it says, and what it returns."""

    key: str
    text: str
    value: str


class ChoiceDialog(ModalScreen[str], inherit_bindings=False):
    """Asks for one of a few answers; each has a key, enter takes the first."""

    BINDINGS: ClassVar[list[BindingType]] = _CLOSE

    def __init__(self, title: str, text: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._heading = title
        self._text = text
        self._choices = tuple(choices)

    def compose(self) -> ComposeResult:
        """Yields the box."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._heading)
            box.border_subtitle = Content("esc back")
            view = LineView(id="choices", focusable=False)
            yield view

    def on_mount(self) -> None:
        """Draws text and answers."""
        view = self.query_one("#choices", LineView)
        width = min(70, self.app.size.width - 8)
        lines = self._draw(width)
        view.styles.height = len(lines)
        view.show(lambda _w, _h: lines)

    def _draw(self, width: int) -> Sequence[Line]:
        lines: list[Line] = []
        for paragraph in filter(None, self._text.split("\n")):
            lines += [((f" {part}", "ink"),) for part in wrap(paragraph, width - 2)]
        if lines:
            lines.append(())
        for index, choice in enumerate(self._choices):
            enter = "  (enter)" if index == 0 else ""
            lines.append(((f"  {choice.key}  ", "key"), (choice.text, "ink"), (enter, "dim")))
        return lines

    def on_key(self, event: events.Key) -> None:
        """Takes the answer of a key."""
        for index, choice in enumerate(self._choices):
            if event.character == choice.key or (index == 0 and event.key == "enter"):
                event.stop()
                self.dismiss(choice.value)
                return

    def action_dismiss_dialog(self) -> None:
        """Closes without an answer."""
        self.dismiss(None)


class NoteDialog(ModalScreen[str], inherit_bindings=False):
    """Asks for a line of text."""

    BINDINGS: ClassVar[list[BindingType]] = _CLOSE

    def __init__(self, title: str, text: str, *, required: bool = False, initial: str = "") -> None:
        super().__init__()
        self._heading = title
        self._text = text
        self._required = required
        self._initial = initial

    def compose(self) -> ComposeResult:
        """Yields the box with the input."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._heading)
            box.border_subtitle = Content("enter send   esc back")
            yield LineView(id="note-text", focusable=False)
            yield Input(self._initial, id="note", compact=True)

    def on_mount(self) -> None:
        """Draws the text and focuses the input."""
        width = min(70, self.app.size.width - 8)
        lines: list[Line] = [((f" {part}", "ink"),) for part in wrap(self._text, width - 2)]
        view = self.query_one("#note-text", LineView)
        view.styles.height = len(lines) + 1
        view.show(lambda _w, _h: lines)
        field = self.query_one(Input)
        field.cursor_blink = False
        self.set_focus(field)  # at once: the next key may be here already

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Returns the text, unless it has to say something and does not."""
        event.stop()
        text = event.value.strip()
        if self._required and not text:
            self.query_one(Input).placeholder = "a note is needed; esc goes back"
            return
        self.dismiss(text)

    def action_dismiss_dialog(self) -> None:
        """Closes without a text."""
        self.dismiss(None)


class HelpDialog(ModalScreen[None], inherit_bindings=False):
    """The keys of a screen, from the table of actions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "dismiss_dialog", show=False),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
        Binding("full_stop,pagedown,space", "scroll(15)", show=False),
        Binding("comma,pageup", "scroll(-15)", show=False),
    ]

    def __init__(self, scopes: Sequence[Scope], dimmed: frozenset[str]) -> None:
        super().__init__()
        self._scopes = scopes
        self._dimmed = dimmed

    def compose(self) -> ComposeResult:
        """Yields the box."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = Content("Help")
            box.border_subtitle = Content("j k scroll   esc back   dim: not possible now")
            yield LineView(id="help")

    def on_mount(self) -> None:
        """Draws the keys."""
        view = self.query_one("#help", LineView)
        view.show(self._draw)
        view.focus()

    def _draw(self, width: int, height: int) -> Sequence[Line]:
        lines: list[Line] = []
        for scope in self._scopes:
            if lines:
                lines.append(())
            lines.append(((f" {scope}", "title"),))
            for entry in ACTIONS:
                if entry.scope is not scope or not entry.keys:
                    continue
                off = entry.id in self._dimmed
                keys = " ".join(entry.keys)
                for index, part in enumerate(wrap(entry.help, max(width - 20, 20))):
                    name = keys if not index else ""
                    style = "off" if off else "key"
                    lines.append(((f"  {name:<16} ", style), (part, "off" if off else "ink")))
            if scope is Scope.STEER:
                lines += [((f"  {form:<33}", "key"), (what, "ink")) for form, what in HELP]
        return lines

    def action_scroll(self, rows: int) -> None:
        """Scrolls the help."""
        self.query_one("#help", LineView).move(rows)

    def action_dismiss_dialog(self) -> None:
        """Closes the help."""
        self.dismiss(None)
