"""The coverage grid: which values of two fields were tried together, and what they gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.model.candidate import Candidate
from kerneltui.model.directive import FIELDS, Backend, Issuer, Placement, Sync
from kerneltui.model.event import ConstraintKind
from kerneltui.model.state import State
from kerneltui.tui.format import counted, ratio
from kerneltui.tui.text import Line, Span, clean, cut, fit

__all__ = ["Cell", "cells", "coverage_lines", "fields_of", "values_of"]

_LEGAL: Mapping[str, type[StrEnum]] = {
    "backend": Backend,
    "placement": Placement,
    "sync": Sync,
    "issuer": Issuer,
}
_LEAST = 9  # cells of a column


@dataclass(slots=True)
class Cell:
    """What was tried with one pair of values.

    Attributes:
        tried: Candidates.
        failed: Of them, those that failed.
        best: The best ratio to the reference, 0 without a measurement.
        incumbent: Whether the incumbent is one of them.
    """

    tried: int = 0
    failed: int = 0
    best: float = 0.0
    incumbent: bool = False


def _choices(candidate: Candidate) -> Mapping[str, str]:
    stated = candidate.directive.items() if candidate.directive else {}
    return {**candidate.configuration, **stated}


def fields_of(state: State) -> Sequence[str]:
    """Returns the fields that can span the grid: of the directive, then the tunables."""
    found = dict.fromkeys(FIELDS)
    for candidate in state.candidates.values():
        found |= dict.fromkeys(candidate.directive.extra if candidate.directive else ())
    for candidate in state.candidates.values():
        found |= dict.fromkeys(candidate.configuration)
    return tuple(found)


def values_of(state: State, name: str) -> Sequence[str]:
    """Returns the values of a field: all legal ones of the directive's words, else those tried, sorted."""
    if name in _LEGAL:
        return [str(value) for value in _LEGAL[name]]
    seen = {_choices(c)[name] for c in state.candidates.values() if name in _choices(c)}
    return sorted(
        seen, key=lambda value: (not value.isdigit(), value.isdigit() and int(value), value)
    )


def cells(state: State, rows: str, columns: str) -> Mapping[tuple[str, str], Cell]:
    """Returns what was tried, by pairs of values."""
    found: dict[tuple[str, str], Cell] = {}
    for candidate in state.candidates.values():
        choices = _choices(candidate)
        if rows not in choices or columns not in choices:
            continue
        cell = found.setdefault((choices[rows], choices[columns]), Cell())
        cell.tried += 1
        cell.failed += candidate.failure is not None
        cell.incumbent |= candidate.id == state.incumbent
        measured = candidate.measurement
        if measured is not None and not measured.quarantine:
            cell.best = max(cell.best, measured.ratio)
    return found


def coverage_lines(state: State, rows: str, columns: str, width: int) -> Sequence[Line]:
    """Returns the grid with its legend."""
    found = cells(state, rows, columns)
    down, across = values_of(state, rows), values_of(state, columns)
    names = min(max([len(rows), *map(len, down)], default=8), 20) + 1
    best = max((cell.best for cell in found.values()), default=0.0)
    texts = {pair: _cell(cell, best) for pair, cell in found.items()}
    rooms = _rooms(
        across,
        {other: max(len(texts[v, other][0]) for v in down if (v, other) in texts) for other in across
         if any((v, other) in texts for v in down)},
        width - names - 1,
    )  # fmt: skip
    head: list[Span] = [(f" {fit(rows, names)}", "dim")]
    head += [
        (fit(" " + v, room), _asked(state, columns, v))
        for v, room in zip(across, rooms, strict=True)
    ]
    lines: list[Line] = [
        ((" rows ", "dim"), (rows, "key"), ("   columns ", "dim"), (columns, "key"),
         ("   u and U change them", "dim")),
        (),
        cut(tuple(head), width),
    ]  # fmt: skip
    for value in down:
        spans: list[Span] = [(f" {fit(value, names)}", _asked(state, rows, value))]
        for other, room in zip(across, rooms, strict=True):
            text, style = texts.get((value, other), ("·", "faint"))
            spans.append((fit(" " + text, room), style))
        lines.append(cut(tuple(spans), width))
    total, failed = sum(c.tried for c in found.values()), sum(c.failed for c in found.values())
    pairs = len(down) * len(across)
    lines += [
        (),
        (
            (
                f" {counted(total, 'candidate')} in {len(found)} of {pairs} cells, {failed} failed",
                "ink",
            ),
        ),
        (
            (
                " best ratio, tried, failed (f)   * BEST is among them   · never tried",
                "dim",
            ),
        ),
    ]
    banned = [
        f"{c.kind} {c.field}={c.value}" for c in state.constraints if c.field in (rows, columns)
    ]
    if banned:
        lines.append(((f" {clean(', '.join(banned))}", "warn"),))
    return lines


def _rooms(across: Sequence[str], needed: Mapping[str, int], width: int) -> Sequence[int]:
    """Returns the widths of the columns: what is in them is never cut, their heads may be."""
    least = [max(needed.get(value, 0) + 2, _LEAST) for value in across]
    wanted = [max(room, len(value) + 2) for room, value in zip(least, across, strict=True)]
    spare = width - sum(least)
    rooms: list[int] = []
    for room, wish in zip(least, wanted, strict=True):
        more = max(0, min(wish - room, spare))
        spare -= more
        rooms.append(room + more)
    return rooms


def _cell(cell: Cell, best: float) -> tuple[str, str]:
    failed = f" {cell.failed}f" if cell.failed else ""
    if not cell.best:
        return f"- {cell.tried}{failed}", "bad" if cell.failed else "dim"
    star = "*" if cell.incumbent else ""
    return f"{ratio(cell.best)}{star} {cell.tried}{failed}", "good" if cell.best == best else "ink"


def _asked(state: State, name: str, value: str) -> str:
    kinds = {c.kind for c in state.constraints if (c.field, c.value) == (name, value)}
    if ConstraintKind.BAN in kinds:
        return "off"
    return "warn" if ConstraintKind.FORCE in kinds else "strong"
