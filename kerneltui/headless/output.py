"""Exit codes, and where output goes: data to standard output, narration to standard error."""

from __future__ import annotations

import json
import sys
from enum import IntEnum

__all__ = ["Exit", "emit", "say", "table"]


class Exit(IntEnum):
    """The exit codes of every command."""

    FINISHED = 0
    USAGE = 2
    REFUSED = 3
    NOTHING_ACCEPTED = 4
    INTERRUPTED = 130


def say(text: str) -> None:
    """Tells the user something on standard error."""
    print(text, file=sys.stderr, flush=True)


def emit(record: dict[str, object]) -> None:
    """Writes one JSON line to standard output."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def table(rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Returns rows as an aligned text table; columns in `right` are right-aligned."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
