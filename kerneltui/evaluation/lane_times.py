"""What lanes say of time: calls after pauses, calls without a pause, and where the seconds go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Served", "Spent", "Sustained"]


@dataclass(slots=True)
class Spent:
    """Where the time of lanes goes, in nanoseconds of the engine's clock.

    Attributes:
        setup_ns: Making and giving back memory, `kerneltui_setup` and `kerneltui_teardown`.
        fill_ns: Writing inputs.
        check_ns: Comparing outputs.
        calls_ns: From asking for calls to the last answer.
        inside_ns: Of it, inside the calls.
    """

    setup_ns: int = 0
    fill_ns: int = 0
    check_ns: int = 0
    calls_ns: int = 0
    inside_ns: int = 0

    def take(self) -> dict[str, float]:
        """What was added since the last time, in seconds."""
        seconds = {name[:-3]: round(value / 1e9, 4) for name, value in asdict(self).items()}
        for name in asdict(self):
            setattr(self, name, 0)
        return seconds

    @contextmanager
    def adding(self, name: str) -> Iterator[None]:
        """Adds the time of a block to `<name>_ns`."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            field = f"{name}_ns"
            setattr(self, field, getattr(self, field) + time.monotonic_ns() - begin)


@dataclass(frozen=True, slots=True)
class Served:
    """Single calls after pauses, in nanoseconds; of several ranks the slowest counts.

    Attributes:
        launch_ns: Of every second call: time of the host in the call. Empty where that is all of it.
        latency_ns: Of the same: from before the call until everything is done.
        device_ns: Of the others, which are held back until they are enqueued: time of the device.
        unheld: Whether one of these began before it was enqueued, since it waits for the device itself: its
            time has launches of the host in it.
    """

    launch_ns: tuple[int, ...]
    latency_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
    unheld: bool = False

    @classmethod
    def of(cls, answers: Sequence[Mapping[str, Any]]) -> Served:
        """From the answers of all ranks."""
        parts = ("launch_ns", "latency_ns", "device_ns")
        times = (_slowest([answer[part] for answer in answers]) for part in parts)
        return cls(*times, unheld=any(answer.get("unheld") for answer in answers))


@dataclass(frozen=True, slots=True)
class Sustained:
    """Calls without a pause; of several ranks the slowest counts.

    Attributes:
        elapsed_ns: Their time on the device.
        enqueue_ns: Time of the host in which it enqueued them, while the device was at earlier ones.
    """

    elapsed_ns: int
    enqueue_ns: int = 0

    @classmethod
    def of(cls, answers: Sequence[Mapping[str, Any]]) -> Sustained:
        """From the answers of all ranks."""
        parts = ("elapsed_ns", "enqueue_ns")
        return cls(*(max(int(answer[part]) for answer in answers) for part in parts))


def _slowest(ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(max(int(value) for value in column) for column in zip(*ranks, strict=True))
