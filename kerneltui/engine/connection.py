"""A listening Unix socket and its connections, each with a reading and a writing thread.

Every client has a queue of its own, so a terminal that does not read can never hold the engine up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

from kerneltui.model.errors import RecordError
from kerneltui.model.frames import PROTOCOL, FrameReader, encode_frame

__all__ = ["Connection", "Host", "Listener", "bound_path", "connect"]

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


class Host(Protocol):
    """What serves the clients."""

    def welcome(self, client: Connection, *, readonly: bool) -> None:
        """A client said hello."""
        ...

    def leave(self, client: Connection) -> None:
        """A client is gone."""
        ...

    def command(self, client: Connection, number: Any, plain: dict[str, Any]) -> None:
        """A client asks for something."""
        ...


class Listener:
    """Accepts clients on a socket file for a host."""

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def start(self, host: Host) -> None:
        """Begins to accept."""
        threading.Thread(target=self._accept, args=(host,), name="server", daemon=True).start()

    def close(self) -> None:
        """Stops listening and removes the socket file."""
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def _accept(self, host: Host) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            client = Connection(connection, host)
            threading.Thread(target=client.read, name="client", daemon=True).start()


class Connection:
    """One client. `readonly` is what it asked for."""

    def __init__(self, connection: socket.socket, host: Host) -> None:
        self._connection = connection
        self._host = host
        self._frames: queue.Queue[bytes | None] = queue.Queue(MOST_BEHIND)
        self._sender = threading.Thread(target=self._send, name="client-send", daemon=True)
        self._sender.start()
        self.readonly = False

    def put(self, frame: bytes) -> None:
        """Queues a frame; a client that is too far behind is dropped."""
        try:
            self._frames.put_nowait(frame)
        except queue.Full:
            self._drop()

    def finish(self) -> None:
        """Sends what is queued, then hangs up."""
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
        """Reads frames until the client goes away."""
        reader = FrameReader()
        try:
            while data := self._connection.recv(65536):
                for frame in reader.feed(data):
                    self._take(frame)
        except (OSError, RecordError) as error:
            if isinstance(error, RecordError):
                self.put(encode_frame({"frame": "goodbye", "reason": str(error)}))
        finally:
            self._host.leave(self)
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
                self._host.welcome(self, readonly=self.readonly)
            case "command":
                self._host.command(self, frame.get("id"), frame.get("command") or {})
            case kind:
                raise RecordError(f"unexpected frame '{kind}'")
