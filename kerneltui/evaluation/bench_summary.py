"""What a side-by-side run says of a kernel by size band: ratios to the best baseline, wins and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerneltui.evaluation.bench_result import LEAST_SAMPLES, Mode, ShapeResult, percentile, ratios
from kerneltui.model.bands import BANDS, band_of
from kerneltui.model.statistics import Interval, Verdict, combined_interval

__all__ = ["BandSummary", "summaries"]

ALL = "all"


@dataclass(frozen=True, slots=True)
class BandSummary:
    """A lane over the shapes of a band, in one mode.

    Attributes:
        band: Its name, or "all".
        name: The lane.
        mode: The mode.
        shapes: How many shapes there are in the band, failed ones too.
        failed: On how many the lane has no times.
        geomean: Mean log-ratio to the best baseline of each shape.
        plain: The same, to the best that is not favoured.
        wins: Shapes on which it is faster beyond doubt.
        losses: Slower beyond doubt.
        unclear: Neither.
        worst: The ratio that 5 % of the shapes fall below.
        weighted: Time of the best baselines over its own, all shapes together.
    """

    band: str
    name: str
    mode: Mode
    shapes: int
    failed: int
    geomean: Interval | None
    plain: Interval | None
    wins: int = 0
    losses: int = 0
    unclear: int = 0
    worst: float | None = None
    weighted: float | None = None

    def to_record(self) -> dict[str, Any]:
        """For the file."""
        return {
            "band": self.band,
            "name": self.name,
            "mode": str(self.mode),
            "shapes": self.shapes,
            "failed": self.failed,
            "geomean": _triple(self.geomean),
            "plain_geomean": _triple(self.plain),
            "wins": self.wins,
            "losses": self.losses,
            "unclear": self.unclear,
            "p5": self.worst,
            "time_weighted": self.weighted,
        }


def summaries(results: Sequence[ShapeResult], name: str, mode: Mode) -> list[BandSummary]:
    """Returns a lane's bands that have shapes, and all of them together last."""
    rows = [
        _summary(band.name, [r for r in results if band_of(r.flops) == band], name, mode)
        for band in BANDS
    ]
    return [row for row in (*rows, _summary(ALL, results, name, mode)) if row.shapes]


def _summary(band: str, results: Sequence[ShapeResult], name: str, mode: Mode) -> BandSummary:
    there = [result for result in results if any(lane.name == name for lane in result.lanes)]
    timed = [result for result in there if _has(result, name, mode)]
    failed = len(there) - len(timed)
    if not timed:
        return BandSummary(band, name, mode, len(there), failed, None, None)
    verdicts = [result.verdict(result.lane(name), mode) for result in timed]
    own = [result.lane(name).modes[mode].time_ns for result in timed]
    best = [_time(result, mode) for result in timed]
    quotients = [its / mine for mine, its in zip(own, best, strict=True)]
    return BandSummary(
        band=band,
        name=name,
        mode=mode,
        shapes=len(there),
        failed=failed,
        geomean=_geomean(timed, name, mode, plain=False),
        plain=_geomean(timed, name, mode, plain=True),
        wins=verdicts.count(Verdict.FASTER),
        losses=verdicts.count(Verdict.SLOWER),
        unclear=verdicts.count(Verdict.UNCLEAR),
        worst=round(percentile(quotients, 0.05), 4),
        weighted=round(math.fsum(best) / math.fsum(own), 4),
    )


def _has(result: ShapeResult, name: str, mode: Mode) -> bool:
    return mode in result.lane(name).modes and result.reference(mode) is not None


def _time(result: ShapeResult, mode: Mode) -> float:
    reference = result.reference(mode)
    assert reference is not None
    return reference.modes[mode].time_ns


def _geomean(
    results: Sequence[ShapeResult], name: str, mode: Mode, *, plain: bool
) -> Interval | None:
    parts: list[list[list[float]]] = []
    for result in results:
        reference = result.reference(mode, plain=plain)
        if reference is None:
            return None
        found = ratios(result.lane(name).modes[mode], reference.modes[mode])
        if len(found) < LEAST_SAMPLES:
            return None
        parts.append([found])
    return combined_interval(parts)


def _triple(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [float(f"{part:.5g}") for part in interval.ratio()]
