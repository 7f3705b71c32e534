"""Calls without a pause for seconds, and what the GPUs do meanwhile: clocks sink when power runs out."""

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
_PROBED = 4  # chunks
_MARGIN = 1.05  # calls for so much more time: a burst's call may have been slow by chance
_LONGEST = 3.0  # times what bursts would take
_SETTLED = 0.5  # of the readings: the second half, when clocks have come to rest


class Readable(Protocol):
    """Whose GPUs can be read."""

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """What the GPUs do now."""
        ...


class _Reader(threading.Thread):
    """Reads the first so many GPUs now and then, until it is told to stop."""

    def __init__(self, target: Readable, count: int) -> None:
        super().__init__(name="gpu-reader", daemon=True)
        self._target = target
        self._count = count
        self._stop_now = threading.Event()
        self.found: list[tuple[GpuReading, ...]] = []

    def run(self) -> None:
        """Reads."""
        while not self._stop_now.wait(_EVERY_S):
            if readings := self._target.readings(0.0)[: self._count]:
                self.found.append(readings)

    def stop(self) -> None:
        """Ends it."""
        self._stop_now.set()
        self.join()


def sustain(lane: Lane, target: Readable, seconds: float, call_ns: float) -> ModeTimes:
    """Has a lane make calls without a pause; one time, and the state of the GPUs in the second half.

    Args:
        lane: Set up, with inputs in all its buffer sets.
        target: Whose GPUs are read.
        seconds: How long, about: the number of calls is fixed beforehand, for all ranks.
        call_ns: Time of a call in bursts, on the device.

    Raises:
        RankFailure: The group failed.
    """
    chunk = max(1, min(_MOST_CHUNK, ceil(_CHUNK_NS / call_ns)))
    # Where the host cannot keep up, a call takes longer than in bursts, which are enqueued beforehand.
    probed = lane.sustain(_PROBED * chunk, chunk, _LONGEST * seconds)
    probe = probed.elapsed_ns / (_PROBED * chunk)
    calls = max(1, ceil(_MARGIN * seconds * 1e9 / max(call_ns, probe)))
    reader = _Reader(target, lane.group.ranks)  # rank r has GPU r
    reader.start()
    try:
        found = lane.sustain(calls, chunk, _LONGEST * seconds)
    finally:
        reader.stop()
    more: dict[str, Any] = {
        "calls": calls,
        "seconds": round(found.elapsed_ns / 1e9, 4),
        "enqueueing": round(found.enqueue_ns / found.elapsed_ns, 4),
    }
    time_ns = found.elapsed_ns / calls
    if reader.found:
        more["gpu"] = _state(reader.found, time_ns)
    return ModeTimes(((time_ns,),), more)


def _state(readings: Sequence[tuple[GpuReading, ...]], time_ns: float) -> dict[str, Any]:
    """The clock of the slowest GPU, power and energy of all, the heat of the hottest."""
    late = readings[int(len(readings) * _SETTLED) :]
    counted = [rate(first, last, "energy_j") for first, last in zip(late[0], late[-1], strict=True)]
    power = _total(counted)
    if power is None:
        power = _median([_total([gpu.power_w for gpu in at]) for at in late])
    held: dict[str, int] = {}
    for at in late:
        for name in {name for gpu in at for name in gpu.throttle or ()}:
            held[name] = held.get(name, 0) + 1
    heat = [gpu.temperature_c for gpu in late[-1] if gpu.temperature_c is not None]
    return {
        "readings": len(late),
        "sm_clock_mhz": _median([_least([gpu.sm_clock_mhz for gpu in at]) for at in late]),
        "power_w": None if power is None else round(power, 1),
        "energy_j": None if power is None else float(f"{power * time_ns / 1e9:.5g}"),
        "temperature_c": max(heat, default=None),
        "held": held,
    }


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _least(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
