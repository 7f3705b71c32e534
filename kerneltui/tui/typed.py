"""Keys mean what they mean when they are typed, also those that come in one burst."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from textual import events
from textual.app import App
from textual.widgets import Input

__all__ = ["TypedInOrder"]

T = TypeVar("T")

_OPENING_S = 2.0
"""How long a key waits for a screen that is being opened; a screen that fails to open does not hold it up."""


class TypedInOrder(App[T], inherit_bindings=False):
    """An app that is done with a key before it looks at the next.

    Textual hands a key to the widget with the focus, whose turn comes later, and so does the turn of the
    action that the key stands for. What is typed meanwhile goes to the same widget: of `s` and a message in
    one burst, as after a pause of the network, the message would be taken for keys that accept, reject and
    pause.
    """

    async def on_event(self, event: events.Event) -> None:
        """Does at once what a key stands for, or writes it into the line that has the focus."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        await self._opened()
        field = self.focused
        if isinstance(field, Input) and isinstance(event, events.Paste):
            _write(field, next(iter(event.text.splitlines()), ""))
        elif isinstance(field, Input) and isinstance(event, events.Key) and event.is_printable:
            _write(field, event.character or "")
        elif not (isinstance(event, events.Key) and await self._run_bound(event.key)):
            await super().on_event(event)

    async def _opened(self) -> None:
        """Waits for the screen on top: a dialog has its line to type in only when it is mounted."""
        for _ in range(int(_OPENING_S / 0.005)):
            if self.screen.is_mounted:
                return
            await asyncio.sleep(0.005)

    async def _run_bound(self, key: str) -> bool:
        """Runs the action of a key, if one may be done now."""
        bound = self.active_bindings.get(key)
        if bound is None or not bound.enabled:
            return False
        return await self.run_action(bound.binding.action, bound.node)


def _write(field: Input, text: str) -> None:
    """Does what the input does with a key of its own, whose turn would come later."""
    selection = field.selection
    if selection.is_empty:
        field.insert_text_at_cursor(text)
    else:
        field.replace(text, *selection)
