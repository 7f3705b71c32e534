"""What a model says while it says it: pieces of thinking, text and tool input, kept to the last of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Piece", "Stream"]

_KEPT = 8_000  # characters
_CHARACTERS_PER_TOKEN = 3.5  # about; the server's count comes with the end of the call
_KINDS = frozenset({"thinking", "text", "tool"})


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply; `kind` is `thinking`, `text` or `tool`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Stream:
    """The reply to one call, as far as it came.

    Attributes:
        pieces: Oldest first.
        heard: All characters that came.
        status: What the provider said last: a retry, a wait; gone with the next piece.
        cut: Whether the beginning is not kept.
    """

    pieces: tuple[Piece, ...] = ()
    heard: int = 0
    status: str = ""
    cut: bool = False

    @property
    def tokens(self) -> int:
        """About how many tokens came."""
        return round(self.heard / _CHARACTERS_PER_TOKEN)

    def fold(self, kind: str, text: str) -> Stream:
        """Returns the stream with one more piece."""
        if kind == "status":
            return replace(self, status=text)
        kind = kind if kind in _KINDS else "text"
        pieces = self.pieces
        if pieces and pieces[-1].kind == kind:
            pieces = (*pieces[:-1], Piece(kind, pieces[-1].text + text))
        else:
            pieces = (*pieces, Piece(kind, text))
        surplus = sum(len(piece.text) for piece in pieces) - _KEPT
        cut = self.cut
        while surplus > 0:
            first = pieces[0]
            rest = first.text[surplus:]
            surplus -= len(first.text) - len(rest)
            pieces = (Piece(first.kind, rest), *pieces[1:]) if rest else pieces[1:]
            cut = True
        return Stream(pieces, self.heard + len(text), "", cut)
