"""The counters tab: what the profiler of the GPU counted of a candidate, beside its parent.

Counters come from a note of the session, which anybody may have written, so nothing in it is taken for
granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

from kerneltui.tui.reports import Report
from kerneltui.tui.text import Line, clean, cut, fit, wrap

__all__ = ["counter_lines"]

_NAME, _VALUE, _UNIT = 24, 11, 12


def counter_lines(report: Report, width: int) -> Sequence[Line]:
    """Returns the counters as a table, or one line on why there are none."""
    if report.error:
        return [((f" {clean(report.error)}", "dim"),)]
    counters = report.counters
    if not counters:
        return [
            (
                (f" {report.candidate} was not profiled; ", "dim"),
                ("P", "key"),
                (" counts it while no evaluation runs", "dim"),
            )
        ]
    lines: list[Line] = []
    for text in _where(counters):
        lines += [((f" {part}", "dim"),) for part in wrap(text, max(width - 2, 10))]
    before = {_stem(kernel): kernel for kernel in _kernels(report.parent_counters)}
    if _kernels(counters):
        parent = report.parent if before else ""
        lines += [
            (),
            (
                (" " * (_NAME + 3), ""),
                (f"{report.candidate:>{_VALUE}} {'':<{_UNIT}}", "dim"),
                (f"{parent:>{_VALUE}}{'change' if parent else '':>{_VALUE}}", "dim"),
            ),
        ]
    for kernel in _kernels(counters):
        launches = kernel.get("launches")
        times = f"   {launches} launches" if isinstance(launches, int) and launches > 1 else ""
        name = clean(str(kernel.get("name", "")))
        lines += [(), cut(((f" {name}", "strong"), (times, "dim")), width)]
        past = {str(row[0]): row[1] for row in _rows(before.get(_stem(kernel), {}))}
        lines += [_row(row, past.get(str(row[0]))) for row in _rows(kernel)]
        tail = _tail(kernel)
        if tail:
            lines.append(cut(((f"   {tail}", "dim"),), width))
    return lines


def _where(counters: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"ncu on {counters.get('shape', 'a shape')}"]
    if counters.get("alone"):
        lines.append(
            f"alone: one rank of {counters.get('ranks')} on its share of the rows. Ranks that wait for "
            "one another hang under the profiler, so nothing of the link is in here."
        )
    if counters.get("vendor"):
        lines.append("kernels of the vendor's library: the candidate has none of its own")
    return lines


def _row(row: Sequence[Any], past: Any) -> Line:
    name, value, unit = row
    head: Line = (
        (f"   {fit(clean(str(name)), _NAME)}", "dim"),
        (f"{_text(value):>{_VALUE}}", "ink"),
        (f" {fit(clean(str(unit)), _UNIT)}", "dim"),
    )
    if not _is_number(past) or not _is_number(value):
        return head
    change = value - past
    text = "=" if change == 0 else f"{change:+.4g}"
    return (
        *head,
        (f"{_text(past):>{_VALUE}}", "dim"),
        (f"{text:>{_VALUE}}", "warn" if change else "dim"),
    )


def _tail(kernel: Mapping[str, Any]) -> str:
    """How the grid falls into waves, in words."""
    waves = {str(row[0]): row[1] for row in _rows(kernel)}.get("waves")
    if not _is_number(waves) or waves <= 0:
        return ""
    full, rest = divmod(waves, 1.0)
    share = waves / math.ceil(waves)
    noun = "wave" if full == 1 else "waves"
    if rest < 1e-6:
        return f"{full:.0f} full {noun}, no tail"
    return f"{full:.0f} full {noun} and a tail of {rest:.0%}: {share:.1%} of the places are taken"


def _text(value: Any) -> str:
    return f"{value:.5g}" if _is_number(value) else clean(str(value))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _stem(kernel: Mapping[str, Any]) -> str:
    return str(kernel.get("name", "")).partition("<")[0]


def _kernels(counters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = counters.get("kernels")
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _rows(kernel: Mapping[str, Any]) -> list[Sequence[Any]]:
    found = kernel.get("counters")
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Sequence[Any]", row) for row in items if isinstance(row, list) and len(row) == 3]
