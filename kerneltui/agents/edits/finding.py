"""Where the lines of an edit stand in a kernel: readings of the edit, and steps from exact to fuzzy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.agents.edits.copying import numbered, plain, unescaped, unnumbered
from kerneltui.agents.edits.edit import Edit
from kerneltui.agents.edits.indenting import (
    BLANKS,
    Indent,
    collapsed,
    learned,
    shift_between,
    shifted,
)
from kerneltui.agents.edits.page import Change, Page

__all__ = ["Hit", "Step", "find", "where"]

_ALIKE = 0.9
_MOST_PAIRS = 250_000
_OPERATORS = frozenset("+-*/%&|^=<>!:")


class Step(StrEnum):
    """How an edit found its place."""

    EXACT = "exact"
    TRAILING = "trailing whitespace ignored"
    SHIFTED = "re-indented"
    PARTIAL = "part of a line"
    COLLAPSED = "whitespace ignored"
    FUZZY = "fuzzy"
    REGION = "region rewritten"
    FILE = "file rewritten"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One reading of an edit."""

    search: tuple[str, ...]
    replace: tuple[str, ...]
    note: str = ""
    key: Callable[[str], str] = str

    def trimmed(self) -> _Attempt:
        """Without blank lines at the ends of the search; the replacement loses as many at most."""
        search, replace = list(self.search), list(self.replace)
        for end in (0, -1):
            while search and not search[end].strip(BLANKS):
                search.pop(end)
                if replace and not replace[end].strip(BLANKS):
                    replace.pop(end)
        return _Attempt(tuple(search), tuple(replace), self.note, self.key)


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where a step finds the search; without changes if new lines cannot be indented."""

    start: int
    end: int
    changes: tuple[Change, ...] | None


def find(page: Page, edit: Edit, *, strict: bool) -> tuple[Step, Sequence[Hit], str] | None:
    """Returns the first step that finds the searched lines anywhere, all its hits, and what was mended.

    Args:
        page: The kernel.
        edit: What to look for, and what to put there.
        strict: Whether indentation has a meaning in this language.
    """
    for attempt in _attempts(edit):
        for step, hits in _steps(page, attempt, strict=strict):
            if hits:
                return step, hits, attempt.note
    hits = _fuzzy(page, edit, strict=strict)
    return (Step.FUZZY, hits, "") if hits else None


def _attempts(edit: Edit) -> Iterator[_Attempt]:
    yield _Attempt(edit.search, edit.replace)
    search = unnumbered(edit.search)
    if search is not None:
        replace = unnumbered(edit.replace)
        if replace is None and not numbered(edit.replace, ()):
            replace = edit.replace
        if replace is not None:
            yield _Attempt(search, replace, "line numbers taken away")
    for change, note in (
        (plain, "typographic quotes, dashes or spaces replaced"),
        (unescaped, "HTML entities replaced"),
    ):
        search = tuple(map(change, edit.search))
        key = plain if change is plain else str
        if search != edit.search or change is plain:
            yield _Attempt(search, tuple(map(change, edit.replace)), note, key)


def _steps(page: Page, attempt: _Attempt, *, strict: bool) -> Iterator[tuple[Step, list[Hit]]]:
    """Goes through the steps of one reading, with what each finds."""
    keys = [attempt.key(line) for line in page.lines]
    places = where(keys, attempt.search)
    yield Step.EXACT, [_hit(page, at, attempt, _same, exact=True) for at in places]
    ends = [key.rstrip(BLANKS) for key in keys]
    trimmed = attempt.trimmed()
    for reading in (attempt, trimmed):
        places = where(ends, [line.rstrip(BLANKS) for line in reading.search])
        yield Step.TRAILING, [_hit(page, at, reading, _same) for at in places]
    attempt = trimmed
    size = len(attempt.search)
    stripped = [key.strip(BLANKS) for key in keys]
    found: list[Hit] = []
    for at in where(stripped, [line.strip(BLANKS) for line in attempt.search]):
        shift = shift_between(attempt.search, keys[at : at + size])
        if shift:
            found.append(_hit(page, at, attempt, shifted(shift)))
    yield Step.SHIFTED, found
    yield Step.PARTIAL, _partial(page, attempt, strict=strict)
    found = []
    flat = [collapsed(key) for key in keys]
    for at in where(flat, [collapsed(line) for line in attempt.search]):
        indent = learned(attempt.search, page.lines[at : at + size], strict=strict)
        if indent:
            found.append(_hit(page, at, attempt, indent))
    yield Step.COLLAPSED, found


def _same(line: str) -> str | None:
    return line


def where(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """All lines at which the wanted ones begin."""
    first, size, wanted = wanted[0], len(wanted), list(wanted)
    return [
        at
        for at in range(len(lines) - size + 1)
        if lines[at] == first and list(lines[at : at + size]) == wanted
    ]


def _hit(page: Page, at: int, attempt: _Attempt, indent: Indent, *, exact: bool = False) -> Hit:
    """What an edit changes if its search begins at a line."""
    start, end = page.starts[at], page.starts[at + len(attempt.search)]
    search, replace = attempt.search, attempt.replace
    if not exact:
        search = tuple(line.rstrip(BLANKS) for line in search)
        replace = tuple(line.rstrip(BLANKS) for line in replace)
    changes: list[Change] = []
    for i1, i2, j1, j2 in _differences(search, replace):
        new = [indent(line) for line in attempt.replace[j1:j2]]
        if None in new:
            return Hit(start, end, None)
        text = "".join(f"{line}\n" for line in new)
        changes.append(Change(page.starts[at + i1], page.starts[at + i2], text))
    return Hit(start, end, tuple(changes))


def _differences(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The ranges in which two lists of lines differ."""
    shorter = min(len(old), len(new))
    head = _common(old, new)
    tail = min(shorter - head, _common(old[::-1], new[::-1]))
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if not a and not b:
        return []
    if len(a) * len(b) > _MOST_PAIRS:
        return [(head, head + len(a), head, head + len(b))]
    codes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [
        (head + i1, head + i2, head + j1, head + j2)
        for tag, i1, i2, j1, j2 in codes
        if tag != "equal"
    ]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many items two sequences begin with in common."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def _partial(page: Page, attempt: _Attempt, *, strict: bool) -> list[Hit]:
    """Places inside lines, whole tokens only.

    Where the search is one line, new lines below the first get the blanks that stand in front of it; with
    code in front there is no telling how deep they belong, if that has a meaning.
    """
    text, wanted = page.text, "\n".join(attempt.search)
    found: list[Hit] = []
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        front = text[page.starts[page.line_at(at)] : at]
        new = "\n".join(attempt.replace)
        deep = len(attempt.search) == 1 and len(attempt.replace) > 1
        if deep and not front.strip(BLANKS):
            new = f"\n{front}".join(attempt.replace)
        before = at > 0 and _joined(text[at - 1], wanted[0])
        unclear = strict and deep and front.strip(BLANKS)
        if not (before or unclear or (end < len(text) and _joined(wanted[-1], text[end]))):
            head, tail = _unchanged(wanted, new)
            change = Change(at + head, end - tail, new[head : len(new) - tail])
            found.append(Hit(at, end, (change,) if wanted != new else ()))
        at = text.find(wanted, at + 1)
    return found


