"""Messages from workers to the app: a worker posts them and never touches a widget."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from kerneltui.tui.timeline import Timeline
from kerneltui.tui.view import Snapshot

__all__ = ["ConnectFailed", "Connected", "Connecting", "JobLines", "TimelineReady", "Updated"]


class Connecting(Message):
    """The engine is being started; one line on what it does."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__()


class Connected(Message):
    """The engine listens on a socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__()


class ConnectFailed(Message):
    """The engine could not be started or reached."""

    def __init__(self, text: str, exit_code: int) -> None:
        self.text = text
        self.exit_code = exit_code
        super().__init__()


class Updated(Message):
    """There is a new snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        super().__init__()


class JobLines(Message):
    """Lines for the job log."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__()


class TimelineReady(Message):
    """The whole journal of a session to replay has arrived."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        super().__init__()
