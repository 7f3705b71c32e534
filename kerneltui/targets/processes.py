"""Processes as /proc shows them: who descends from whom, and how to end them for certain."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = [
    "children_of",
    "descendants",
    "is_alive",
    "kill_process",
    "kill_tree",
    "own_children",
    "parents",
    "start_time",
]


_GIVE_UP_S = 5.0  # on a process that the kernel does not let go after SIGKILL


def parents() -> dict[int, int]:
    """Parent of every process on this machine that /proc shows."""
    found: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields:
                found[int(entry.name)] = int(fields[1])
    return found


def children_of(pid: int) -> list[int]:
    """Direct children of a process."""
    return [child for child, parent in parents().items() if parent == pid]


def own_children() -> list[int]:
    """Direct children of this process, which must have one thread. Reads one file where it can."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel built without it
        return children_of(os.getpid())
    return [int(pid) for pid in text.split()]


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, its identity. None if gone."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def descendants(roots: Iterable[int]) -> set[int]:
    """Everything below the given processes, without them."""
    by_parent: dict[int, list[int]] = {}
    for child, parent in parents().items():
        by_parent.setdefault(parent, []).append(child)
    known = set(roots)
    below: set[int] = set()
    waiting = list(known)
    while waiting:
        for child in by_parent.get(waiting.pop(), []):
            if child not in known and child not in below:
                below.add(child)
                waiting.append(child)
    return below


def is_alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def kill_process(pid: int, sig: signal.Signals) -> None:
    """Signals one process. One that is gone already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, sig)


def kill_tree(leader: int, *, grace_s: float = 2.0) -> float:
    """Ends a child that leads a process group, its group, and everything below it.

    SIGTERM first, SIGKILL after `grace_s`, then a wait until they are gone. The caller must be the
    parent of `leader` and must not have reaped it yet; it is reaped here.

    Returns:
        Seconds that it took.
    """
    begin = time.monotonic()
    family = descendants([leader])
    _signal_group(leader, signal.SIGTERM)
    for pid in family:
        kill_process(pid, signal.SIGTERM)
    while time.monotonic() < begin + grace_s:
        if not is_alive(leader) and not any(is_alive(pid) for pid in family):
            break
        time.sleep(0.005)
    family |= descendants([leader])
    # The zombie of the leader keeps its group number from being used again until it is reaped.
    _signal_group(leader, signal.SIGKILL)
    for pid in family:
        if is_alive(pid):
            kill_process(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(leader, 0)
    gone_by = time.monotonic() + _GIVE_UP_S
    while any(is_alive(pid) for pid in family) and time.monotonic() < gone_by:
        time.sleep(0.005)
    return time.monotonic() - begin


def _signal_group(leader: int, sig: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, sig)


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, so count from its end: state, parent, group, ...
    return text[text.rindex(")") + 2 :].split()
