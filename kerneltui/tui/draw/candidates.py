"""The candidate list: which rows in which order, and each row as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.model.candidate import Candidate, CandidateState
from kerneltui.model.state import State
from kerneltui.tui.draw.spend import cost_text
from kerneltui.tui.format import (
    half_width,
    ratio,
    reference_ratio,
    short_directive,
    state_style,
)
from kerneltui.tui.text import Line, clean, cut, fit, wrap
from kerneltui.tui.view import Live

__all__ = [
    "Row",
    "Sort",
    "candidate_line",
    "details",
    "footer_text",
    "mark_line",
    "matches",
    "rows",
]

_MAX_DEPTH = 5
_RUNNING = (
    CandidateState.BENCH,
    CandidateState.CHECK,
    CandidateState.BUILD,
    CandidateState.PROP,
)
_ORDER: Mapping[CandidateState, int] = {
    CandidateState.PEND: 0,
    CandidateState.QUAR: 0,
    CandidateState.STALE: 1,
    CandidateState.BENCH: 2,
    CandidateState.CHECK: 2,
    CandidateState.BUILD: 2,
    CandidateState.PROP: 3,
    CandidateState.BEST: 4,
    CandidateState.INT: 5,
    CandidateState.OK: 6,
    CandidateState.REJ: 6,
    CandidateState.FAIL: 6,
    CandidateState.BASE: 7,
}


class Sort(StrEnum):
    """How the flat list is sorted."""

    PENDING = "pending"
    RATIO = "ratio"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a candidate, and the branches of the tree in front of it."""

    id: str
    prefix: str = ""


def matches(candidate: Candidate, state: CandidateState, needle: str) -> bool:
    """Whether a candidate fits the filter: every word is in its id, state, agent, reason or values."""
    if not needle:
        return True
    values = " ".join(f"{key}={value}" for key, value in candidate.configuration.items())
    text = f"{candidate.id} {state} {candidate.agent} {candidate.reason} {values}".lower()
    return all(word in text for word in needle.lower().split())


def rows(state: State, *, sort: Sort, needle: str = "", tree: bool = False) -> Sequence[Row]:
    """Returns the rows to show. A filter flattens the tree, since parents may not fit it."""
    words = {id_: state.state_of(id_) for id_ in state.candidates}
    kept = [c for c in state.candidates.values() if matches(c, words[c.id], needle)]
    if tree and not needle:
        return _tree(state)
    newest = {c.id: number for number, c in enumerate(state.candidates.values())}
    if sort is Sort.PENDING:
        kept.sort(key=lambda c: (_ORDER[words[c.id]], -newest[c.id]))
    elif sort is Sort.RATIO:
        kept.sort(key=lambda c: (-(c.measurement.ratio if c.measurement else 0.0), newest[c.id]))
    else:
        kept.sort(key=lambda c: -newest[c.id])
    return [Row(c.id) for c in kept]


def _tree(state: State) -> list[Row]:
    """Returns the tree with the trunk, the way from the seed to the incumbent, in the first column.

    What branches off stands indented below its parent, before the trunk goes on.
    """
    candidates = state.candidates
    children: dict[str, list[str]] = {}
    roots: list[str] = []
    for candidate in candidates.values():
        parent = next((p for p in candidate.parents if p in candidates and p != candidate.id), "")
        (children.setdefault(parent, []) if parent else roots).append(candidate.id)
    trunk: set[str] = set()
    at = state.incumbent
    while at and at not in trunk and at in candidates:
        trunk.add(at)
        at = next(iter(candidates[at].parents), "")
    found: list[Row] = []
    # Depth first without recursion: a long chain of candidates is deeper than the stack.
    stack = [(id_, "", "") for id_ in reversed(roots)]
    while stack:
        id_, prefix, stem = stack.pop()
        found.append(Row(id_, prefix))
        below = children.get(id_, [])
        onward = [child for child in below if child in trunk]
        aside = [child for child in below if child not in trunk]
        stack += [(child, "", "") for child in onward]
        for child in reversed(aside):
            last = child == aside[-1] and not (onward and not stem)
            if len(stem) >= 2 * _MAX_DEPTH:
                stack.append((child, stem[:-2] + "┆ ", stem))
            else:
                stack.append(
                    (child, stem + ("└ " if last else "├ "), stem + ("  " if last else "│ "))
                )
    return found