def _unchanged(old: str, new: str) -> tuple[int, int]:
    """How many characters of whole lines two texts have in common, at their fronts and at their ends."""
    head = old.rfind("\n", 0, _common(old, new)) + 1
    rest = _common(old[head:][::-1], new[head:][::-1])
    end = old.find("\n", len(old) - rest)
    return head, len(old) - end if rest and end >= 0 else 0


def _joined(left: str, right: str) -> bool:
    """Whether two characters may belong to one token."""
    if left in _OPERATORS and right in _OPERATORS:
        return True
    word = [char.isalnum() or char == "_" for char in (left, right)]
    digit = left.isdigit() or right.isdigit()
    return all(word) or (digit and (left in ".'" or right in ".'"))


def _fuzzy(page: Page, edit: Edit, *, strict: bool) -> list[Hit]:
    """Places whose first and last lines are the searched ones, and all others nearly."""
    attempt = _Attempt(edit.search, edit.replace).trimmed()
    wanted = [collapsed(plain(line)) for line in attempt.search]
    size = len(wanted)
    if size < 3:
        return []
    lines = [collapsed(plain(line)) for line in page.lines]
    found: list[Hit] = []
    for at in range(len(lines) - size + 1):
        if lines[at] != wanted[0] or lines[at + size - 1] != wanted[-1]:
            continue
        if all(_alike(lines[at + i], wanted[i]) for i in range(1, size - 1)):
            indent = learned(attempt.search, page.lines[at : at + size], strict=strict)
            if indent:
                found.append(_hit(page, at, attempt, indent))
    return found


def _alike(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    if not line or not wanted or max(len(line), len(wanted)) > 500:
        return False
    matcher = difflib.SequenceMatcher(None, line, wanted, autojunk=False)
    return matcher.real_quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE
