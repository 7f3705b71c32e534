"""What untrusted programs print: drained, counted, and kept only at its two ends."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KEPT_BYTES", "KeptOutput", "OutputKeeper"]

KEPT_BYTES = 64 * 1024
"""Bytes kept from the beginning, and again from the end."""


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """The two ends of an output. It is text to show, never a result.

    Attributes:
        total: Bytes that were written.
        head: The first bytes.
        tail: The last bytes that are not in `head`.
    """

    total: int
    head: bytes
    tail: bytes

    @property
    def text(self) -> str:
        """Both ends with a line between them that says what is missing."""
        missing = self.total - len(self.head) - len(self.tail)
        gap = f"\n[{missing} bytes left out]\n".encode() if missing else b""
        return (self.head + gap + self.tail).decode("utf-8", "replace")


class OutputKeeper:
    """Takes an output piece by piece."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, piece: bytes) -> None:
        """Takes the next piece."""
        self._total += len(piece)
        room = self._limit - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        self._tail += piece[-self._limit :]
        # Cut late, so that many small pieces cost one move of memory and not one each.
        if len(self._tail) > 4 * self._limit:
            del self._tail[: -self._limit]

    def kept(self) -> KeptOutput:
        """What is kept so far."""
        return KeptOutput(self._total, bytes(self._head), bytes(self._tail[-self._limit :]))
