"""What a reply asks for: edits of places, rewrites of regions, a new file."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Edit", "Reply", "Rewrite", "lines_of"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines to look for and the lines to put there; no lines to put there is a deletion.

    Attributes:
        search: Lines as the reply has them, without their ends.
        replace: Likewise.
        file: The file that the reply names; empty if it names none.
        region: The evolve region that the reply names; empty if it names none.
    """

    search: tuple[str, ...]
    replace: tuple[str, ...]
    file: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """All lines of an evolve region, or of the file if `region` is empty."""

    lines: tuple[str, ...]
    file: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The edits of a reply in its order, and what had to be mended to read them."""

    edits: tuple[Edit | Rewrite, ...]
    notes: tuple[str, ...] = ()


def lines_of(text: str) -> tuple[str, ...]:
    """Splits text into lines: one final newline ends the last line, and nothing has no lines."""
    if not text:
        return ()
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
