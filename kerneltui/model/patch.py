"""Diffs between kernel texts: hunks for the screen, and applying a human's choice of hunks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kerneltui.model.errors import PatchError

__all__ = ["DiffLine", "Hunk", "apply_hunks", "diff_hunks", "diff_stat"]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a unified diff: kind ` `, `-` or `+`, its numbers (1-based) and its text."""

    kind: str
    old: int | None
    new: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Hunk:
    """A group of changes with context.

    `changes` are the replaced ranges: old lines [start, end) become the new lines given.
    """

    index: int
    old_start: int
    new_start: int
    lines: tuple[DiffLine, ...]
    changes: tuple[tuple[int, int, tuple[str, ...]], ...]

    @property
    def added(self) -> int:
        """Number of added lines."""
        return sum(line.kind == "+" for line in self.lines)

    @property
    def removed(self) -> int:
        """Number of removed lines."""
        return sum(line.kind == "-" for line in self.lines)


def diff_hunks(old: str, new: str, context: int = 3) -> tuple[Hunk, ...]:
    """Returns the hunks of the change from old to new.

    Hunk numbers depend on the context, so both sides of a decision use the same value: 3 unless the
    user asked for another view, and always 3 in commands.
    """
    before, after = old.split("\n"), new.split("\n")
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    return tuple(
        _hunk(index, group, before, after)
        for index, group in enumerate(matcher.get_grouped_opcodes(context))
        if any(op[0] != "equal" for op in group)
    )


def _hunk(
    index: int,
    group: Sequence[tuple[str, int, int, int, int]],
    before: Sequence[str],
    after: Sequence[str],
) -> Hunk:
    lines: list[DiffLine] = []
    changes: list[tuple[int, int, tuple[str, ...]]] = []
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            lines += [
                DiffLine(" ", i + 1, j + 1, before[i])
                for i, j in zip(range(i1, i2), range(j1, j2), strict=True)
            ]
            continue
        lines += [DiffLine("-", i + 1, None, before[i]) for i in range(i1, i2)]
        lines += [DiffLine("+", None, j + 1, after[j]) for j in range(j1, j2)]
        changes.append((i1, i2, tuple(after[j1:j2])))
    return Hunk(index, group[0][1] + 1, group[0][3] + 1, tuple(lines), tuple(changes))


def apply_hunks(old: str, new: str, chosen: Iterable[int]) -> str:
    """Returns old with only the chosen hunks of the change to new.

    Raises:
        PatchError: A hunk number does not exist.
    """
    hunks = diff_hunks(old, new)
    wanted = set(chosen)
    unknown = wanted - {hunk.index for hunk in hunks}
    if unknown:
        raise PatchError(f"there is no hunk {min(unknown) + 1}; the diff has {len(hunks)}")
    lines = old.split("\n")
    for hunk in reversed(hunks):
        if hunk.index in wanted:
            for start, end, replacement in reversed(hunk.changes):
                lines[start:end] = replacement
    return "\n".join(lines)


def diff_stat(old: str, new: str) -> tuple[int, int]:
    """Returns the numbers of added and removed lines."""
    hunks = diff_hunks(old, new, context=0)
    return sum(hunk.added for hunk in hunks), sum(hunk.removed for hunk in hunks)
