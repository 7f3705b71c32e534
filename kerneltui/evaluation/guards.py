"""Checks on what ranks did, beside the values that they wrote: causality, clocks, work left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kerneltui.model.workload import Role, Shape, Workload
from kerneltui.targets.sample import Sample

__all__ = ["causality_broken", "cpu_time_ns", "left_running", "producers"]

_GRACE_S, _WINDOW_S = 0.010, 0.020
_PATIENCE_S, _LONGEST_S, _MOST_NS = 1.0, 5.0, 250_000_000
_BUSY_SHARE, _LEAST_SHARE = 0.25, 0.01
_IN_A_ROW = 3  # quiet windows after one that was not


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
    """Share of one processor that idle ranks use: work that a kernel left behind; 0 if there is none.

    Spinning for a moment after a parallel region is common and allowed. On a busy machine the moment is
    long, and what never stops gets little: so ranks are left running that are not quiet within a second,
    or within five if they have hardly had a processor.
    """
    began, at_first = time.monotonic(), cpu_time_ns(pids)
    time.sleep(_GRACE_S)
    wanted = 1
    while True:
        before, begin = cpu_time_ns(pids), time.monotonic_ns()
        time.sleep(_WINDOW_S)
        now = cpu_time_ns(pids)
        share = (now - before) / max(1, time.monotonic_ns() - begin)
        quiet = share <= _BUSY_SHARE and not _runnable(pids)
        wanted = wanted - 1 if quiet else _IN_A_ROW
        if not wanted:
            return 0.0
        limit = _PATIENCE_S if now - at_first > _MOST_NS else _LONGEST_S
        if time.monotonic() - began > limit:
            return max(share, _LEAST_SHARE)


def _runnable(pids: Sequence[int]) -> bool:
    """Whether a thread of these processes runs, or would if it got a processor."""
    for pid in pids:
        for entry in Path(f"/proc/{pid}/task").glob("*/stat"):
            with suppress(OSError, ValueError):  # a thread that ended meanwhile
                text = entry.read_text()
                # The name in parentheses may hold anything.
                if text[text.rindex(")") + 2] == "R":
                    return True
    return False
