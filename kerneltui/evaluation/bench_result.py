"""What a side-by-side run found: times of every lane on a shape, by mode, and ratios to the best baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from kerneltui.model.statistics import Interval, Verdict, judge_interval, median_interval

__all__ = ["LaneResult", "Mode", "ModeTimes", "ShapeResult", "percentile", "ratios"]


LEAST_SAMPLES = 3
"""For an interval."""

HOST_BOUND = 0.9
"""Share of the time of calls without a pause."""

UNHELD = 0.5
"""Share of the parts of calls after pauses, whose median is the time."""


class Mode(StrEnum):
    """How calls follow each other."""

    OFFLINE = "offline"
    """Back to back over buffer sets in rotation, the cache of a GPU emptied before; short ones as a graph."""
    EAGER = "eager"
    """The same for short calls, enqueued one by one."""
    WARM = "warm"
    """Back to back on one buffer set."""
    SERVER = "server"
    """Single calls after pauses, the cache of a GPU emptied before each."""
    SUSTAINED = "sustained"
    """Back to back for seconds."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class ModeTimes:
    """A lane on a shape in one mode, in nanoseconds per call.

    Attributes:
        rounds: What was kept, round by round; the same places of two lanes were neighbours in time.
        more: Beside them: launch and latency of the server mode, clocks, power, and in which share of the
            parts of the server mode calls could not be held back (`unheld`).
    """

    rounds: tuple[tuple[float, ...], ...]
    more: Mapping[str, Any] = field(default_factory=_nothing)

    @property
    def host_bound(self) -> bool:
        """Whether the device had to wait for the host, so that the times say something of the launch.

        Without a pause: the host enqueued calls all the time. After pauses: calls wait for the device
        themselves, so nothing could hold them back until they were enqueued.
        """
        enqueueing = float(self.more.get("enqueueing", 0.0))
        return enqueueing > HOST_BOUND or float(self.more.get("unheld", 0.0)) >= UNHELD

    @property
    def time_ns(self) -> float:
        """Median over rounds of the median in each."""
        return median(median(row) for row in self.rounds)

    @classmethod
    def from_record(cls, row: Mapping[str, Any]) -> ModeTimes:
        """Reads what `to_record` gave."""
        more = {name: part for name, part in row.items() if name not in ("time_ns", "rounds_ns")}
        return cls(tuple(tuple(float(v) for v in part) for part in row["rounds_ns"]), more)

    def to_record(self) -> dict[str, Any]:
        """With all samples, in whole nanoseconds."""
        rows = [[round(value) for value in row] for row in self.rounds]
        return {"time_ns": round(self.time_ns), "rounds_ns": rows, **self.more}


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A baseline or kernel on one shape.

    Attributes:
        name: Of the baseline, or file of the kernel.
        baseline: Whether it is a baseline.
        modes: What was measured.
        note: What a baseline says of itself.
        favoured: What a baseline is given that a kernel is not, if anything.
        error: Why there are no times.
    """

    name: str
    baseline: bool
    modes: Mapping[Mode, ModeTimes] = field(default_factory=dict[Mode, ModeTimes])
    note: Mapping[str, Any] = field(default_factory=_nothing)
    favoured: str = ""
    error: str = ""

    @classmethod
    def from_record(cls, row: Mapping[str, Any]) -> LaneResult:
        """Reads what `to_record` gave."""
        return cls(
            name=str(row["name"]),
            baseline=bool(row["baseline"]),
            modes={Mode(mode): ModeTimes.from_record(part) for mode, part in row["modes"].items()},
            note=dict(row["note"]),
            favoured=str(row["favoured"] or ""),
            error=str(row["error"] or ""),
        )

    def to_record(self) -> dict[str, Any]:
        """For the file."""
        return {
            "name": self.name,
            "baseline": self.baseline,
            "favoured": self.favoured or None,
            "error": self.error or None,
            "note": dict(self.note),
            "modes": {str(mode): times.to_record() for mode, times in self.modes.items()},
        }


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """All lanes on one shape.

    Attributes:
        shape: Its name.
        dimensions: Its dimensions.
        flops: Operations of a call.
        bound_ns: The least time by the measured ceilings.
        bound_kind: Which ceiling that is.
        sets: Buffer sets that calls rotate over.
        set_bytes: Bytes of each.
        cold: Whether all sets together are several times the cache, so that each call finds it cold.
        calls: Calls in a sample.
        graph: Whether calls back to back were one CUDA graph in each sample.
        lanes: The lanes.
        seconds: How long the shape took.
        least_delta: Smallest log-ratio that may count as a difference.
        spent: Where the seconds went.
        multiprocessors: SMs of all ranks' GPUs; 0 without any.
        floor_ns: Time below which no honest kernel can be.
        library_factor: Nor can one be faster than the best library by more than this, most likely.
        left_out: Why nothing was measured, if so: a later run may try again.
    """

    shape: str
    dimensions: Mapping[str, int]
    flops: float
    bound_ns: int
    bound_kind: str
    sets: int
    set_bytes: int
    cold: bool
    calls: int
    lanes: tuple[LaneResult, ...]
    seconds: float
    least_delta: float
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    multiprocessors: int = 0
    floor_ns: int = 0
    library_factor: float = 1e9
    graph: bool = False
    left_out: str = ""

    @classmethod
    def from_record(cls, row: Mapping[str, Any]) -> ShapeResult:
        """Reads what `to_record` gave.

        Raises:
            KeyError: Something is missing.
        """
        return cls(
            shape=str(row["shape"]),
            dimensions=dict(row["dimensions"]),
            flops=float(row["flops"]),
            bound_ns=int(row["bound_ns"]),
            bound_kind=str(row["bound_kind"]),
            sets=int(row["sets"]),
            set_bytes=int(row["set_bytes"]),
            cold=bool(row["cold"]),
            calls=int(row["calls"]),
            lanes=tuple(LaneResult.from_record(lane) for lane in row["lanes"]),
            seconds=float(row["seconds"]),
            least_delta=float(row["least_delta"]),
            spent=dict(row["spent"]),
            multiprocessors=int(row["multiprocessors"]),
            floor_ns=int(row["floor_ns"]),
            library_factor=float(row["library_factor"]),
            graph=bool(row.get("graph", False)),
            left_out=str(row.get("left_out") or ""),
        )

    def lane(self, name: str) -> LaneResult:
        """The lane of that name."""
        return next(lane for lane in self.lanes if lane.name == name)

    def reference(self, mode: Mode, *, plain: bool = False) -> LaneResult | None:
        """The fastest right baseline in a mode; with `plain` of those that are not favoured."""
        fit = [
            lane
            for lane in self.lanes
            if lane.baseline and mode in lane.modes and not (plain and lane.favoured)
        ]
        return min(fit, key=lambda lane: lane.modes[mode].time_ns, default=None)

    @property
    def fastest_ns(self) -> float | None:
        """The shortest sample of any baseline in any mode, per call; None where none has times."""
        modes = [times for lane in self.lanes if lane.baseline for times in lane.modes.values()]
        samples = (value for times in modes for row in times.rounds for value in row)
        return min(samples, default=None)

    def interval(self, lane: LaneResult, mode: Mode, *, plain: bool = False) -> Interval | None:
        """The log-ratio of a lane to the reference, from the rounds in which both took part.

        None where there are too few samples for an interval, as in the sustained mode.
        """
        reference = self.reference(mode, plain=plain)
        if reference is None or mode not in lane.modes:
            return None
        found = ratios(lane.modes[mode], reference.modes[mode])
        return median_interval(found) if len(found) >= LEAST_SAMPLES else None

    def ratio(self, lane: LaneResult, mode: Mode) -> float | None:
        """Time of the reference over that of a lane."""
        reference = self.reference(mode)
        if reference is None or mode not in lane.modes:
            return None
        interval = self.interval(lane, mode)
        if interval is not None:
            return interval.ratio()[0]
        return reference.modes[mode].time_ns / lane.modes[mode].time_ns

    def doubt(self, lane: LaneResult, mode: Mode) -> str:
        """Why a time is not to be believed without a look, or nothing."""
        if lane.baseline or mode not in lane.modes:
            return ""
        if lane.modes[mode].time_ns < self.floor_ns:
            return "QUAR: less time than the device needs at its peak"
        reference, ratio = self.reference(mode), self.ratio(lane, mode)
        if reference is None or reference.modes[mode].host_bound:
            return ""
        if ratio is not None and ratio > self.library_factor:
            return f"QUAR: more than {self.library_factor:g} times as fast as the best library"
        return ""

    def verdict(self, lane: LaneResult, mode: Mode) -> Verdict | None:
        """Whether a lane is faster than the reference beyond doubt; never of short calls one by one.

        What a stream adds to each of those does not change from round to round, so no interval holds it.
        """
        interval = None if mode is Mode.EAGER else self.interval(lane, mode)
        return None if interval is None else judge_interval(interval, self.least_delta)

    def to_record(self) -> dict[str, Any]:
        """For the file, and as one JSON line."""
        modes = [mode for mode in Mode if self.reference(mode) is not None]
        return {
            "shape": self.shape,
            "dimensions": dict(self.dimensions),
            "flops": self.flops,
            "bound_ns": self.bound_ns,
            "bound_kind": self.bound_kind,
            "floor_ns": self.floor_ns,
            "least_delta": self.least_delta,
            "library_factor": self.library_factor,
            "multiprocessors": self.multiprocessors,
            "sets": self.sets,
            "set_bytes": self.set_bytes,
            "cold": self.cold,
            "calls": self.calls,
            "graph": self.graph,
            "left_out": self.left_out or None,
            "seconds": round(self.seconds, 3),
            "spent": dict(self.spent),
            "references": {str(mode): self._references(mode) for mode in modes},
            "ratios": [
                self._ratio(lane, mode)
                for lane in self.lanes
                for mode in modes
                if mode in lane.modes
            ],
            "lanes": [lane.to_record() for lane in self.lanes],
        }

    def _references(self, mode: Mode) -> dict[str, str | None]:
        best, plain = self.reference(mode), self.reference(mode, plain=True)
        return {"best": best.name if best else None, "plain": plain.name if plain else None}

    def _ratio(self, lane: LaneResult, mode: Mode) -> dict[str, Any]:
        row: dict[str, Any] = {"name": lane.name, "mode": str(mode)}
        if mode is Mode.SUSTAINED:
            row["ratio"] = _short(self.ratio(lane, mode) or 0.0)
        doubt = self.doubt(lane, mode)
        if doubt:
            row["doubt"] = doubt
        if lane.modes[mode].host_bound:
            row["host_bound"] = True
        for key, plain in (("", False), ("plain_", True)):
            interval = self.interval(lane, mode, plain=plain)
            if interval is not None:
                ratio, low, high = interval.ratio()
                row |= {f"{key}ratio": _short(ratio), f"{key}ci": [_short(low), _short(high)]}
        verdict = self.verdict(lane, mode)
        row["verdict"] = None if verdict is None else str(verdict)
        time_ns = lane.modes[mode].time_ns
        row["bound_share"] = _short(self.bound_ns / time_ns)
        row["tflops"] = _short(self.flops / time_ns / 1e3)
        clock = (lane.modes[mode].more.get("gpu") or {}).get("sm_clock_mhz")
        if clock and self.multiprocessors:
            clocks = time_ns * clock / 1e3 * self.multiprocessors
            row["flop_per_clock_sm"] = _short(self.flops / clocks)
        return row


def ratios(own: ModeTimes, other: ModeTimes) -> list[float]:
    """log(own / other), sample by sample of the rounds in which both took part."""
    return [
        math.log(mine / its)
        for row, theirs in zip(own.rounds, other.rounds, strict=False)
        for mine, its in zip(row, theirs, strict=True)
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
