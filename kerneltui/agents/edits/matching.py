"""Finds the place that an edit means: steps from exact to fuzzy, each of which must give one place only.

The first step that finds the searched lines anywhere decides. If one of its hits may be changed, that is
the place, whatever frozen code looks alike; with two the edit is ambiguous; with none the place is frozen.
Lines that an edit keeps stay as the kernel has them; only new lines come from the reply.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.agents.edits.copying import numbered, placeholder, plain, unescaped, unnumbered
from kerneltui.agents.edits.edit import Edit
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.indenting import (
    BLANKS,
    Indent,
    collapsed,
    learned,
    shift_between,
    shifted,
)
from kerneltui.agents.edits.nearest import nearest_lines, regions_told, shown_lines
from kerneltui.agents.edits.page import Change, Page

__all__ = ["Frees", "Match", "Step", "locate"]

Frees = Callable[[Sequence[Change]], bool]
"""Whether changes of frozen lines are allowed all the same: they set tunables."""

_ALIKE = 0.9
_MOST_LINES = 5000
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
class Match:
    """Where an edit belongs, and what it changes there.

    Attributes:
        step: How it was found.
        start: Offset of the found text, unchanged lines included.
        end: Its end.
        changes: What changes; within the found text.
        region: The evolve region, or `tunables`.
        notes: What was mended, in words for people.
    """

    step: Step
    start: int
    end: int
    changes: tuple[Change, ...]
    region: str
    notes: tuple[str, ...] = ()


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
class _Hit:
    """A place where a step finds the search; without changes if new lines cannot be indented."""

    start: int
    end: int
    changes: tuple[Change, ...] | None


def locate(
    page: Page, edit: Edit, number: int, *, strict: bool, frees: Frees = lambda _: False
) -> Match:
    """Finds the place of an edit.

    Args:
        page: The kernel.
        edit: What to look for, and what to put there.
        number: The number of the edit in its reply, for messages.
        strict: Whether indentation has a meaning in this language.
        frees: Whether changes of frozen lines are allowed all the same.

    Raises:
        EditFailure: There is no such place, more than one, or it is frozen.
    """
    if not any(line.strip(BLANKS) for line in edit.search):
        raise EditFailure(
            EditKind.NO_SEARCH,
            f"edit {number} has nothing to look for; to insert, search for the line before and keep it",
            regions_told(page),
            number,
        )
    if max(len(edit.search), len(edit.replace)) > _MOST_LINES:
        raise EditFailure(EditKind.TOO_LONG, f"edit {number} has too many lines", "", number)
    for attempt in _attempts(edit):
        for step, hits in _steps(page, attempt, strict=strict):
            if hits:
                return _decide(
                    page, edit, number, attempt=attempt, step=step, hits=hits, frees=frees
                )
    hits = _fuzzy(page, edit, strict=strict)
    if hits:
        whole = _Attempt(edit.search, edit.replace)
        return _decide(page, edit, number, attempt=whole, step=Step.FUZZY, hits=hits, frees=frees)
    raise _missing(page, edit, number)


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


def _steps(page: Page, attempt: _Attempt, *, strict: bool) -> Iterator[tuple[Step, list[_Hit]]]:
    """Goes through the steps of one reading, with what each finds."""
    keys = [attempt.key(line) for line in page.lines]
    places = _where(keys, attempt.search)
    yield Step.EXACT, [_hit(page, at, attempt, _same, exact=True) for at in places]
    ends = [key.rstrip(BLANKS) for key in keys]
    trimmed = attempt.trimmed()
    for reading in (attempt, trimmed):
        places = _where(ends, [line.rstrip(BLANKS) for line in reading.search])
        yield Step.TRAILING, [_hit(page, at, reading, _same) for at in places]
    attempt = trimmed
    size = len(attempt.search)
    stripped = [key.strip(BLANKS) for key in keys]
    found: list[_Hit] = []
    for at in _where(stripped, [line.strip(BLANKS) for line in attempt.search]):
        shift = shift_between(attempt.search, keys[at : at + size])
        if shift:
            found.append(_hit(page, at, attempt, shifted(shift)))
    yield Step.SHIFTED, found
    yield Step.PARTIAL, _partial(page, attempt)
    found = []
    flat = [collapsed(key) for key in keys]
    for at in _where(flat, [collapsed(line) for line in attempt.search]):
        indent = learned(attempt.search, page.lines[at : at + size], strict=strict)
        if indent:
            found.append(_hit(page, at, attempt, indent))
    yield Step.COLLAPSED, found


def _same(line: str) -> str | None:
    return line


def _where(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """All lines at which the wanted ones begin."""
    first, size, wanted = wanted[0], len(wanted), list(wanted)
    return [
        at
        for at in range(len(lines) - size + 1)
        if lines[at] == first and list(lines[at : at + size]) == wanted
    ]


def _hit(page: Page, at: int, attempt: _Attempt, indent: Indent, *, exact: bool = False) -> _Hit:
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
            return _Hit(start, end, None)
        text = "".join(f"{line}\n" for line in new)
        changes.append(Change(page.starts[at + i1], page.starts[at + i2], text))
    return _Hit(start, end, tuple(changes))


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


def _partial(page: Page, attempt: _Attempt) -> list[_Hit]:
    """Places inside lines, whole tokens only."""
    text, wanted = page.text, "\n".join(attempt.search)
    new = "\n".join(attempt.replace)
    head, tail = _unchanged(wanted, new)
    found: list[_Hit] = []
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        before = at > 0 and _joined(text[at - 1], wanted[0])
        if not before and not (end < len(text) and _joined(wanted[-1], text[end])):
            change = Change(at + head, end - tail, new[head : len(new) - tail])
            found.append(_Hit(at, end, (change,) if wanted != new else ()))
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


def _fuzzy(page: Page, edit: Edit, *, strict: bool) -> list[_Hit]:
    """Places whose first and last lines are the searched ones, and all others nearly."""
    attempt = _Attempt(edit.search, edit.replace).trimmed()
    wanted = [collapsed(plain(line)) for line in attempt.search]
    size = len(wanted)
    if size < 3:
        return []
    lines = [collapsed(plain(line)) for line in page.lines]
    found: list[_Hit] = []
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


def _decide(
    page: Page,
    edit: Edit,
    number: int,
    *,
    attempt: _Attempt,
    step: Step,
    hits: Sequence[_Hit],
    frees: Frees,
) -> Match:
    """Chooses the one hit that may be changed."""
    free = [(hit, region) for hit in hits if (region := _region(page, hit, frees))]
    named = [(hit, region) for hit, region in free if edit.region in ("", region)]
    several = hits if step is Step.FUZZY else [hit for hit, _ in named]
    if len(several) > 1:
        first = [page.line_at(hit.start) for hit in several]
        told = ", ".join(str(line + 1) for line in first[:6]) + (", …" if first[6:] else "")
        raise EditFailure(
            EditKind.AMBIGUOUS,
            f"edit {number} fits {len(first)} places (lines {told}); search for more lines around it",
            shown_lines(page, (line + by for line in first[:4] for by in (-2, -1, 0, 1))),
            number,
        )
    if free and not named:
        raise EditFailure(
            EditKind.WRONG_REGION,
            f"edit {number} names the region {edit.region}, but fits {free[0][1]}",
            regions_told(page),
            number,
        )
    if not named:
        raise _frozen(page, edit, number, hits)
    hit, region = named[0]
    if hit.changes is None:
        raise EditFailure(
            EditKind.INDENT,
            f"edit {number} fits line {page.line_at(hit.start) + 1} if re-indented, but a new line "
            "is indented less than the search; copy the indentation of the kernel",
            shown_lines(page, range(page.line_at(hit.start), page.line_at(hit.end - 1) + 1)[:12]),
            number,
        )
    notes = tuple(note for note in (attempt.note, "" if step is Step.EXACT else step) if note)
    return Match(step, hit.start, hit.end, hit.changes, region, notes)


def _region(page: Page, hit: _Hit, frees: Frees) -> str:
    """The one region that a hit changes; empty if frozen lines or two regions would change."""
    if not hit.changes:
        place = page.place_at(page.line_at(hit.start))
        return place.name if place else ""
    places = [page.place_of(change) for change in hit.changes]
    first = places[0]
    if first and all(place == first for place in places):
        return first.name
    return "tunables" if frees(hit.changes) else ""


def _frozen(page: Page, edit: Edit, number: int, hits: Sequence[_Hit]) -> EditFailure:
    hit = hits[0]
    changed = hit.changes or (Change(hit.start, hit.end, ""),)
    lines = [page.line_at(change.start) for change in changed]
    line = next((line for line in lines if page.place_at(line) is None), lines[0])
    touched = {place.name for at in lines if (place := page.place_at(at))}
    told = (
        f"reaches beyond the region {min(touched)}" if touched else "is outside the evolve regions"
    )
    kind = EditKind.FROZEN
    if any("kerneltui: evolve" in text for text in (page.lines[line], *edit.replace)):
        kind, told = EditKind.MARKS, "changes an evolve mark"
    shown = shown_lines(page, range(line - 1, line + 3))
    return EditFailure(
        kind,
        f"edit {number} {told}: line {line + 1} is frozen; {regions_told(page)}",
        shown,
        number,
    )


def _missing(page: Page, edit: Edit, number: int) -> EditFailure:
    known = {line.strip() for line in page.lines}
    for line in edit.search:
        if placeholder(line) and line.strip() not in known:
            return EditFailure(
                EditKind.ELLIPSIS,
                f"edit {number} searches for a placeholder ({line.strip()[:60]}); copy the real lines",
                nearest_lines(page, [text for text in edit.search if text is not line]),
                number,
            )
    if numbered(edit.search, known):
        return EditFailure(
            EditKind.NUMBERED,
            f"edit {number} has line numbers in its search; copy the lines without them",
            nearest_lines(page, edit.search),
            number,
        )
    hint = "; copy whole lines exactly as they are"
    replaced = [collapsed(line) for line in edit.replace if line.strip(BLANKS)]
    if replaced and _where([collapsed(line) for line in page.lines], replaced):
        hint = "; its new lines are there already"
    return EditFailure(
        EditKind.MISSING,
        f"edit {number} searches for text that is nowhere in the kernel{hint}",
        nearest_lines(page, edit.search) or "no line is like it",
        number,
    )
