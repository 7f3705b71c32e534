"""What the tests of the terminal stand on: an engine in memory, clocks that stand still, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fake_engine import Paper
from tui_record import record
from tui_session import SECOND, START

from kerneltui.model.command import decode_command
from kerneltui.model.frames import FrameReader, encode_frame
from kerneltui.tui.app import KernelTui
from kerneltui.tui.client import LinkError
from kerneltui.tui.screens.tuning import TuningScreen

NOW = START + 640 * SECOND


class PaperLink:
    """A link to a paper engine in the same process; frames go through their real encoding."""

    def __init__(self, paper: Paper) -> None:
        self.paper = paper
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader = FrameReader()
        self.closed = False
        self.hello: dict[str, Any] = {}
        self.held: list[dict[str, Any]] = []
        self.holding = False

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        while (frame := await self._queue.get()) is not None:
            yield frame

    def push(self, frame: dict[str, Any]) -> None:
        """Lets a frame arrive."""
        for whole in self._reader.feed(encode_frame(frame)):
            self._queue.put_nowait(whole)

    def release(self) -> None:
        """Lets the frames arrive that were held back."""
        self.holding = False
        for frame in self.held:
            self.push(frame)

    async def send(self, frame: dict[str, Any]) -> None:
        if self.closed:
            raise LinkError("the link to the engine is closed")
        if frame["frame"] == "hello":
            self.hello = frame
            answers = self.paper.welcome()
        else:
            answers = self.paper.take(frame["id"], decode_command(frame["command"]))
        for answer in answers:
            if self.holding:
                self.held.append(answer)
            else:
                self.push(answer)

    def break_off(self, reason: str = "") -> None:
        """The engine goes away."""
        if reason:
            self.push({"frame": "goodbye", "reason": reason})
        self._queue.put_nowait(None)

    def close(self) -> None:
        self.closed = True
        self._queue.put_nowait(None)


class Clock:
    """A monotonic clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 10 * SECOND

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Desk:
    """An app over a paper engine, for tests and pictures."""

    def __init__(
        self,
        *,
        replay: bool = False,
        writer: bool = True,
        step: int | None = None,
        paper: Paper | None = None,
        connect: Callable[[Callable[[str], None]], str] | None = None,
    ) -> None:
        self.paper = paper or Paper(record(), writer=writer, replay=replay)
        self.links: list[PaperLink] = []
        self.clock = Clock()
        self.app = KernelTui(
            connect or (lambda report: ""),
            self._open,
            readonly=not writer,
            replay=replay,
            step=step,
            clock=lambda: NOW,
            monotonic=self.clock,
        )

    async def _open(self, path: str) -> PaperLink:
        link = PaperLink(self.paper)
        self.links.append(link)
        return link

    @property
    def link(self) -> PaperLink:
        return self.links[-1]

    @property
    def decisions(self) -> list[object]:
        """The commands that came, without queries."""
        return [c for c in self.paper.commands if not type(c).__name__.startswith("Read")]


async def until(pilot: Any, condition: Callable[[], object], what: str = "") -> None:
    """Waits for a condition, without guessing how long it takes."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 20
    while not condition():
        assert loop.time() < end, f"never: {what or condition}"
        await pilot.pause(0.01)
    await pilot.pause()


def drive(*, size: tuple[int, int] = (80, 24), **options: Any) -> Callable[..., Callable[[], None]]:
    """Makes a test of a scenario: `async def test_x(desk, pilot)` over a session that is up."""

    def wrap(scenario: Callable[[Desk, Any], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            async def play() -> None:
                desk = Desk(**options)
                async with desk.app.run_test(size=size) as pilot:
                    await until(
                        pilot, lambda: getattr(desk.app.base, "loaded", None), "the first diff"
                    )
                    desk.clock.advance(1)
                    await scenario(desk, pilot)

            asyncio.run(play())

        test.__name__ = scenario.__name__
        test.__doc__ = scenario.__doc__
        return test

    return wrap


def shown(desk: Desk) -> list[str]:
    """Returns the screen as lines of text."""
    app = desk.app
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.screen.size)
    return [strip.text[:width] for strip in lines[:height]]


def has(desk: Desk, text: str) -> bool:
    """Whether a text is on the screen."""
    return any(text in line for line in shown(desk))


def tuning(desk: Desk) -> TuningScreen:
    screen = desk.app.base
    assert isinstance(screen, TuningScreen)
    return screen


async def select(desk: Desk, pilot: Any, candidate: str) -> None:
    """Puts a candidate on the screen and lets the grace pass."""
    screen = tuning(desk)
    screen.candidates.select(candidate)
    await until(
        pilot,
        lambda: screen.loaded is not None and screen.loaded.candidate == candidate,
        f"the diff of {candidate}",
    )
    desk.clock.advance(1)
