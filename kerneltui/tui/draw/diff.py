"""The unified diff of a candidate against its first parent, by hunks.

Hunk numbers are those of commands (`diff_hunks` with three lines of context), whatever context the
user looks at: more or less context changes what is drawn around a hunk, never which hunk it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diff_match_patch import diff_match_patch

from kerneltui.model.patch import Hunk, diff_hunks
from kerneltui.tui.draw.code import Tokens, code_spans
from kerneltui.tui.text import Line, clean, cut, without, wrap

__all__ = ["Diff", "DiffLines", "draw_diff", "intra_line", "make_diff"]

_LEAD = 8  # cells before a change that are shown with it
_LONGEST_MARKED = 400  # cells; longer lines get no marks within the line
_MEMBER = re.compile(r"^[A-Za-z_#].*[({:]\s*(//.*)?$|^\s{0,4}[A-Za-z_][\w:<>*& ]*\([^;]*\)\s*\{")
_WORD = re.compile(r"\w+")
_FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\(")

_Row = tuple[str, int | None, int | None, str]
Marks = Mapping[tuple[str, int], tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Diff:
    """The two texts of a candidate, cleaned for the screen, their hunks, and marks within lines."""

    candidate: str
    sha: str
    parent: str
    file: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    hunks: tuple[Hunk, ...]
    marks: Marks
    old_tokens: Tokens = ()
    new_tokens: Tokens = ()

    @property
    def added(self) -> int:
        """Number of added lines."""
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """Number of removed lines."""
        return sum(hunk.removed for hunk in self.hunks)


@dataclass(frozen=True, slots=True)
class DiffLines:
    """A drawn diff: its lines, and the first line of each hunk."""

    lines: tuple[Line, ...]
    starts: tuple[int, ...] = field(default=())


def make_diff(
    candidate: str,
    sha: str,
    *,
    parent: str,
    file: str,
    texts: tuple[str, str],
    tokens: tuple[Tokens, Tokens] = ((), ()),
) -> Diff:
    """Compares the texts of parent and candidate; without a parent there are no hunks."""
    parent_source, source = texts
    hunks = diff_hunks(parent_source, source) if parent else ()
    old = tuple(clean(line) for line in parent_source.split("\n"))
    new = tuple(clean(line) for line in source.split("\n"))
    marks = _marks(hunks, old, new)
    return Diff(candidate, sha, parent, file, old, new, hunks, marks, *tokens)


def _marks(hunks: Iterable[Hunk], old: Sequence[str], new: Sequence[str]) -> Marks:
    marks: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {}
    for hunk in hunks:
        shift = hunk.new_start - hunk.old_start
        for start, end, replacement in hunk.changes:
            first = start + shift  # where the replacement begins in the new text
            shift += len(replacement) - (end - start)
            # Only blocks of equal length pair up line by line; others would be marked at random.
            if end - start != len(replacement):
                continue
            for offset in range(end - start):
                gone, come = intra_line(old[start + offset], new[first + offset])
                if gone:
                    marks["-", start + offset + 1] = gone
                if come:
                    marks["+", first + offset + 1] = come
    return marks


def intra_line(
    old: str, new: str
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Returns the changed ranges within two paired lines; none when too little is common."""
    if max(len(old), len(new)) > _LONGEST_MARKED:
        return (), ()
    matcher = diff_match_patch()
    matcher.Diff_Timeout = 0  # no clock: the same lines always get the same marks
    parts = matcher.diff_main(old, new, False)
    matcher.diff_cleanupSemantic(parts)
    common = sum(len(text) for kind, text in parts if kind == 0)
    if common * 3 < max(len(old.strip()), len(new.strip()), 1):
        return (), ()
    gone: list[tuple[int, int]] = []
    come: list[tuple[int, int]] = []
    at_old = at_new = 0
    for kind, text in parts:
        if kind <= 0:
            if kind < 0:
                gone.append((at_old, at_old + len(text)))
            at_old += len(text)
        if kind >= 0:
            if kind > 0:
                come.append((at_new, at_new + len(text)))
            at_new += len(text)
    return _whole_words(old, gone), _whole_words(new, come)


