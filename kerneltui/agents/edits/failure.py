"""Why a reply gave no new kernel text: kinds for programs, a line for people, details for the next turn."""

from __future__ import annotations

from enum import StrEnum

from kerneltui.model.errors import UserError

__all__ = ["EditFailure", "EditKind"]

_REASON_LENGTH = 300


class EditKind(StrEnum):
    """What is wrong with a reply or with one of its edits."""

    EMPTY = "empty"
    """The reply has no edit at all."""
    UNFINISHED = "unfinished"
    """A block or a fence is never closed: the reply was cut, or a mark was forgotten."""
    MALFORMED = "malformed"
    """Marks in the wrong order or of the wrong length, tool input of the wrong form."""
    UNIFIED_DIFF = "unified_diff"
    """A diff with hunk headers; its counts and context cannot be trusted."""
    TOO_LONG = "too_long"
    """More text than a kernel can have."""
    WRONG_FILE = "wrong_file"
    """An edit names another file."""
    WRONG_REGION = "wrong_region"
    """An edit names an evolve region that does not exist."""
    NO_SEARCH = "no_search"
    """An edit has nothing to look for."""
    MISSING = "missing"
    """The text to look for is nowhere."""
    AMBIGUOUS = "ambiguous"
    """The text to look for is in several editable places."""
    IDENTICAL = "identical"
    """Nothing changes, or only comments and spaces."""
    FROZEN = "frozen"
    """The place is outside the evolve regions."""
    MARKS = "marks"
    """An evolve mark is changed, moved or added."""
    REGION = "region"
    """A new file has marks that are not proven: they hide a change, or regions that hold what must stay."""
    NO_REGION = "no_region"
    """A new file marks nothing that later changes may touch."""
    OVERLAP = "overlap"
    """Two edits change one place, or one changes what the other stands on."""
    ELLIPSIS = "ellipsis"
    """A placeholder stands for code that was left out."""
    NUMBERED = "numbered"
    """Line numbers were copied into the code, and not evenly."""
    INDENT = "indent"
    """The new lines cannot be moved to the indentation of the place."""
    DECLARATION = "declaration"
    """The result declares something malformed."""
    UNAVAILABLE = "unavailable"
    """A tool that is needed to merge could not do its work."""


class EditFailure(UserError):
    """A reply that gives no new kernel text.

    Attributes:
        kind: What is wrong.
        reason: One line: what, where, what to do.
        detail: More lines, such as the nearest ones of the kernel; may be empty.
        number: Which edit of the reply, from 1; 0 for the reply as a whole.
    """

    def __init__(self, kind: EditKind, reason: str, detail: str = "", number: int = 0) -> None:
        line = " ".join(reason.split())
        if len(line) > _REASON_LENGTH:
            line = line[: _REASON_LENGTH - 1] + "…"
        super().__init__(line)
        self.kind = kind
        self.reason = line
        self.detail = detail
        self.number = number
