"""The engine's socket: any number of clients, one of which may decide (DESIGN 4).

Each client has a reading thread and a writing thread with a queue of its own, so a terminal that does
not read can never hold the engine up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kerneltui.engine.commands import READ_COMMANDS, Request
from kerneltui.model.command import Progress, TakeOver, decode_command
from kerneltui.model.errors import RecordError
from kerneltui.model.event import Event
from kerneltui.model.frames import PROTOCOL, FrameReader, encode_frame
from kerneltui.model.record import parse_json, to_plain
from kerneltui.model.state import State

__all__ = ["Server", "bound_path", "connect"]

# A client that is this many frames behind is dropped; it can connect again and gets the state.
MOST_BEHIND = 20_000


@contextlib.contextmanager
def bound_path(path: Path) -> Generator[str]:
    """Yields an address for a socket file whose path may be longer than the 107 bytes allowed."""
    text = str(path)
    if len(os.fsencode(text)) <= 100:
        yield text
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout: float = 5.0) -> socket.socket:
    """Connects to an engine.

    Raises:
        OSError: No engine listens there.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout)
    try:
        with bound_path(path) as address:
            client.connect(address)
    except OSError:
        client.close()
        raise
    client.settimeout(None)
    return client


class Server:
    """Listens, welcomes clients with the state, broadcasts events and progress."""

    def __init__(self, path: Path, post: Callable[[object], None]) -> None:
        self._path = path
        self._post = post
        self._lock = threading.RLock()
        self._clients: list[_Client] = []
        self._writer: _Client | None = None
        self._state: Callable[[], State] = State
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with bound_path(path) as address:
            old = os.umask(0o077)
            try:
                self._socket.bind(address)
            finally:
                os.umask(old)
        self._socket.listen(16)

    def start(self, state: Callable[[], State]) -> None:
        """Begins to accept clients; `state` returns the fold of now.

        `publish` and the welcome take the same lock, so a client misses no event and gets none twice.
        """
        self._state = state
        threading.Thread(target=self._accept, name="server", daemon=True).start()

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
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def _broadcast(self, frame: bytes) -> None:
        with self._lock:
            for client in list(self._clients):
                client.put(frame)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            client = _Client(connection, self)
            threading.Thread(target=client.read, name="client", daemon=True).start()

    def welcome(self, client: _Client, *, readonly: bool) -> None:
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

    def leave(self, client: _Client) -> None:
        """Forgets a client; if it was the writer, nobody is until one takes over or connects."""
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)
            if self._writer is client:
                self._writer = None
                waiting = [other for other in self._clients if not other.readonly]
                if waiting:
                    self._make_writer(waiting[0])

    def command(self, client: _Client, number: Any, plain: dict[str, Any]) -> None:
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

    def _make_writer(self, client: _Client) -> None:
        old, self._writer = self._writer, client
        client.readonly = False
        if old is not None and old is not client:
            old.put(encode_frame({"frame": "writer", "writer": False}))
        client.put(encode_frame({"frame": "writer", "writer": True}))


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._frames: queue.Queue[bytes | None] = queue.Queue(MOST_BEHIND)
        self._sender = threading.Thread(target=self._send, name="client-send", daemon=True)
        self._sender.start()
        self.readonly = False

    def put(self, frame: bytes) -> None:
        try:
            self._frames.put_nowait(frame)
        except queue.Full:
            self._drop()

    def finish(self) -> None:
        with contextlib.suppress(queue.Full):
            self._frames.put_nowait(None)
        self._sender.join(2.0)
        self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self) -> None:
        while (frame := self._frames.get()) is not None:
            try:
                self._connection.sendall(frame)
            except OSError:
                return

    def read(self) -> None:
        reader = FrameReader()
        try:
            while data := self._connection.recv(65536):
                for frame in reader.feed(data):
                    self._take(frame)
        except (OSError, RecordError) as error:
            if isinstance(error, RecordError):
                self.put(encode_frame({"frame": "goodbye", "reason": str(error)}))
        finally:
            self._server.leave(self)
            with contextlib.suppress(queue.Full):
                self._frames.put_nowait(None)
            self._sender.join(2.0)
            self._connection.close()

    def _take(self, frame: dict[str, Any]) -> None:
        match frame.get("frame"):
            case "hello":
                if frame.get("protocol") != PROTOCOL:
                    raise RecordError(
                        f"this engine speaks protocol {PROTOCOL}, not {frame.get('protocol')}"
                    )
                self.readonly = bool(frame.get("readonly"))
                self._server.welcome(self, readonly=self.readonly)
            case "command":
                self._server.command(self, frame.get("id"), frame.get("command") or {})
            case kind:
                raise RecordError(f"unexpected frame '{kind}'")
