"""Length-prefixed JSON over a socket, with descriptors beside it, and a deadline on every wait."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel", "ChannelClosed", "ChannelTimeout"]

_HEADER = struct.Struct(">I")
_LONGEST_MESSAGE = 16 << 20
_MOST_DESCRIPTORS = 250  # the kernel's limit is 253 a message


class ChannelClosed(Exception):
    """The other side is gone, or sent what is no message."""


class ChannelTimeout(Exception):
    """The other side did not answer in time."""


class Channel:
    """One end of a stream socket. One thread at a time may send, and one receive.

    Args:
        end: A connected stream socket. The channel owns it.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._socket.fileno()

    def send(
        self, message: dict[str, Any], descriptors: Sequence[int] = (), *, timeout_s: float = 10.0
    ) -> None:
        """Sends one message.

        Raises:
            ChannelClosed: If the other side is gone.
            ChannelTimeout: If it takes nothing any more.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > _LONGEST_MESSAGE or len(descriptors) > _MOST_DESCRIPTORS:
            raise ValueError(f"a message of {len(body)} bytes, {len(descriptors)} descriptors")
        rest = memoryview(_HEADER.pack(len(body)) + body)
        deadline = time.monotonic() + timeout_s
        while rest:
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [rest], list(descriptors))
                    descriptors = ()
                else:
                    sent = self._socket.send(rest, socket.MSG_NOSIGNAL)
                rest = rest[sent:]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def receive(self, deadline: float | None) -> dict[str, Any]:
        """Waits for the next message. Descriptors that come along are dropped by the kernel.

        Args:
            deadline: By `time.monotonic()`; None waits for ever.

        Raises:
            ChannelClosed: If the other side is gone or sends no JSON object.
            ChannelTimeout: If the deadline passes.
        """
        while True:
            message = self._take()
            if message is not None:
                return message
            self._wait(select.POLLIN, deadline)
            self.feed()

    def receive_with_descriptors(self, deadline: float | None) -> tuple[dict[str, Any], list[int]]:
        """As `receive`, and takes the descriptors that came so far. For trusted peers."""
        while True:
            message = self._take()
            if message is not None:
                return message, self.taken()
            self._wait(select.POLLIN, deadline)
            self.feed(descriptors=_MOST_DESCRIPTORS)

    def feed(self, *, descriptors: int = 0) -> None:
        """Reads what has come, without waiting.

        Args:
            descriptors: So many are taken at most until a message is; the kernel drops the others.

        Raises:
            ChannelClosed: If the other side is gone.
        """
        room = descriptors - len(self._descriptors)
        try:
            if room > 0:
                piece, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, room)
                self._descriptors += fds
            else:
                piece = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not piece:
            raise ChannelClosed("the other side closed")
        self._buffer += piece

    def pending(self) -> dict[str, Any] | None:
        """The next message if it has come as a whole; after `feed`."""
        return self._take()

    def taken(self) -> list[int]:
        """The descriptors that came so far; after `feed`. The caller closes them."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def shutdown(self) -> None:
        """Ends both directions, from any thread; whoever waits on either side wakes up."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # gone already

    def close(self) -> None:
        """Closes the socket, and descriptors that nobody took."""
        for descriptor in self.taken():
            os.close(descriptor)
        self._socket.close()

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > _LONGEST_MESSAGE:
            raise ChannelClosed(f"a message of {length} bytes")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ChannelClosed(f"no JSON: {error}") from error
        if not isinstance(message, dict):
            raise ChannelClosed("no JSON object")
        return message

    def _wait(self, event: int, deadline: float | None) -> None:
        # poll, since select fails on descriptors above 1023.
        poll = select.poll()
        poll.register(self._socket, event)
        if deadline is None:
            poll.poll()
            return
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise ChannelTimeout
