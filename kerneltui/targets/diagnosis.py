"""What the answers and the ends of ranks mean, in numbers and in words. Ranks are not trusted."""

from __future__ import annotations

import mmap
import signal
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from kerneltui.targets.errors import FailureKind
from kerneltui.targets.port import RankExit
from kerneltui.targets.sample import RankSample

__all__ = [
    "GO_ON_OFFSET",
    "SLOT_BYTES",
    "all_held",
    "clock_conflict",
    "describe_exit",
    "describe_refusal",
    "last_epochs",
    "one_line",
    "rank_samples",
    "unremarkable",
]

SLOT_BYTES = 128
"""Bytes of each rank in the control page of a group."""

GO_ON_OFFSET = 32
"""Where in it the engine's word lies that a gate may open."""

_SLOT = struct.Struct("=QQQQQ")  # gate, begun, finished, held, go_on; see harness_common.h

_LONGEST_REASON = 500


def rank_samples(answers: Sequence[Mapping[str, Any]], calls: int) -> tuple[RankSample, ...]:
    """Reads what the ranks say of a sample.

    An answer with `gate_ns` is of a GPU's own timer: there the start gate lies at that time, and by the
    clock of the host all passed it after the last rank's `go_ns`.

    Raises:
        KeyError: If something is missing.
        TypeError: If something is no number.
        ValueError: If the number of times is not the number of calls.
    """
    opened = max(int(answer.get("go_ns", 0)) for answer in answers)
    return tuple(_rank_sample(answer, calls, opened) for answer in answers)


def _rank_sample(answer: Mapping[str, Any], calls: int, opened: int) -> RankSample:
    on_device = "gate_ns" in answer
    shift = opened - int(answer["gate_ns"]) if on_device else 0
    ends = tuple(int(e) + shift for e in answer["ends_ns"])
    if len(ends) != calls and not (on_device and len(ends) == 1):
        raise ValueError(f"{len(ends)} times for {calls} calls")
    return RankSample(
        start_ns=int(answer["start_ns"]) + shift,
        call_ends_ns=ends,
        ticks_ns=int(answer["ticks_ns"]),
        cpu_ns=int(answer["cpu_ns"]),
        minor_faults=int(answer["minor_faults"]),
        involuntary_switches=int(answer["involuntary_switches"]),
        threads_before=int(answer["threads_before"]),
        threads_after=int(answer["threads_after"]),
        enqueue_ns=int(answer.get("enqueue_ns", 0)),
        unheld=bool(answer.get("unheld", False)),
    )


def clock_conflict(
    ranks: Sequence[RankSample],
    begin_ns: int,
    end_ns: int,
    *,
    slack_ns: int = 50_000,
    may_be_late: bool = False,
) -> str | None:
    """Holds the ranks' clocks against each other and against the engine's; one line on a conflict.

    Args:
        ranks: What they saw.
        begin_ns: Before the engine's request, by its own clock.
        end_ns: After the last answer.
        slack_ns: By which a rank's two clocks may differ in any sample, beside a twentieth of it.
        may_be_late: Whether the second clock is read by somebody who may come late to the begin, and so
            see less: then only what it saw beyond the first one counts.
    """
    for rank, seen in enumerate(ranks):
        times = (seen.start_ns, *seen.call_ends_ns)
        if any(a > b for a, b in pairwise(times)) or seen.start_ns == seen.end_ns:
            return f"the clock of rank {rank} stood still or ran backwards"
        if seen.start_ns < begin_ns or seen.end_ns > end_ns:
            return f"rank {rank} reports times outside of the engine's request"
        elapsed = seen.end_ns - seen.start_ns
        more = seen.ticks_ns - elapsed
        if seen.ticks_ns and (more if may_be_late else abs(more)) > slack_ns + elapsed // 20:
            return f"clocks of rank {rank} disagree: {elapsed} ns by the one, {seen.ticks_ns} ns by the other"
    return None


def unremarkable(exited: RankExit | None) -> bool:
    """True for an end that explains nothing: it may follow from the end of another rank."""
    return exited is None or exited.signal in (None, signal.SIGTERM)


def describe_exit(rank: int, exited: RankExit | None, what: str) -> tuple[FailureKind, str]:
    """Kind and one line for a rank that ended in the middle of a request."""
    if exited is None:
        return FailureKind.CRASH, f"rank {rank} closed its channel in {what}"
    if exited.signal is None:
        return FailureKind.CRASH, f"rank {rank} left in {what} with exit code {exited.exit_code}"
    try:
        name = signal.Signals(exited.signal).name
    except ValueError:
        name = "unknown"
    if exited.oom_suspected:
        peak = exited.peak_bytes >> 20
        return (
            FailureKind.OUT_OF_MEMORY,
            f"rank {rank} ran out of memory in {what}: {name} at {peak} MiB",
        )
    return FailureKind.CRASH, f"rank {rank} crashed in {what}: signal {exited.signal} ({name})"


def describe_refusal(rank: int, answer: Mapping[str, Any], what: str) -> tuple[FailureKind, str]:
    """Kind and words for a rank that answered with a failure."""
    told = answer.get("kind")
    known = (FailureKind.OUT_OF_MEMORY, FailureKind.HANG, FailureKind.DEVICE)
    kind = next((k for k in known if told == k), FailureKind.ERROR)
    return kind, f"rank {rank} failed in {what}: {answer.get('reason', 'no reason given')}"


def all_held(control: mmap.mmap, ranks: int, gate: int) -> bool:
    """Whether every rank has enqueued its calls behind the gate of this number."""
    return all(_SLOT.unpack_from(control, rank * SLOT_BYTES)[3] >= gate for rank in range(ranks))


def last_epochs(control: mmap.mmap, ranks: int) -> str:
    """How far each rank came, from the control page that the harness keeps."""
    parts: list[str] = []
    for rank in range(ranks):
        _, begun, finished, _, _ = _SLOT.unpack_from(control, rank * SLOT_BYTES)
        state = "in" if begun > finished else "after"
        parts.append(
            f"rank {rank} {state} epoch {begun - 1}" if begun else f"rank {rank} before any call"
        )
    return ", ".join(parts)


def one_line(text: str) -> str:
    """A text that may come from a kernel, as one printable line of bounded length."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * _LONGEST_REASON])
    line = " ".join(printable.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
