"""Frames on the engine's socket: a length in four bytes, then JSON.

Client to engine::

    {"frame": "hello", "protocol": 1, "readonly": false}
    {"frame": "command", "id": 7, "command": {"command": "accept", …}}

Engine to client::

    {"frame": "welcome", "protocol": 1, "writer": true, "replay": false, "position": 12, "state": {…}}
    {"frame": "journal", "events": [{…}, …]}        replay only, in chunks
    {"frame": "journal_end"}
    {"frame": "event", "position": 13, "event": {"event": "decided", "schema": 1, …}}
    {"frame": "progress", "progress": {…}}
    {"frame": "reply", "id": 7, "ok": true, "data": {…}}   or "ok": false, "error": "one line"
    {"frame": "writer", "writer": false}             another client took over
    {"frame": "goodbye", "reason": "…"}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

from kerneltui.model.errors import RecordError
from kerneltui.model.record import canonical_json, parse_json

__all__ = ["LARGEST_FRAME", "PROTOCOL", "FrameReader", "encode_frame"]

PROTOCOL = 1
LARGEST_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct("!I")


def encode_frame(frame: dict[str, Any]) -> bytes:
    """Returns a frame as bytes for the socket."""
    body = canonical_json(frame)
    if len(body) > LARGEST_FRAME:
        raise RecordError(f"a frame of {len(body)} bytes is over the limit of {LARGEST_FRAME}")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Turns bytes as they arrive into whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Takes bytes and returns an iterator over the frames that are complete.

        Raises:
            RecordError: A frame is too large or is not a JSON object.
        """
        self._buffer += data
        return self._complete()

    def _complete(self) -> Iterator[dict[str, Any]]:
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LARGEST_FRAME:
                raise RecordError(f"a frame of {length} bytes is over the limit of {LARGEST_FRAME}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            frame = parse_json(body)
            if not isinstance(frame, dict) or "frame" not in frame:
                raise RecordError("a frame is a JSON object with the key 'frame'")
            yield cast("dict[str, Any]", frame)
