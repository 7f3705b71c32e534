"""The link to the engine: frames up and down a Unix socket.

Reading happens in a thread of its own, so the engine is never held up by this terminal: not while an
editor has the screen, and not while a large state is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from kerneltui.model.errors import ModelError
from kerneltui.model.frames import FrameReader, encode_frame

__all__ = ["EngineLink", "LinkError", "SocketLink"]

_LONGEST_ADDRESS = 107  # bytes of sun_path on Linux, without the final zero
_CHUNK = 256 * 1024
_SEND_TIMEOUT = 5.0


class LinkError(Exception):
    """The engine cannot be reached or the link broke; the text is one line for the user."""


class EngineLink(Protocol):
    """What the terminal needs of an engine."""

    def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yields frames as they come; ends when the engine closes the link.

        Raises:
            LinkError: The link broke, or what came was no frame.
        """
        ...

    async def send(self, frame: dict[str, Any]) -> None:
        """Sends a frame.

        Raises:
            LinkError: The link is broken.
        """
        ...

    def close(self) -> None:
        """Closes the link; may be called more than once."""
        ...


def _connected(path: Path) -> socket.socket:
    """Connects to a Unix socket whose path may be longer than an address may be."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_SEND_TIMEOUT)
        if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
            link.connect(str(path))
        else:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                link.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
        link.settimeout(None)
    except OSError as error:
        link.close()
        raise LinkError(f"{path}: cannot reach the engine: {error.strerror or error}") from error
    return link


class SocketLink:
    """A link over a connected stream socket."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[dict[str, Any] | LinkError | None] = asyncio.Queue()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="engine link", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, path: str) -> SocketLink:
        """Connects to the engine's socket.

        Raises:
            LinkError: Nobody listens there.
        """
        return cls(await asyncio.to_thread(_connected, Path(path)))

    def _put(self, item: dict[str, Any] | LinkError | None) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # the loop is closed: the terminal has quit
            return False
        return True

    def _read(self) -> None:
        reader = FrameReader()
        end: LinkError | None = None
        try:
            while data := self._socket.recv(_CHUNK):
                for frame in reader.feed(data):
                    if not self._put(frame):
                        return
        except OSError as error:
            end = None if self._closed else LinkError(f"the link broke: {error.strerror or error}")
        except ModelError as error:
            end = LinkError(f"the engine sent what is no frame: {error}")
        self._put(end)

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yields frames as they come; ends when the engine closes the link."""
        while (item := await self._queue.get()) is not None:
            if isinstance(item, LinkError):
                raise item
            yield item

    async def send(self, frame: dict[str, Any]) -> None:
        """Sends a frame; the engine reads at once, so this does not wait long."""
        if self._closed:
            raise LinkError("the link to the engine is closed")
        data = encode_frame(frame)
        try:
            await asyncio.wait_for(asyncio.to_thread(self._socket.sendall, data), _SEND_TIMEOUT)
        except TimeoutError as error:
            raise LinkError("the engine does not read what this terminal sends") from error
        except OSError as error:
            raise LinkError(f"the link broke: {error.strerror or error}") from error

    def close(self) -> None:
        """Closes the link; the reading thread ends."""
        if self._closed:
            return
        self._closed = True
        # The other side may have been faster; closing is all that is left to do then.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
