"""The feed: frames from the engine become snapshots, commands become frames.

It folds events with `State.apply`, exactly as the engine and replay do, and posts one frozen snapshot
for all that came within a short time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from textual.message import Message

from kerneltui.model.agent_event import ModelCallStarted
from kerneltui.model.command import Command, Progress, encode_command
from kerneltui.model.errors import ModelError
from kerneltui.model.event import Event, decode_event
from kerneltui.model.frames import PROTOCOL
from kerneltui.model.record import canonical_json, from_plain
from kerneltui.model.state import State
from kerneltui.tui.client import EngineLink, LinkError
from kerneltui.tui.messages import JobLines, TimelineReady, Updated
from kerneltui.tui.text import clean
from kerneltui.tui.timeline import Timeline
from kerneltui.tui.view import Link, Live, Snapshot

__all__ = ["Feed", "Reply"]

_BATCH = 0.03  # seconds; what comes within is one snapshot
_JOB_BATCH = 0.1


@dataclass(frozen=True, slots=True)
class Reply:
    """The engine's answer to a command: its data, or one line on why not."""

    data: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""


def _plain_event(plain: Any) -> Event:
    return decode_event(canonical_json(plain))


class Feed:
    """One terminal's connection to an engine, over as many links as it takes."""

    def __init__(self, post: Callable[[Message], object], *, readonly: bool) -> None:
        self._post = post
        self._readonly = readonly
        self._link: EngineLink | None = None
        self._state = State()
        self._live = Live()
        self._standing = Link()
        self._events: list[Event] = []
        self._jobs: list[str] = []
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._number = 0
        self._flush: asyncio.TimerHandle | None = None
        self._flush_jobs: asyncio.TimerHandle | None = None

    @property
    def snapshot(self) -> Snapshot:
        """Returns a frozen copy of what is known now."""
        return Snapshot(self._state.copy(), self._live, self._standing)

    def report(self, link: Link) -> None:
        """Tells how this terminal stands with the engine, and posts a snapshot at once."""
        self._standing = link
        self._post(Updated(self.snapshot))

    async def run(self, link: EngineLink) -> None:
        """Follows a link until it ends; then the snapshot says that the engine is gone."""
        self._link = link
        reason = "the engine closed the link"
        try:
            hello = {"frame": "hello", "protocol": PROTOCOL, "readonly": self._readonly}
            await link.send(hello)
            async for frame in link.frames():
                if frame["frame"] == "goodbye":
                    reason = clean(str(frame.get("reason", reason)))
                else:
                    await self._take(frame)
        except (LinkError, ModelError) as error:
            reason = str(error)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"the engine sent a frame that this terminal cannot read: {error!r}"
        finally:
            link.close()
            self._link = None
            self._fail_pending()
        self.report(Link("gone", reason))

    def close(self) -> None:
        """Closes the link; the feed ends soon after."""
        if self._link:
            self._link.close()

    async def ask(self, command: Command) -> Reply:
        """Sends a command or query and waits for the engine's answer."""
        if self._link is None:
            return Reply(error="the engine is gone")
        self._number += 1
        number = self._number
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            plain = encode_command(command)
            await self._link.send({"frame": "command", "id": number, "command": plain})
            return await future
        except LinkError as error:
            return Reply(error=str(error))
        finally:
            self._pending.pop(number, None)

    def _fail_pending(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_result(Reply(error="the engine is gone"))

    async def _take(self, frame: dict[str, Any]) -> None:
        match frame["frame"]:
            case "welcome":
                await self._welcome(frame)
            case "journal":
                self._events += await asyncio.to_thread(
                    lambda: [_plain_event(plain) for plain in frame["events"]]
                )
                self.report(Link("replay", f"reading the journal: {len(self._events)} events"))
            case "journal_end":
                timeline = await asyncio.to_thread(Timeline, self._events)
                self._post(TimelineReady(timeline))
            case "event":
                if frame["position"] > self._state.position:
                    event = _plain_event(frame["event"])
                    self._state.apply(event)
                    if isinstance(event, ModelCallStarted):
                        self._live = self._live.began(event.agent)
                    self._changed()
            case "progress":
                self._progress(from_plain(Progress, frame["progress"]))
            case "reply":
                future = self._pending.get(frame["id"])
                if future and not future.done():
                    error = "" if frame["ok"] else str(frame.get("error", "refused"))
                    future.set_result(Reply(frame.get("data") or {}, error))
            case "writer":
                self._standing = Link("live", "", bool(frame["writer"]))
                self._changed()
            case _:
                # A newer engine may say more than this terminal knows; the state is not affected.
                return

    async def _welcome(self, frame: dict[str, Any]) -> None:
        if frame["protocol"] != PROTOCOL:
            raise LinkError(
                f"the engine speaks protocol {frame['protocol']}, this terminal {PROTOCOL}; "
                "use the same version of kerneltui for both"
            )
        self._state = await asyncio.to_thread(from_plain, State, frame["state"])
        self._live = Live()
        self._events = []
        replay = bool(frame.get("replay"))
        writer = bool(frame.get("writer")) and not replay
        self.report(Link("replay" if replay else "live", "", writer))

    def _progress(self, progress: Progress) -> None:
        if progress.kind == "job":
            about = f"{progress.about}  " if progress.about else ""
            self._jobs += [f"{about}{clean(part)}" for part in progress.text.split("\n")]
            if self._flush_jobs is None:
                loop = asyncio.get_running_loop()
                self._flush_jobs = loop.call_later(_JOB_BATCH, self._post_jobs)
            return
        self._live = self._live.fold(progress)
        self._changed()

    def _post_jobs(self) -> None:
        self._flush_jobs = None
        lines, self._jobs = self._jobs, []
        self._post(JobLines(lines))

    def _changed(self) -> None:
        if self._flush is None:
            # A large session costs more to draw, so it is drawn less often.
            delay = _BATCH + len(self._state.candidates) * 2e-5
            self._flush = asyncio.get_running_loop().call_later(delay, self._post_snapshot)

    def _post_snapshot(self) -> None:
        self._flush = None
        self._post(Updated(self.snapshot))