def candidate_line(state: State, live: Live, row: Row, *, selected: bool, width: int) -> Line:
    """Returns one row in `width` cells.

    As width shrinks the mutation text goes first, then the generation, the interval, the ratio. Id,
    state and agent are never dropped.
    """
    candidate = state.candidates[row.id]
    word = state.state_of(row.id)
    head: list[tuple[str, str]] = [
        (" > " if selected else "   ", "key"),
        (row.prefix, "faint"),
        (f"{row.id:<6}", "strong" if selected else "ink"),
        (f"{word:<6}", state_style(word)),
        (f"{candidate.agent:<6}", f"agent-{candidate.agent}"),
    ]
    left = width - 3 - len(row.prefix) - 18
    if candidate.measurement is None:
        generation = f"g{candidate.generation:<4}"
        if left >= 40:
            head.append((generation, "dim"))
            left -= len(generation)
        text, style = _unmeasured(candidate, word, live)
        if text and left >= 18 + len(text) + 8 and word is not CandidateState.FAIL:
            head.append((fit(text, 16) + " ", style))
            text, style = clean(candidate.reason), "dim"
        head.append((text or clean(candidate.reason), style))
        return cut(tuple(head), width)
    middle, low, high = reference_ratio(candidate.measurement)
    shown = f"{ratio(middle):>7}"
    interval = f" {half_width((high - low) / 2):<7}"
    if left >= 40:
        head.append((f"g{candidate.generation:<4}", "dim"))
        left -= 5
    if left >= len(shown):
        head.append((shown, "strong" if word is CandidateState.BEST else "ink"))
        left -= len(shown)
    if left >= len(interval):
        head.append((interval, "dim"))
        left -= len(interval)
    if left >= 14:
        head.append((f"  {clean(candidate.reason)}", "dim"))
    return cut(tuple(head), width)


def mark_line(line: Line) -> Line:
    """Returns a row with the mark of triage in front."""
    (text, _), *rest = line
    return (("*" + text[1:], "key"), *rest)


def _unmeasured(candidate: Candidate, word: CandidateState, live: Live) -> tuple[str, str]:
    if candidate.failure is not None:
        return f"{candidate.failure.stage}: {clean(candidate.failure.reason)}", "bad"
    if word in _RUNNING:
        count = live.rounds.get(candidate.id)
        if word is CandidateState.BENCH and count and count.total:
            return f"round {count.done} of {count.total}  {clean(count.text)}".rstrip(), "accent"
        activity = live.activities.get(candidate.id)
        return (clean(activity.text) if activity else ""), "accent"
    return "", "dim"


def details(state: State, candidate: Candidate, width: int) -> Sequence[Line]:
    """Returns what stands below the tree on the selected candidate: at most five lines."""
    room = width - 12
    lines: list[Line] = []

    def add(name: str, text: str, limit: int = 1, style: str = "ink") -> None:
        for index, part in enumerate(wrap(text, room)[:limit]):
            lines.append(((f" {name if not index else '':<11}", "dim"), (fit(part, room), style)))

    add("directive", short_directive(candidate.directive), 2)
    cost = cost_text(state, candidate)
    add("mutation", candidate.reason, 1 if cost else 2)
    if cost:
        add("cost", cost)
    parents = " + ".join(candidate.parents) or candidate.seed_file or "none"
    if len(candidate.parents) > 1:
        parents = f"{candidate.parents[0]} + {', '.join(candidate.parents[1:])}"
    where = f"{parents}  ({candidate.origin}, {candidate.sha[:7]})"
    if candidate.island:
        guest = ",".join(map(str, candidate.guest_of))
        island = f"isl {candidate.island}" + (f"→{guest}" if guest else "")
        where = f"{parents} ({candidate.origin}, {island})"
    add("parents", where)
    return lines[:5]


def footer_text(
    state: State, shown: int, selected: int, *, sort: Sort, needle: str, tree: bool
) -> str:
    """Returns the list's bottom line: `1 of 124  sort:pending`."""
    total = len(state.candidates)
    if needle:
        return f"{shown} of {total}  /{needle}"
    if not total:
        return ""
    if tree:
        counts = state.counts()
        waiting = sum(
            counts[word]
            for word in (CandidateState.PEND, CandidateState.STALE, CandidateState.QUAR)
        )
        return f"{total} ({waiting} pending, {counts[CandidateState.FAIL]} failed)  tree"
    return f"{selected + 1} of {total}  sort:{sort}"
