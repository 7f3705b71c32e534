"""Checks on what ranks did, beside the values that they wrote: causality, clocks, work left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from kerneltui.model.workload import Role, Shape, Workload
from kerneltui.targets.sample import Sample

__all__ = ["causality_broken", "cpu_time_ns", "left_running", "producers"]

_GRACE_S, _WINDOW_S = 0.010, 0.020
_BUSY_SHARE = 0.25


def producers(workload: Workload, shape: Shape) -> tuple[int, ...]:
    """The ranks that every rank's output depends on, besides the rank itself.

    Where an input is shared out over the ranks and an output is whole on each of them, these are all
    ranks that hold a part of it. A rank may hold none: one row cannot be shared by two.
    """
    shared = [t for t in workload.tensors if t.shard is not None and t.role is not Role.OUTPUT]
    if not any(t.shard is None and t.role is not Role.INPUT for t in workload.tensors):
        return ()
    return tuple(
        rank for rank in range(shape.ranks) if any(all(t.local(shape, rank)[0]) for t in shared)
    )


def causality_broken(sample: Sample, needed: Sequence[int]) -> str:
    """Whether a rank finished a call before one that it needs had begun it; one line, or empty.

    Its output cannot have been complete then, whatever it holds when somebody looks at it later.
    """
    if not needed:
        return ""
    for index in range(min(len(r.call_ends_ns) for r in sample.ranks)):
        begins = [r.call_ends_ns[index - 1] if index else r.start_ns for r in sample.ranks]
        ends = [r.call_ends_ns[index] for r in sample.ranks]
        late = max(needed, key=lambda r: begins[r])
        early = min(range(len(ends)), key=lambda r: ends[r])
        if ends[early] + sample.slack_ns < begins[late]:
            ahead = (begins[late] - ends[early]) / 1e6
            return (
                f"rank {early} returned from run {ahead:.2f} ms before rank {late} began the same call, "
                f"so its output was not complete"
            )
    return ""


def cpu_time_ns(pids: Sequence[int]) -> int:
    """Processor time that processes have used, all threads together."""
    total = 0
    for pid in pids:
        for entry in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(entry.read_text().split()[0])
            except (OSError, ValueError, IndexError):
                continue  # a thread that ended meanwhile
    return total


def left_running(pids: Sequence[int]) -> float:
    """Share of one processor that idle ranks use: work that a kernel left behind; 0 if it is small.

    Spinning for a moment after a parallel region is common and allowed, so the first moment is left out.
    """
    time.sleep(_GRACE_S)
    before, begin = cpu_time_ns(pids), time.monotonic_ns()
    time.sleep(_WINDOW_S)
    used = cpu_time_ns(pids) - before
    share = used / max(1, time.monotonic_ns() - begin)
    return share if share > _BUSY_SHARE else 0.0
