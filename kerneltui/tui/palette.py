"""The palette: every action of the screen with its key and, when it cannot be used, why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from kerneltui.tui.keymap import Action
from kerneltui.tui.screens.panels import PanelScreen

__all__ = ["ActionProvider"]


class ActionProvider(Provider):
    """Offers the actions of the screen below the palette."""

    def _entries(self) -> Iterator[tuple[Action, str, str]]:
        screen = self.screen
        if isinstance(screen, PanelScreen):
            for entry in screen.offered():
                keys = f"  ({' '.join(entry.keys)})" if entry.keys else ""
                refusal = screen.refusal(entry.id)
                about = f"not now: {refusal}" if refusal else entry.help
                yield entry, f"{entry.text}{keys}", about

    def _command(self, entry: Action) -> partial[object]:
        screen = self.screen
        if not isinstance(screen, PanelScreen):
            raise TypeError("the palette was opened over a screen without actions")
        return partial(screen.perform, entry)

    async def discover(self) -> Hits:
        """Offers everything."""
        for entry, text, about in self._entries():
            yield DiscoveryHit(Content(text), self._command(entry), text=text, help=about)

    async def search(self, query: str) -> Hits:
        """Offers what fits the query, by text, key or explanation."""
        matcher = self.matcher(query)
        for entry, text, about in self._entries():
            score = max(matcher.match(text), matcher.match(entry.help) * 0.6)
            if score > 0:
                yield Hit(score, Content(text), self._command(entry), text=text, help=about)
