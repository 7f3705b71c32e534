"""The GPU strip: one line with what each GPU does now."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.model.reading import HEAT, POWER, GpuReading, rate
from kerneltui.model.state import State
from kerneltui.tui.text import Line, Span, clean, cut, join, line_width, pad
from kerneltui.tui.view import Live

__all__ = ["gpu_line", "last_flop_per_clock"]

_GIB = 1 << 30
_RANKS = range(5, -1, -1)


def last_flop_per_clock(state: State) -> tuple[str, float] | None:
    """The newest candidate that was measured on a GPU, and its operations per clock and SM.

    Of its shapes the one with most counts: small ones do not fill a GPU, whatever their kernel does.
    """
    for candidate in reversed(state.candidates.values()):
        if candidate.measurement is None:
            continue
        found = [
            part.gpu.flop_per_clock
            for part in candidate.measurement.shapes
            if part.gpu is not None and part.gpu.flop_per_clock is not None
        ]
        if found:
            return candidate.id, max(found)
    return None


def gpu_line(state: State, live: Live, width: int) -> Line:
    """Returns the strip of the GPUs that have a rank; what says least about speed goes first."""
    readings = live.readings[: max(1, state.ranks)]
    last = last_flop_per_clock(state)
    right: Line = ()
    if last is not None:
        right = ((f"{last[1]:.0f}", "ink"), (f" FLOP/clk/SM {last[0]} ", "dim"))
    earlier = {reading.index: reading for reading in live.earlier_readings}
    for end in (right, ()):
        for rank in _RANKS:
            parts = [_gpu(reading, earlier.get(reading.index), rank) for reading in readings]
            line: Line = ((" ", ""), *join(parts, (" │ ", "faint")))
            if line_width(line) + line_width(end) < width:
                return pad(line, width, end)
    return pad(cut(_together(readings), width), width)


def _gpu(reading: GpuReading, before: GpuReading | None, rank: int) -> Line:
    """One GPU with everything that is dropped at `rank` or later; 0 is never dropped."""
    parts: list[tuple[Line, int]] = [
        (((f"GPU {reading.index}" if rank >= 1 else str(reading.index), "title"),), 0),
        (_number(reading.sm_clock_mhz, "MHz"), 0),
        (_number(reading.power_w, "W"), 0),
        (_memory(reading, rank), 2),
        (_link(before, reading), 3),
        (_number(reading.temperature_c, "°C"), 4),
        (_share(reading.utilisation), 5),
        (_held(reading), 0),
    ]
    return join([part for part, drop in parts if drop <= rank], (" ", ""))


def _number(value: float | None, unit: str) -> Line:
    if value is None:
        return ()
    return ((f"{value:.0f}", "ink"), (f" {unit}", "dim"))


def _share(value: float | None) -> Line:
    return () if value is None else ((f"{value * 100:.0f}%", "ink"), (" busy", "dim"))


def _memory(reading: GpuReading, rank: int) -> Line:
    if reading.memory_used_bytes is None:
        return ()
    used = f"{reading.memory_used_bytes / _GIB:.1f}"
    if reading.memory_total_bytes is not None and rank >= 4:
        used += f"/{reading.memory_total_bytes / _GIB:.0f}"
    return ((used, "ink"), (" GiB", "dim"))


def _link(before: GpuReading | None, reading: GpuReading) -> Line:
    found = None if before is None else rate(before, reading, "link_bytes")
    return (
        () if found is None else (("link ", "dim"), (f"{found / 1e9:.0f}", "ink"), (" GB/s", "dim"))
    )


def _held(reading: GpuReading) -> Line:
    """What holds the clock down; nothing if nothing does, a word if nobody knows."""
    if reading.throttle is None:
        return ()
    spans: list[Span] = []
    for name in reading.throttle:
        hot = name in POWER or name in HEAT
        spans.append((f"{', ' if spans else ''}{clean(name)}", "warn" if hot else "dim"))
    return tuple(spans)


def _together(readings: Sequence[GpuReading]) -> Line:
    """Many GPUs in a few words."""
    clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz is not None]
    powers = [r.power_w for r in readings if r.power_w is not None]
    held = sum(bool(r.throttle) for r in readings)
    parts: list[Line] = [((f" {len(readings)} GPUs", "title"),)]
    if clocks:
        span = f"{min(clocks)}" if min(clocks) == max(clocks) else f"{min(clocks)}-{max(clocks)}"
        parts.append(((span, "ink"), (" MHz", "dim")))
    if powers:
        parts.append(((f"{sum(powers):.0f}", "ink"), (" W", "dim")))
    if held:
        parts.append(((f"{held} held down", "warn"),))
    return join(parts, ("  ", ""))
