"""From what a lane's calls showed to its times in a mode, with what is told beside them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from kerneltui.evaluation.bench_result import ModeTimes, percentile
from kerneltui.evaluation.lane_times import Served
from kerneltui.evaluation.rounds import Burst

__all__ = ["gpu_note", "served"]


def served(parts: Sequence[Served], *, evicted: bool) -> ModeTimes:
    """The server mode: the device's time, with launch and latency of the host beside it.

    Args:
        parts: What was served, part by part.
        evicted: Whether the cache was emptied before each call.
    """
    launch = [value for part in parts for value in part.launch_ns]
    latency = [value for part in parts for value in part.latency_ns]
    device = [value for part in parts for value in part.device_ns]
    more: dict[str, Any] = {"arrivals": len(latency) + len(device), "cache_emptied": evicted}
    for name, values in (("device", device), ("launch", launch), ("latency", latency)):
        if values:
            more[f"{name}_ns"] = {
                "p50": round(percentile(values, 0.5)),
                "p99": round(percentile(values, 0.99)),
                "least": min(values),
            }
    unheld = sum(part.unheld for part in parts)
    if unheld:
        more["unheld"] = round(unheld / len(parts), 4)
    return ModeTimes(tuple((float(median(part.device_ns)),) for part in parts), more)


def gpu_note(bursts: Sequence[Burst]) -> dict[str, Any]:
    """Clock, and what held it down in how many rounds; power and energy where they were a lane's own."""
    seen = [burst.gpu for burst in bursts if burst.gpu is not None]
    note: dict[str, Any] = {}
    if seen:
        held = [name for use in seen for name in use.held]
        power = {
            "power_w": _median([use.power_w for use in seen]),
            "energy_j": _median([use.energy_j for use in seen]),
        }
        note["gpu"] = {
            "sm_clock_mhz": _median([use.sm_clock_mhz for use in seen]),
            **{name: value for name, value in power.items() if value is not None},
            "rounds": len(seen),
            "held": {name: held.count(name) for name in dict.fromkeys(held)},
        }
    conflicts = [burst.conflict for burst in bursts if burst.conflict]
    if conflicts:
        note["clock_conflicts"] = conflicts
    return note


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{median(known):.6g}") if known else None
