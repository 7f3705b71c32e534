"""The app: one screen over one feed. It starts drawing before there is an engine."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.css.query import NoMatches

from kerneltui.tui.ending import Quit
from kerneltui.tui.screens.starting import StartingScreen
from kerneltui.tui.style import CSS
from kerneltui.tui.text import clean
from kerneltui.tui.theme import ANSI_THEME, DARK_THEME
from kerneltui.tui.typed import TypedInOrder

# Everything else is imported by the methods that need it, after the first frame.
if TYPE_CHECKING:
    from textual.command import Provider
    from textual.screen import Screen

    from kerneltui.tui.client import EngineLink
    from kerneltui.tui.feed import Feed
    from kerneltui.tui.interrupting import Interrupting
    from kerneltui.tui.messages import (
        Connected,
        ConnectFailed,
        Connecting,
        JobLines,
        TimelineReady,
        Updated,
    )
    from kerneltui.tui.reports import Reports
    from kerneltui.tui.screens.panels import PanelScreen
    from kerneltui.tui.sources import Sources

__all__ = ["Connect", "KernelTui", "OpenLink"]

Connect = Callable[[Callable[[str], None]], str]
OpenLink = Callable[[str], "Awaitable[EngineLink]"]


def _actions() -> type[Provider]:
    from kerneltui.tui.palette import ActionProvider

    return ActionProvider


class KernelTui(TypedInOrder[Quit], inherit_bindings=False):
    """The terminal."""

    TITLE = "kerneltui"
    CSS = CSS
    COMMANDS = {_actions}  # noqa: RUF012 - Textual's own type for it
    BINDINGS: ClassVar[list[BindingType]] = []
    # Textual would bind the palette with priority, which reaches into text inputs.
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        connect: Connect,
        open_link: OpenLink,
        *,
        readonly: bool,
        replay: bool,
        step: int | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
        clipboard_folder: Path | None = None,
        session: Path | None = None,
    ) -> None:
        super().__init__()
        self.use_command_palette = True
        self._connect = connect
        self._open_link = open_link
        self._readonly = readonly
        self._replay = replay
        self._step = step
        self.clock = clock
        self.monotonic = monotonic
        self.clipboard_folder = clipboard_folder
        self.session = session
        self._base: PanelScreen | None = None
        self.feed: Feed
        self.sources: Sources
        self.reports: Reports
        self._interrupting: Interrupting | None = None
        self._shown_title = ""
        self.register_theme(DARK_THEME)
        self.register_theme(ANSI_THEME)
        few = self.console.color_system in (None, "standard", "windows")
        self.theme = (ANSI_THEME if few else DARK_THEME).name

    def get_default_screen(self) -> Screen[None]:
        """Returns the screen of the first frame; there is no engine yet."""
        return StartingScreen(replay=self._replay)

    @property
    def base(self) -> PanelScreen | None:
        """The screen below all dialogs, while it is there.

        Messages of the feed may still arrive when the app is closing and the panels are gone already.
        """
        if self._base is None or not self._base.query("MainPanel"):
            return None
        return self._base

    def _furnish(self) -> None:
        """Brings in the real screen, which starts the engine once it can take what comes."""
        from kerneltui.tui.feed import Feed
        from kerneltui.tui.reports import Reports
        from kerneltui.tui.screens.replay import ReplayScreen
        from kerneltui.tui.screens.tuning import TuningScreen
        from kerneltui.tui.sources import Sources

        self.feed = Feed(self.post_message, readonly=self._readonly or self._replay)
        self.sources = Sources(self.feed.ask)
        self.reports = Reports(self.feed.ask)
        snapshot = self.feed.snapshot
        replay = self._replay
        self._base = ReplayScreen(snapshot, self._step) if replay else TuningScreen(snapshot)
        self.push_screen(self._base)
        # What is imported stays for good; a full collection over it would hold up a key by 100 ms.
        gc.collect()
        gc.freeze()

    def on_mount(self) -> None:
        """Prepares for ctrl+z, and for what comes after the first frame."""
        self.call_after_refresh(self._furnish)
        # After ctrl+z and fg the terminal is blank until everything is drawn again.
        self.app_resume_signal.subscribe(self, lambda _app: self.refresh(layout=True))

    # Connecting

    def reconnect(self) -> None:
        """Starts or finds the engine, in a thread: this can take long and cannot be stopped."""
        from kerneltui.tui.view import Link

        starting = "reading the session…" if self._replay else "starting the engine…"
        self.feed.report(Link("starting", starting))
        # A daemon thread, not a worker: quitting must not wait for an engine that does not come.
        threading.Thread(target=self._start_engine, name="connect", daemon=True).start()

    def _start_engine(self) -> None:
        from kerneltui.tui.messages import Connected, ConnectFailed, Connecting

        try:
            path = self._connect(lambda text: self._tell(Connecting(text)))
        except Exception as error:
            text = str(error) or type(error).__name__
            code = getattr(error, "exit_code", 1)
            self._tell(ConnectFailed(text, code if isinstance(code, int) else 1))
        else:
            self._tell(Connected(path))

    def _tell(self, message: Connecting | Connected | ConnectFailed) -> None:
        if self.is_running:
            self.post_message(message)

    def on_connecting(self, message: Connecting) -> None:
        """Shows what the engine does while it starts."""
        from kerneltui.tui.view import Link

        self.feed.report(Link("starting", clean(message.text)))

    def on_connected(self, message: Connected) -> None:
        """Follows the engine."""
        if self.clipboard_folder is None and message.path:
            self.clipboard_folder = Path(message.path).parent
        self.run_worker(self._follow(message.path), group="feed", exclusive=True)

    async def _follow(self, path: str) -> None:
        from kerneltui.tui.client import LinkError
        from kerneltui.tui.messages import ConnectFailed

        try:
            link = await self._open_link(path)
        except LinkError as error:
            self.post_message(ConnectFailed(str(error), 1))
            return
        await self.feed.run(link)

    def on_connect_failed(self, message: ConnectFailed) -> None:
        """Leaves with the reason; when there was a session already, it stays on screen."""
        from kerneltui.tui.view import Link

        if self.feed.snapshot.state.session:
            self.feed.report(Link("gone", clean(message.text)))
            return
        self.exit(Quit(exit_code=message.exit_code, message=message.text))

    # What the feed says

    def on_updated(self, message: Updated) -> None:
        """Gives the screen a new snapshot, and says when the engine went away."""
        screen = self.base
        if screen is None:
            return
        before = screen.snapshot.link.status
        with suppress(NoMatches):  # panels go one by one while the app closes
            screen.receive(message.snapshot)
        gone = message.snapshot.link.status == "gone" and before != "gone"
        if gone and not self._replay:
            self._offer_reconnect(message.snapshot.link.text)

    def on_job_lines(self, message: JobLines) -> None:
        """Gives the screen lines for the job log."""
        if self.base is not None:
            with suppress(NoMatches):  # panels go one by one while the app closes
                self.base.add_jobs(message.lines)

    def on_timeline_ready(self, message: TimelineReady) -> None:
        """Gives the replay screen its session."""
        if self.base is not None:
            with suppress(NoMatches):  # panels go one by one while the app closes
                self.base.show_timeline(message.timeline)

    def _offer_reconnect(self, reason: str) -> None:
        from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog

        choices = (
            Choice("c", "connect again, starting the engine if need be", "connect"),
            Choice("l", "look on without it (ctrl+p, reconnect, later)", "look"),
            Choice("q", "quit", "quit"),
        )

        def chosen(answer: str | None) -> None:
            if answer == "connect":
                self.reconnect()
            elif answer == "quit":
                self.exit(Quit(message=reason))

        text = f"{reason}\nThe session is in git; nothing that was decided is lost."
        self.push_screen(ChoiceDialog("The engine is gone", text, choices), chosen)

    # Attention, interrupting, quitting

    def attention(self, pending: int) -> None:
        """Rings the bell and puts the number of pending candidates into the window title."""
        self.bell()
        self.set_window_title(f"[{pending} pending] kerneltui")

    def set_window_title(self, title: str) -> None:
        """Sets the terminal's window title."""
        if self._driver is not None and not self.is_headless and title != self._shown_title:
            self._shown_title = title
            self._driver.write(f"\x1b]0;{clean(title)}\x07")

    async def interrupt(self) -> None:
        """Ends a thought or the running evaluation, or asks about quitting."""
        from kerneltui.tui.interrupting import Interrupting

        self._interrupting = self._interrupting or Interrupting(self)
        self._interrupting.press()

    def ask_quit(self) -> None:
        """Asks whether the engine stops; a terminal that cannot decide just leaves."""
        from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog

        if not self.feed.snapshot.may_decide:
            self.exit(Quit())
            return
        if isinstance(self.screen, ChoiceDialog):
            return
        choices = (
            Choice("l", "leave the engine running; kerneltui open attaches again", "leave"),
            Choice("s", "stop the engine, keeping the best", "stop"),
        )

        def chosen(answer: str | None) -> None:
            if answer == "leave":
                self.exit(Quit(message="the engine goes on; kerneltui open attaches again"))
            elif answer == "stop":
                self.run_worker(self._stop(), group="command")

        self.push_screen(ChoiceDialog("Quit", "", choices), chosen)

    async def _stop(self) -> None:
        from kerneltui.model.command import StopEngine

        reply = await self.feed.ask(StopEngine())
        # An engine that stops may close the link before it answers; that is no error.
        gone = reply.error == "the engine is gone"
        message = "" if not reply.error or gone else f"the engine did not stop: {reply.error}"
        self.exit(Quit(stop_engine=True, message=message))

    def on_unmount(self) -> None:
        """Closes the link."""
        if self._base is not None:
            self.feed.close()