def _whole_words(text: str, ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Widens ranges to the words and numbers they touch: 48 -> 24 is one change, not two digits."""
    words = [found.span() for found in _WORD.finditer(text)]
    wide: list[tuple[int, int]] = []
    for start, end in ranges:
        for left, right in words:
            if left < end and right > start:
                start, end = min(start, left), max(end, right)
        if wide and start <= wide[-1][1]:
            wide[-1] = (wide[-1][0], max(end, wide[-1][1]))
        else:
            wide.append((start, end))
    return tuple(wide)


def draw_diff(
    diff: Diff,
    *,
    selected: frozenset[int],
    current: int,
    context: int,
    width: int,
    heading: bool = True,
) -> DiffLines:
    """Draws the diff.

    Args:
        diff: The texts and hunks.
        selected: Hunks that an accept would take.
        current: The hunk under the cursor.
        context: Lines of context around a change, 0 or more.
        width: Cells of the panel. Lines are not cut, so they can be scrolled sideways; but of one whose first
            change would be out of sight a part before it is left out.
        heading: Whether the first line names candidate, parent and file.
    """
    lines: list[Line] = []
    starts: list[int] = []
    if heading:
        arrow = f" <- {diff.parent}" if diff.parent else ""
        lines.append(
            cut(
                (
                    (f" {diff.candidate}{arrow}", "strong"),
                    (f"   {diff.file}", "dim"),
                    (f"   {diff.sha[:7]}", "faint"),
                ),
                width,
            )
        )
    if not diff.parent:
        lines.append(((" the seed of the session: no parent to compare with; see Code", "dim"),))
    elif not diff.hunks:
        lines.append(((" the same text as its parent", "dim"),))
    digits = max(3, len(str(max(len(diff.old), len(diff.new)))))
    for hunk in diff.hunks:
        starts.append(len(lines))
        on = hunk.index in selected
        lines.append(_hunk_line(diff, hunk, on=on, current=hunk.index == current, width=width))
        rows = _hunk_rows(diff, hunk, context)
        lines += [_row(diff, row, digits, on=on, width=width) for row in rows]
    total = len(diff.hunks)
    if 0 < len(selected) < total:
        text = (
            f"{len(selected)} of {total} hunks selected: accept makes a new candidate, "
            "checked and measured again"
        )
        lines += [((f" {part}", "warn"),) for part in wrap(text, max(width - 2, 20))]
    elif total and not selected:
        lines.append(((" no hunk selected: nothing to accept", "warn"),))
    return DiffLines(tuple(lines), tuple(starts))


def _hunk_line(diff: Diff, hunk: Hunk, *, on: bool, current: bool, width: int) -> Line:
    before = next(i for i, line in enumerate(hunk.lines) if line.kind != " ")
    name = _enclosing(diff.new, hunk.new_start - 1 + before)
    box = "[x]" if on else "[ ]"
    text = f" @@ {hunk.index + 1}/{len(diff.hunks)} @@ {box} {name}"
    end = f"+{hunk.added} -{hunk.removed} "
    text = text.ljust(width - len(end))[: width - len(end)] + end
    return ((text, "hunk-current" if current else "hunk"),)


def _enclosing(lines: Sequence[str], start: int) -> str:
    """Returns the name of what encloses a line: the last line above that looks like a definition."""
    for index in range(min(start, len(lines) - 1), -1, -1):
        line = lines[index]
        if _MEMBER.search(line) and not line.lstrip().startswith(("if", "for", "while", "}", "#")):
            found = _FUNCTION.search(line)
            return f"{found.group(1)}()" if found else line.strip().rstrip("{:( ")
    return ""


def _hunk_rows(diff: Diff, hunk: Hunk, context: int) -> Iterable[_Row]:
    """Yields the lines of a hunk with `context` lines around it.

    Context never reaches into a neighbouring hunk: at most up to halfway.
    """
    rows = [(line.kind, line.old, line.new, clean(line.text)) for line in hunk.lines]
    changed = [index for index, row in enumerate(rows) if row[0] != " "]
    if context < 3:
        for index, row in enumerate(rows):
            near = min(abs(index - other) for other in changed)
            if near <= context:
                yield row
        return
    before, after = _reach(diff, hunk)
    yield from _context(diff, hunk.old_start, hunk.new_start, -min(context - 3, before))
    yield from rows
    last_old = hunk.old_start + sum(row[0] != "+" for row in rows)
    last_new = hunk.new_start + sum(row[0] != "-" for row in rows)
    yield from _context(diff, last_old, last_new, min(context - 3, after))


def _reach(diff: Diff, hunk: Hunk) -> tuple[int, int]:
    """Returns how many unchanged lines before and after a hunk are its own to show."""
    ends = [0]
    begins: list[int] = []
    for other in diff.hunks:
        begins.append(other.new_start - 1)
        ends.append(other.new_start - 1 + sum(line.kind != "-" for line in other.lines))
    begins.append(len(diff.new))
    gap_before = begins[hunk.index] - ends[hunk.index]
    gap_after = begins[hunk.index + 1] - ends[hunk.index + 1]
    first = hunk.index == 0
    last = hunk.index == len(diff.hunks) - 1
    return (gap_before if first else gap_before // 2), (gap_after if last else (gap_after + 1) // 2)


def _context(diff: Diff, old: int, new: int, count: int) -> Iterable[_Row]:
    offsets = range(count, 0) if count < 0 else range(count)
    for offset in offsets:
        index = new + offset - 1
        if 0 <= index < len(diff.new):
            yield " ", old + offset, new + offset, diff.new[index]


def _row(diff: Diff, row: _Row, digits: int, *, on: bool, width: int) -> Line:
    kind, old, new, text = row
    numbers = f" {old or '':>{digits}} {new or '':>{digits}} "
    base = {"+": "add", "-": "del", " ": ""}[kind]
    if not on and kind != " ":
        base = "off"
    number = old if kind == "-" else new
    tokens = diff.old_tokens if kind == "-" else diff.new_tokens
    spans = tokens[number - 1] if number and number <= len(tokens) else ()
    changes = diff.marks.get((kind, number or 0), ())
    marks = changes if on else ()
    mark_style = {"+": "add-mark", "-": "del-mark", " ": ""}[kind]
    sign = {"+": "add-sign", "-": "del-sign", " ": ""}[kind] if on else base
    body = ((text, base),) if base == "off" else code_spans(text, spans, base, marks, mark_style)
    body = without(body, *_unseen(text, changes, width - len(numbers) - 2), ("…", "faint"))
    return ((numbers, "number"), (f"{kind} ", f"{base} {sign}"), *body, ("", base))


def _unseen(text: str, changes: Sequence[tuple[int, int]], room: int) -> tuple[int, int]:
    """Which characters of a line are left out, so that its first change is in sight; none if it is anyway.

    The change begins in the same cell of both lines of a pair, whatever their lengths are.
    """
    tail = room // 5  # of the change, at least
    head = room - tail - _LEAD - 1
    if not changes or head < _LEAD or not text.isascii():
        return 0, 0
    first, end = changes[0]
    if min(end, first + tail) <= room or first - _LEAD <= head:
        return 0, 0
    return head, first - _LEAD
