"""The app: one screen over one feed. It starts drawing before there is an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import BindingType

from kerneltui.model.command import Interrupt, StopEngine
from kerneltui.tui.client import EngineLink, LinkError
from kerneltui.tui.feed import Feed
from kerneltui.tui.messages import (
    Connected,
    ConnectFailed,
    Connecting,
    JobLines,
    TimelineReady,
    Updated,
)
from kerneltui.tui.palette import ActionProvider
from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog
from kerneltui.tui.screens.panels import PanelScreen
from kerneltui.tui.screens.replay import ReplayScreen
from kerneltui.tui.screens.tuning import TuningScreen
from kerneltui.tui.sources import Sources
from kerneltui.tui.style import CSS
from kerneltui.tui.text import clean
from kerneltui.tui.theme import ANSI_THEME, DARK_THEME
from kerneltui.tui.view import Link

__all__ = ["Connect", "KernelTui", "OpenLink", "Quit"]

Connect = Callable[[Callable[[str], None]], str]
OpenLink = Callable[[str], Awaitable[EngineLink]]

_TWICE_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Quit:
    """How the terminal ended.

    Attributes:
        stop_engine: The user wants the engine stopped; the command was sent if the link was up.
        exit_code: What the process should return.
        message: One line for the user, or nothing.
    """

    stop_engine: bool = False
    exit_code: int = 0
    message: str = ""


class KernelTui(App[Quit], inherit_bindings=False):
    """The terminal."""

    TITLE = "kerneltui"
    CSS = CSS
    COMMANDS: ClassVar[set[type[ActionProvider]]] = {ActionProvider}  # pyright: ignore
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
        self.feed = Feed(self.post_message, readonly=readonly or replay)
        self.sources = Sources(self.feed.ask)
        self._interrupted: int | None = None
        self._shown_title = ""
        self.register_theme(DARK_THEME)
        self.register_theme(ANSI_THEME)
        few = self.console.color_system in (None, "standard", "windows")
        self.theme = (ANSI_THEME if few else DARK_THEME).name

    def get_default_screen(self) -> PanelScreen:
        """Returns the screen of the first frame; there is no engine yet."""
        snapshot = self.feed.snapshot
        return ReplayScreen(snapshot, self._step) if self._replay else TuningScreen(snapshot)

    @property
    def base(self) -> PanelScreen | None:
        """The screen below all dialogs."""
        screen = self.screen_stack[0] if self.screen_stack else None
        return screen if isinstance(screen, PanelScreen) else None

    def on_mount(self) -> None:
        """Prepares for ctrl+z. The engine is started by the screen, once it can take what comes."""
        # After ctrl+z and fg the terminal is blank until everything is drawn again.
        self.app_resume_signal.subscribe(self, lambda _app: self.refresh(layout=True))

    # Connecting

    def reconnect(self) -> None:
        """Starts or finds the engine, in a thread: this can take long and cannot be stopped."""
        starting = "reading the session…" if self._replay else "starting the engine…"
        self.feed.report(Link("starting", starting))
        # A daemon thread, not a worker: quitting must not wait for an engine that does not come.
        threading.Thread(target=self._start_engine, name="connect", daemon=True).start()

    def _start_engine(self) -> None:
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
        self.feed.report(Link("starting", clean(message.text)))

    def on_connected(self, message: Connected) -> None:
        """Follows the engine."""
        if self.clipboard_folder is None and message.path:
            self.clipboard_folder = Path(message.path).parent
        self.run_worker(self._follow(message.path), group="feed", exclusive=True)

    async def _follow(self, path: str) -> None:
        try:
            link = await self._open_link(path)
        except LinkError as error:
            self.post_message(ConnectFailed(str(error), 1))
            return
        await self.feed.run(link)

    def on_connect_failed(self, message: ConnectFailed) -> None:
        """Leaves with the reason; when there was a session already, it stays on screen."""
        if self.feed.snapshot.state.session:
            self.feed.report(Link("gone", clean(message.text)))
            return
        self.exit(Quit(exit_code=message.exit_code, message=message.text))

    # What the feed says

    def on_updated(self, message: Updated) -> None:
        """Gives the screen a new snapshot, and says when the engine went away."""
        screen = self.base
        if isinstance(screen, TuningScreen):
            before = screen.snapshot.link.status
            screen.receive(message.snapshot)
            if message.snapshot.link.status == "gone" and before != "gone":
                self._offer_reconnect(message.snapshot.link.text)
        elif isinstance(screen, ReplayScreen):
            screen.receive(message.snapshot)

    def on_job_lines(self, message: JobLines) -> None:
        """Gives the screen lines for the job log."""
        screen = self.base
        if isinstance(screen, TuningScreen | ReplayScreen):
            screen.add_jobs(message.lines)

    def on_timeline_ready(self, message: TimelineReady) -> None:
        """Gives the replay screen its session."""
        screen = self.base
        if isinstance(screen, ReplayScreen):
            screen.show_timeline(message.timeline)

    def _offer_reconnect(self, reason: str) -> None:
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
        """Ends the running evaluation; a second time within two seconds asks about quitting."""
        now = self.monotonic()
        screen = self.base
        if self._interrupted is not None and now - self._interrupted < _TWICE_NS:
            self._interrupted = None
            self.ask_quit()
            return
        self._interrupted = now
        if screen is None:
            return
        if not self.feed.snapshot.may_decide:
            screen.say("ctrl+c again to quit")
            return
        screen.say("interrupting the evaluation; ctrl+c again to quit")
        self.run_worker(self.feed.ask(Interrupt()), group="command")

    def ask_quit(self) -> None:
        """Asks whether the engine stops; a terminal that cannot decide just leaves."""
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
        reply = await self.feed.ask(StopEngine())
        # An engine that stops may close the link before it answers; that is no error.
        gone = reply.error == "the engine is gone"
        message = "" if not reply.error or gone else f"the engine did not stop: {reply.error}"
        self.exit(Quit(stop_engine=True, message=message))

    def on_unmount(self) -> None:
        """Closes the link."""
        self.feed.close()
