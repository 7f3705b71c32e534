"""What a GPU does at a moment: clocks, power, memory, heat, and why it runs slower than it could.

Readings come from a target (`readings` of the port), go into the record of an evaluation, and to the
terminal as progress. What the driver does not tell is None, never a made-up number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerneltui.model.errors import RecordError
from kerneltui.model.record import canonical_json, from_plain, parse_json

__all__ = ["HEAT", "POWER", "GpuReading", "decode_readings", "encode_readings", "rate"]

POWER = frozenset({"power cap", "power brake"})
"""Names of reasons that are about power."""

HEAT = frozenset({"heat", "heat (hardware)"})
"""Names of reasons that are about heat."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    Attributes:
        index: Which GPU, as the target counts them.
        at_ns: When, by CLOCK_MONOTONIC.
        sm_clock_mhz: Clock of the SMs.
        memory_clock_mhz: Clock of the memory.
        power_w: Power now.
        energy_j: Energy since the driver was loaded: a counter.
        memory_used_bytes: Memory in use, by anybody.
        memory_total_bytes: Memory that there is.
        temperature_c: Temperature of the GPU.
        utilisation: Share of the last moments in which a kernel ran, 0 to 1.
        throttle: Why the clock is lower than it could be, without "idle"; None if the driver does not
            tell, empty if nothing holds it down.
        link_bytes: Data sent and received over all NVLinks, a counter; None without.
        power_held_ns: Time for which a power limit has held the clock down, a counter.
        heat_held_ns: The same for heat.
    """

    index: int
    at_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: int | None = None
    utilisation: float | None = None
    throttle: tuple[str, ...] | None = None
    link_bytes: int | None = None
    power_held_ns: int | None = None
    heat_held_ns: int | None = None


def rate(before: GpuReading, after: GpuReading, counter: str) -> float | None:
    """How fast a counter of a GPU went between two readings, per second; None if nobody knows.

    Args:
        before: The earlier reading.
        after: The later one, of the same GPU.
        counter: Name of a field that counts, such as "link_bytes".
    """
    first, last = getattr(before, counter), getattr(after, counter)
    time_ns = after.at_ns - before.at_ns
    if first is None or last is None or last < first or time_ns <= 0:
        return None
    return (last - first) / time_ns * 1e9


def encode_readings(readings: Sequence[GpuReading]) -> str:
    """Readings as the text that progress carries."""
    return canonical_json(list(readings)).decode()


def decode_readings(text: str) -> tuple[GpuReading, ...]:
    """Readings from the text that progress carries; none if it is of another version.

    The strip is shown or not; a terminal never ends over it.
    """
    try:
        plain: Any = parse_json(text.encode())
        return tuple(from_plain(GpuReading, part) for part in plain)
    except (RecordError, TypeError):
        return ()
