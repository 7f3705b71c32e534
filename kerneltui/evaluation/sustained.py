"""Calls without a pause for seconds, and what the GPU does meanwhile: clocks sink when power runs out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Any, Protocol

from kerneltui.evaluation.bench_result import ModeTimes
from kerneltui.evaluation.lane import Lane
from kerneltui.model.reading import GpuReading, rate

__all__ = ["Readable", "sustain"]

_EVERY_S = 0.05
_CHUNK_NS = 2_000_000
_MOST_CHUNK = 64
_SETTLED = 0.5  # of the readings: the second half, when clocks have come to rest


class Readable(Protocol):
    """Whose GPUs can be read."""

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """What the GPUs do now."""
        ...


class _Reader(threading.Thread):
    """Reads the GPUs now and then, until it is told to stop."""

    def __init__(self, target: Readable) -> None:
        super().__init__(name="gpu-reader", daemon=True)
        self._target = target
        self._stop_now = threading.Event()
        self.found: list[GpuReading] = []

    def run(self) -> None:
        """Reads."""
        while not self._stop_now.wait(_EVERY_S):
            self.found += self._target.readings(0.0)[:1]

    def stop(self) -> None:
        """Ends it."""
        self._stop_now.set()
        self.join()


def sustain(lane: Lane, target: Readable, seconds: float, call_ns: float) -> ModeTimes:
    """Has a lane make calls without a pause; one time, and the GPU's state in the second half.

    Args:
        lane: Set up, with inputs in all its buffer sets.
        target: Whose GPU is read.
        seconds: How long.
        call_ns: Time of a call, roughly.

    Raises:
        RankFailure: The group failed.
    """
    chunk = max(1, min(_MOST_CHUNK, ceil(_CHUNK_NS / call_ns)))
    reader = _Reader(target)
    reader.start()
    try:
        calls, elapsed = lane.sustain(seconds, chunk)
    finally:
        reader.stop()
    more: dict[str, Any] = {"calls": calls, "seconds": round(elapsed / 1e9, 4)}
    time_ns = elapsed / calls
    if reader.found:
        more["gpu"] = _state(reader.found, time_ns)
    return ModeTimes(((time_ns,),), more)


def _state(readings: Sequence[GpuReading], time_ns: float) -> dict[str, Any]:
    late = readings[int(len(readings) * _SETTLED) :]
    first, last = late[0], late[-1]
    watts = rate(first, last, "energy_j")
    power = watts or _median([reading.power_w for reading in late])
    held: dict[str, int] = {}
    for reading in late:
        for name in reading.throttle or ():
            held[name] = held.get(name, 0) + 1
    return {
        "readings": len(late),
        "sm_clock_mhz": _median([reading.sm_clock_mhz for reading in late]),
        "power_w": None if power is None else round(power, 1),
        "energy_j": None if power is None else float(f"{power * time_ns / 1e9:.5g}"),
        "temperature_c": last.temperature_c,
        "held": held,
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
