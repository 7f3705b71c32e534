"""Finds the place that an edit means: steps from exact to fuzzy, each of which must give one place only.

The first step that finds the searched lines anywhere decides. If one of its hits may be changed, that is
the place, whatever frozen code looks alike; with two the edit is ambiguous; with none the place is frozen.
Lines that an edit keeps stay as the kernel has them; only new lines come from the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerneltui.agents.edits.copying import numbered, placeholder
from kerneltui.agents.edits.edit import Edit
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.finding import Hit, Step, find, where
from kerneltui.agents.edits.indenting import BLANKS, collapsed
from kerneltui.agents.edits.nearest import nearest_lines, regions_told, shown_lines
from kerneltui.agents.edits.page import Change, Page

__all__ = ["Frees", "Match", "Step", "locate"]

Frees = Callable[[Sequence[Change]], bool]
"""Whether changes of frozen lines are allowed all the same: they set tunables."""

_MOST_LINES = 5000


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
            f"edit {number} has nothing to look for",
            regions_told(page),
            number,
        )
    if max(len(edit.search), len(edit.replace)) > _MOST_LINES:
        raise EditFailure(EditKind.TOO_LONG, f"edit {number} has too many lines", "", number)
    found = find(page, edit, strict=strict)
    if found is not None:
        step, hits, note = found
        return _decide(page, edit, number, step=step, hits=hits, note=note, frees=frees)
    raise _missing(page, edit, number)


def _decide(
    page: Page,
    edit: Edit,
    number: int,
    *,
    step: Step,
    hits: Sequence[Hit],
    note: str,
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
            f"edit {number} fits {len(first)} places (lines {told})",
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
        raise _frozen(page, number, hits)
    hit, region = named[0]
    if hit.changes is None:
        raise EditFailure(
            EditKind.INDENT,
            f"edit {number} fits line {page.line_at(hit.start) + 1} if re-indented, but a new line "
            "is indented less than the search",
            shown_lines(page, range(page.line_at(hit.start), page.line_at(hit.end - 1) + 1)[:12]),
            number,
        )
    notes = tuple(text for text in (note, "" if step is Step.EXACT else step) if text)
    return Match(step, hit.start, hit.end, hit.changes, region, notes)


def _region(page: Page, hit: Hit, frees: Frees) -> str:
    """The one region that a hit changes; empty if frozen lines or two regions would change."""
    if not hit.changes:
        place = page.place_at(page.line_at(hit.start))
        return place.name if place else ""
    places = [page.place_of(change) for change in hit.changes]
    first = places[0]
    if first and all(place == first for place in places):
        return first.name
    return "tunables" if frees(hit.changes) else ""


def _frozen(page: Page, number: int, hits: Sequence[Hit]) -> EditFailure:
    hit = hits[0]
    changed = hit.changes or (Change(hit.start, hit.end, ""),)
    # an insertion is told by the line before it
    lines = [page.line_at(max(0, c.start - (c.start == c.end))) for c in changed]
    line = next((line for line in lines if page.place_at(line) is None), lines[0])
    touched = {place.name for at in lines if (place := page.place_at(at))}
    told = (
        f"reaches beyond the region {min(touched)}" if touched else "is outside the evolve regions"
    )
    kind = EditKind.FROZEN
    replaced = [page.text[change.start : change.end] for change in changed]
    new = [change.text for change in changed]
    if any("kerneltui: evolve" in text for text in (*replaced, *new)):
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
                f"edit {number} searches for a placeholder ({line.strip()[:60]})",
                nearest_lines(page, [text for text in edit.search if text is not line]),
                number,
            )
    if numbered(edit.search, known):
        return EditFailure(
            EditKind.NUMBERED,
            f"edit {number} has line numbers in its search",
            nearest_lines(page, edit.search),
            number,
        )
    hint = ""
    replaced = [collapsed(line) for line in edit.replace if line.strip(BLANKS)]
    if replaced and where([collapsed(line) for line in page.lines], replaced):
        hint = "; its new lines are there already"
    return EditFailure(
        EditKind.MISSING,
        f"edit {number} searches for text that is nowhere in the kernel{hint}",
        nearest_lines(page, edit.search) or "no line is like it",
        number,
    )
