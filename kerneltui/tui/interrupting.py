"""ctrl+c: ends a thought or the running evaluation, and when that is not enough asks about quitting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerneltui.model.command import First, Interrupt

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["Interrupting"]

_TWICE_NS = 2_000_000_000


class Interrupting:
    """What ctrl+c has ended so far.

    Args:
        app: The terminal.
    """

    def __init__(self, app: KernelTui) -> None:
        self._app = app
        self._pressed: int | None = None
        self._cut = False

    def press(self) -> None:
        """Ends a thought or the running evaluation; a second time within two seconds asks about quitting.

        Where a thought was cut under an evaluation, the second time ends that, and the third one asks.
        """
        app, now = self._app, self._app.monotonic()
        soon = self._pressed is not None and now - self._pressed < _TWICE_NS
        rest, self._cut = soon and self._cut, False
        if soon and not rest:
            self._pressed = None
            app.ask_quit()
            return
        self._pressed = now
        screen = app.base
        if screen is None:
            return
        if not app.feed.snapshot.may_decide:
            screen.say("ctrl+c again to quit")
            return
        screen.say("interrupting; ctrl+c again to quit")
        at_agents = screen.focused_panel in ("agents", "steer")
        app.run_worker(self._ask(rest=rest, at_agents=at_agents), group="command")

    async def _ask(self, *, rest: bool, at_agents: bool) -> None:
        """Asks for the end of what runs, and says what the engine ends: it alone knows."""
        first = First.THOUGHTS if at_agents else First.UNHEARD
        reply = await self._app.feed.ask(Interrupt(First.EVALUATION if rest else first))
        text = reply.error or str(reply.data.get("text") or "interrupting")
        left = "" if reply.error else str(reply.data.get("left") or "")
        self._cut = bool(left)
        if self._app.base is not None:
            self._app.base.say(f"{text}; ctrl+c again to {f'end {left}' if left else 'quit'}")
