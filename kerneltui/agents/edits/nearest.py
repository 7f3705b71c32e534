"""What a failed edit is shown: the nearest lines, with tabs and spaces visible, and which are editable."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from kerneltui.agents.edits.indenting import BLANKS, collapsed, indent_of
from kerneltui.agents.edits.page import Page

__all__ = ["nearest_lines", "regions_told", "shown_lines", "visible"]

_MOST_LINES = 14
_WIDTH = 140
_COMPARED = 200
_SIGNS = str.maketrans({"\u00a0": "⍽", "\u202f": "⍽", "\u200b": "⎵", "\r": "␍", "\0": "␀"})


def visible(line: str) -> str:
    """Returns a line with tabs as `→`, blanks at its ends as `·`, and a non-breaking space as `⍽`."""
    front = indent_of(line)
    body = line[len(front) :].rstrip(BLANKS)
    back = line[len(front) + len(body) :]
    ends = str.maketrans({" ": "·", "\t": "→"})
    text = front.translate(ends) + body.replace("\t", "→") + back.translate(ends)
    text = text.translate(_SIGNS)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def shown_lines(page: Page, numbers: Iterable[int]) -> str:
    """Returns lines, counted from 0, with their numbers, counted from 1, and their regions."""
    rows: list[str] = []
    before: int | None = None
    for number in sorted(set(numbers)):
        if not 0 <= number < len(page.lines):
            continue
        if before is not None and number != before + 1:
            rows.append("  …")
        place = page.place_at(number)
        where = f"editable, {place.name}" if place else "frozen"
        rows.append(f"{number + 1:>5} [{where}] {visible(page.lines[number])}")
        before = number
    return "\n".join(rows)


def nearest_lines(page: Page, search: Sequence[str]) -> str:
    """Returns the lines that are most like the searched ones, or an empty text."""
    keys = [collapsed(line)[:_COMPARED] for line in page.lines]
    wanted = [collapsed(line)[:_COMPARED] for line in search[:200]]
    places: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        if key:
            places.setdefault(key, []).append(number)
    votes: Counter[int] = Counter()
    longest = sorted((at for at, key in enumerate(wanted) if key), key=lambda at: -len(wanted[at]))
    for at in longest[:4]:
        key = wanted[at]
        close = [key] if key in places else difflib.get_close_matches(key, places, 2, 0.6)
        for found in close:
            alike = difflib.SequenceMatcher(None, key, found).ratio()
            for number in places[found][:20]:
                votes[number - at] += round(100 * alike)
    if not votes:
        return ""
    start = max(votes, key=lambda start: (votes[start], -start))
    return shown_lines(page, range(start - 1, start + min(len(search) + 1, _MOST_LINES)))


def regions_told(page: Page) -> str:
    """Returns the editable places in one line."""
    if not page.places:
        return "this kernel has no evolve region"
    told = [f"{place.name} (lines {place.first + 1} to {place.end})" for place in page.places]
    return "editable: " + ", ".join(told)
