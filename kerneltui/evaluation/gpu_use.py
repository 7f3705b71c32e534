"""What the GPUs did while lanes were timed: clocks, power, energy, and what held the clock down.

The GPUs are read between samples, outside of the timed window. The driver counts the time for which
power or heat held a clock down, so a moment of it inside a sample is seen by the reading after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from statistics import median
from typing import Any, Protocol

from kerneltui.model.measurement import GpuUse, Measurement, ShapeMeasurement
from kerneltui.model.reading import HEAT, POWER, GpuReading
from kerneltui.model.workload import Workload
from kerneltui.targets.sample import Sample

__all__ = ["BurstUse", "Readings", "RoundsOfUse", "Watch", "add_gpu_use", "no_readings"]

Readings = Callable[[], tuple[GpuReading, ...]]

_COUNTED_NS = 1_000_000_000
"""An energy counter is renewed every 20 to 100 ms: over a second it is right within a tenth."""

_SLOW_NS = 2_000_000  # of a reading; a sample has 2 ms of work or more
_AVERAGED_NS = 100_000_000
"""The driver tells power as an average of so long: after a shorter sample it is that of lanes before, too."""

_HELD_SHARE = 0.01  # of the time between two readings
_LEAST_ROUNDS = 3  # that are read before anything is said of them
_CHANCE = 0.01
"""Of two lanes that are held down alike: as large a difference of their rounds is no remark above it."""


def no_readings() -> tuple[GpuReading, ...]:
    """The readings of a machine without GPUs."""
    return ()


@dataclass(frozen=True, slots=True)
class BurstUse:
    """The GPUs of a lane's ranks in one burst.

    Attributes:
        sm_clock_mhz: Of the slowest GPU.
        memory_clock_mhz: Of the slowest GPU.
        power_w: Of all of them; None if the sample was too short for the driver's average to be its own.
        energy_j: Of one call, on all of them; None if neither count nor power is the lane's own.
        counted: True if the GPUs counted the energy; else it is power times time.
        held: What held a clock down, by name.
    """

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    energy_j: float | None
    counted: bool
    held: tuple[str, ...]

    @property
    def by_power(self) -> bool:
        """Whether a power limit held a clock down."""
        return not POWER.isdisjoint(self.held)

    @property
    def by_heat(self) -> bool:
        """Whether heat did."""
        return not HEAT.isdisjoint(self.held)

    def to_record(self) -> list[Any]:
        """SM clock in MHz, power in W, energy of a call in mJ, what held the clock down."""
        energy = None if self.energy_j is None else round(self.energy_j * 1e3, 3)
        return [_whole(self.sm_clock_mhz), _whole(self.power_w), energy, *self.held]


class RoundsOfUse(Protocol):
    """Rounds whose bursts know what the GPUs did."""

    @property
    def gpu_rounds(self) -> Sequence[tuple[BurstUse, BurstUse]]:
        """Candidate and incumbent, round by round."""
        ...


class Watch:
    """Reads the GPUs between the samples of a round.

    Where a reading takes long, only the first sample of each lane is looked at: they follow one another,
    so each still has a reading right before and right behind it.

    Args:
        readings: Asks the GPUs; nothing is done if there are none.
        lanes: How many lanes take part.
    """

    def __init__(self, readings: Readings, lanes: int) -> None:
        self._readings = readings
        self._slow = False
        self._last = self._read()
        self._seen: list[list[BurstUse]] = [[] for _ in range(lanes)]

    def sampled(self, lane: int, sample: Sample) -> None:
        """Takes note of a sample that has just ended."""
        if not self._last or (self._slow and self._seen[lane]):
            return
        before, self._last = self._last, self._read()
        self._seen[lane].append(_use_of(before, self._last, sample))

    def _read(self) -> tuple[GpuReading, ...]:
        begin = time.monotonic_ns()
        found = self._readings()
        self._slow = self._slow or time.monotonic_ns() - begin > _SLOW_NS
        return found

    def burst(self, lane: int) -> BurstUse | None:
        """The samples of a lane taken together; None where there are no GPUs."""
        seen = self._seen[lane]
        if not seen:
            return None
        return BurstUse(
            sm_clock_mhz=_median(use.sm_clock_mhz for use in seen),
            memory_clock_mhz=_median(use.memory_clock_mhz for use in seen),
            power_w=_median(use.power_w for use in seen),
            energy_j=_median(use.energy_j for use in seen),
            counted=all(use.counted for use in seen),
            held=tuple(dict.fromkeys(name for use in seen for name in use.held)),
        )


def _use_of(before: Sequence[GpuReading], after: Sequence[GpuReading], sample: Sample) -> BurstUse:
    ranks = len(sample.ranks)
    pairs = list(zip(before, after, strict=True))[:ranks]
    last = after[:ranks]
    own = sample.elapsed_ns >= _AVERAGED_NS
    power = _sum(reading.power_w for reading in last) if own else None
    energy, counted = None, False
    counts = [
        None if a.energy_j is None or b.energy_j is None else b.energy_j - a.energy_j
        for a, b in pairs
    ]
    if sample.elapsed_ns >= _COUNTED_NS and _sum(counts) is not None:
        # the counter ran outside of the sample, too
        share = min(1.0, sample.elapsed_ns / max(1, last[0].at_ns - pairs[0][0].at_ns))
        energy, counted = (_sum(counts) or 0.0) * share / sample.calls, True
    elif power is not None:
        energy = power * sample.duration_ns / 1e9
    held = [name for a, b in pairs for name in _held(a, b)]
    return BurstUse(
        sm_clock_mhz=_least(reading.sm_clock_mhz for reading in last),
        memory_clock_mhz=_least(reading.memory_clock_mhz for reading in last),
        power_w=power,
        energy_j=energy,
        counted=counted,
        held=tuple(dict.fromkeys(held)),
    )


def _held(before: GpuReading, after: GpuReading) -> list[str]:
    """What held a clock down between two readings: counted by the driver, or as it is now."""
    time_ns = max(1, after.at_ns - before.at_ns)
    found: list[str] = []
    counted: set[str] = set()
    for name, names, first, last in (
        ("power cap", POWER, before.power_held_ns, after.power_held_ns),
        ("heat", HEAT, before.heat_held_ns, after.heat_held_ns),
    ):
        if first is not None and last is not None:
            counted |= names
            if last - first > _HELD_SHARE * time_ns:
                found.append(name)
    return found + [name for name in after.throttle or () if name not in counted]


def add_gpu_use(
    measurement: Measurement,
    groups: Mapping[str, Sequence[RoundsOfUse]],
    workload: Workload,
    multiprocessors: int,
) -> Measurement:
    """A measurement with what the GPUs did, and remarks on lanes that were held down unequally.

    Args:
        measurement: Of the rounds.
        groups: Rounds by shape and process group.
        workload: Whose operations are counted.
        multiprocessors: SMs of one GPU.
    """
    shapes: list[ShapeMeasurement] = []
    operations = {
        shape.name: workload.limit.flops.number(shape.values) for shape in workload.shapes
    }
    for part in measurement.shapes:
        pairs = [pair for rounds in groups[part.shape] for pair in rounds.gpu_rounds]
        if not pairs:
            shapes.append(part)
            continue
        use = _summary(pairs, operations[part.shape], part.candidate_ns, multiprocessors)
        shapes.append(replace(part, gpu=use))
    remarks = _unequal([(part.shape, part.gpu) for part in shapes if part.gpu is not None])
    return replace(measurement, shapes=tuple(shapes), remarks=(*measurement.remarks, *remarks))


def _summary(
    pairs: Sequence[tuple[BurstUse, BurstUse]],
    operations: float,
    candidate_ns: float,
    multiprocessors: int,
) -> GpuUse:
    mine, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    clock = _median(use.sm_clock_mhz for use in mine)
    clocks = candidate_ns * clock / 1e3 * multiprocessors if clock else 0.0
    return GpuUse(
        sm_clock_mhz=clock,
        memory_clock_mhz=_median(use.memory_clock_mhz for use in mine),
        power_w=_rounded(_median(use.power_w for use in mine)),
        energy_j=_rounded(_median(use.energy_j for use in mine), 6),
        counted=all(use.counted for use in mine),
        flop_per_clock=_rounded(operations / clocks) if operations and clocks else None,
        rounds=len(pairs),
        power_rounds=sum(use.by_power for use in mine),
        heat_rounds=sum(use.by_heat for use in mine),
        incumbent_power_rounds=sum(use.by_power for use in other),
        incumbent_heat_rounds=sum(use.by_heat for use in other),
    )


_CAUSES: tuple[tuple[str, Callable[[GpuUse], tuple[int, int]]], ...] = (
    ("a power limit", lambda use: (use.power_rounds, use.incumbent_power_rounds)),
    ("heat", lambda use: (use.heat_rounds, use.incumbent_heat_rounds)),
)


def _unequal(parts: Sequence[tuple[str, GpuUse]]) -> list[str]:
    """Causes that held one lane down in more of the rounds than the other, on a shape or on all together."""
    found: list[str] = []
    for cause, count in _CAUSES:
        rows = [(shape, *count(use), use.rounds) for shape, use in parts]
        apart = [row for row in rows if _apart(*row[1:])]
        if not apart and len(rows) > 1:
            _, mine, other, read = zip(*rows, strict=True)
            whole = ("all shapes", sum(mine), sum(other), sum(read))
            apart = [whole] if _apart(*whole[1:]) else []
        found += [
            f"{where}: {cause} held the clock down in {mine} of {read} rounds of the candidate, "
            f"and in {other} of the incumbent"
            for where, mine, other, read in apart
        ]
    return found


def _apart(mine: int, other: int, rounds: int) -> bool:
    """Whether two numbers out of as many rounds differ by more than chance: Fisher's exact test."""
    if rounds < _LEAST_ROUNDS:
        return False
    both, more = mine + other, max(mine, other)
    ways = sum(comb(rounds, k) * comb(rounds, both - k) for k in range(more, min(both, rounds) + 1))
    return 2 * ways <= _CHANCE * comb(2 * rounds, both)


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _least(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _sum(values: Any) -> float | None:
    known = list(values)
    return None if not known or None in known else sum(known)


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
