"""The engine's socket: any number of clients, one of which may decide."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kerneltui.engine.commands import READ_COMMANDS, Request
from kerneltui.engine.connection import Connection, Listener
from kerneltui.model.command import Progress, TakeOver, decode_command
from kerneltui.model.errors import RecordError
from kerneltui.model.event import Event
from kerneltui.model.frames import PROTOCOL, encode_frame
from kerneltui.model.record import parse_json, to_plain
from kerneltui.model.state import State

__all__ = ["Server"]


class Server:
    """Listens, welcomes clients with the state, broadcasts events and progress."""

    def __init__(self, path: Path, post: Callable[[object], None]) -> None:
        self._listener = Listener(path)
        self._post = post
        self._lock = threading.RLock()
        self._clients: list[Connection] = []
        self._writer: Connection | None = None
        self._state: Callable[[], State] = State

    def start(self, state: Callable[[], State]) -> None:
        """Begins to accept clients; `state` returns the fold of now.

        `publish` and the welcome take the same lock, so a client misses no event and gets none twice.
        """
        self._state = state
        self._listener.start(self)

    def clients(self) -> int:
        """Returns the number of clients."""
        with self._lock:
            return len(self._clients)

    @contextlib.contextmanager
    def publishing(self) -> Generator[None]:
        """Holds off welcomes while the state and the stream of events must agree."""
        with self._lock:
            yield

    def publish(self, position: int, event: Event, body: bytes) -> None:
        """Sends an event to all clients."""
        del event
        frame = encode_frame({"frame": "event", "position": position, "event": parse_json(body)})
        self._broadcast(frame)

    def progress(self, progress: Progress) -> None:
        """Sends progress to all clients."""
        self._broadcast(encode_frame({"frame": "progress", "progress": to_plain(progress)}))

    def close(self, reason: str) -> None:
        """Says goodbye and stops listening."""
        self._broadcast(encode_frame({"frame": "goodbye", "reason": reason}))
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.finish()
        self._listener.close()

    def _broadcast(self, frame: bytes) -> None:
        with self._lock:
            for client in list(self._clients):
                client.put(frame)

    def welcome(self, client: Connection, *, readonly: bool) -> None:
        """Adds a client; the first that may write is the one that decides."""
        with self._lock:
            if self._writer is None and not readonly:
                self._writer = client
            state = self._state()
            frame = {
                "frame": "welcome",
                "protocol": PROTOCOL,
                "writer": self._writer is client,
                "replay": False,
                "position": state.position,
                "state": to_plain(state),
            }
            client.put(encode_frame(frame))
            self._clients.append(client)

    def leave(self, client: Connection) -> None:
        """Forgets a client; if it was the writer, nobody is until one takes over or connects."""
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)
            if self._writer is client:
                self._writer = None
                waiting = [other for other in self._clients if not other.readonly]
                if waiting:
                    self._make_writer(waiting[0])

    def command(self, client: Connection, number: Any, plain: dict[str, Any]) -> None:
        """Passes a command on to the tuner, or answers it here."""

        def reply(ok: bool, data: Any) -> None:
            frame = {"frame": "reply", "id": number, "ok": ok, ("data" if ok else "error"): data}
            client.put(encode_frame(frame))

        try:
            command = decode_command(plain)
        except RecordError as error:
            reply(False, str(error))
            return
        with self._lock:
            writer = self._writer
            if isinstance(command, TakeOver):
                self._make_writer(client)
                reply(True, {})
                return
        if writer is not client and not isinstance(command, READ_COMMANDS):
            reply(False, "read-only: another terminal decides; take over from the palette first")
            return
        self._post(Request(command, reply))

    def _make_writer(self, client: Connection) -> None:
        old, self._writer = self._writer, client
        client.readonly = False
        if old is not None and old is not client:
            old.put(encode_frame({"frame": "writer", "writer": False}))
        client.put(encode_frame({"frame": "writer", "writer": True}))
