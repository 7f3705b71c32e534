"""The whisker chart: ratio to the reference with its interval, one row per contender.

The axis is zoomed around the best candidate and the bound; what lies outside is an arrow at the edge,
and its number is still printed. One cell is a fraction of a percent then, so an interval of one
percent can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerneltui.model.candidate import Candidate
from kerneltui.model.measurement import ShapeCalibration, ShapeMeasurement
from kerneltui.model.state import State
from kerneltui.model.statistics import Verdict, geometric_mean
from kerneltui.model.units import milliseconds
from kerneltui.tui.format import (
    difference,
    half_width,
    ratio,
    reference_ratio,
    share,
    state_style,
)
from kerneltui.tui.text import Line, clean, cut, fit, line_width, pad

__all__ = ["Bar", "Chart", "chart_lines", "chart_of", "difference_text", "shape_charts", "whisker"]

_FAR = 0.8  # what is slower than this share of the best is drawn as an arrow
_LABEL = 11  # cells: an id and its word, or the name of a baseline


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender: ratio with its interval, and what is printed on either side of the chart."""

    name: str
    word: str
    low: float
    middle: float
    high: float
    note: str
    style: str
    word_style: str = "dim"


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars over one axis; the bound and what can be reached, as ratios, when they are known."""

    title: str
    bars: tuple[Bar, ...]
    bound: float | None = None
    shorter: tuple[str, ...] = ()
    reachable: float | None = None

    def title_for(self, width: int) -> str:
        """Returns the longest title that fits, or else the shortest one."""
        titles = (self.title, *self.shorter)
        return next((title for title in titles if len(title) <= width), titles[-1])


def chart_of(state: State, candidate: Candidate | None) -> Chart:
    """Returns the chart over all shapes: the candidate, the incumbent, the baselines, the bound."""
    calibrations = [
        state.calibrations[s.name] for s in state.shapes if s.name in state.calibrations
    ]
    bars: list[Bar] = []
    shown = [candidate] if candidate else []
    incumbent = state.candidates.get(state.incumbent)
    if incumbent and (candidate is None or incumbent.id != candidate.id):
        shown.append(incumbent)
    for entry in shown:
        if entry.measurement is None:
            continue
        middle, low, high = reference_ratio(entry.measurement)
        word = "BEST" if entry.id == state.incumbent else str(state.state_of(entry.id))
        style = "whisker-best" if word == "BEST" else "whisker-candidate"
        note = share(entry.measurement.bound_share)
        word_style = "state-best" if word == "BEST" else state_style(state.state_of(entry.id))
        bars.append(Bar(entry.id, word, low, middle, high, note, style, word_style))
    bars += _baselines(calibrations)
    bound = _bound(calibrations, lambda entry: entry.bound_ns)
    reachable = _bound(calibrations, lambda entry: entry.reachable_ns)
    rounds = _rounds(candidate)
    shapes = len(state.shapes)
    over = f"geomean of {shapes} shapes" if shapes > 1 else "1 shape"
    limit = f"  ┊ bound {ratio(bound)}" if bound else ""
    reach = f"  ╎ reachable {ratio(reachable)}" if reachable else ""
    long = ", ".join(["ratio to reference", over, "95% CI", *rounds]) + reach + limit
    short = ", ".join(["ratio, " + over, "95% CI", *rounds]) + reach + limit
    bare = ", ".join(["ratio", *rounds]) + reach + limit
    shortest = ", ".join(["ratio", *rounds]) + limit
    shorter = (short, bare, shortest) if reach else (short, shortest)
    return Chart(long, tuple(bars), bound, shorter, reachable)


def _rounds(candidate: Candidate | None) -> list[str]:
    if candidate is None or candidate.measurement is None:
        return []
    counts = sorted({part.rounds for part in candidate.measurement.shapes})
    if not counts:
        return []
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
    return [f"n={span}"]


def _reference_time(calibration: ShapeCalibration) -> int | None:
    for baseline in calibration.baselines:
        if baseline.name == calibration.reference:
            return baseline.time_ns
    return None


def _bound(
    calibrations: Sequence[ShapeCalibration], time_ns: Callable[[ShapeCalibration], int]
) -> float | None:
    """The reference's time over the bound's, or over another time that the calibration knows."""
    ratios: list[float] = []
    for calibration in calibrations:
        reference = _reference_time(calibration)
        if not reference or time_ns(calibration) <= 0:
            return None
        ratios.append(reference / time_ns(calibration))
    return geometric_mean(ratios) if ratios else None


def _baselines(calibrations: Sequence[ShapeCalibration]) -> list[Bar]:
    names = dict.fromkeys(part.name for entry in calibrations for part in entry.baselines)
    bars: list[Bar] = []
    for name in names:
        ratios: list[float] = []
        spread = 0.0
        wins = 0
        for calibration in calibrations:
            reference = _reference_time(calibration)
            mine = next((part for part in calibration.baselines if part.name == name), None)
            if mine is None or not reference or mine.time_ns <= 0:
                break
            ratios.append(reference / mine.time_ns)
            spread += (mine.half_width_ns / mine.time_ns) ** 2
            wins += calibration.reference == name
        else:
            middle = geometric_mean(ratios)
            width = math.sqrt(spread) / len(ratios)
            note = "ref" if wins == len(calibrations) else f"ref {wins}/{len(calibrations)}"
            bars.append(
                Bar(
                    clean(name),
                    "",
                    middle * math.exp(-width),
                    middle,
                    middle * math.exp(width),
                    note if wins else "",
                    "whisker-baseline",
                )
            )
    bars.sort(key=lambda bar: -bar.middle)
    return bars


def shape_charts(state: State, candidate: Candidate) -> Sequence[Chart]:
    """Returns a chart per shape, with times in milliseconds."""
    charts: list[Chart] = []
    if candidate.measurement is None:
        return charts
    for part in candidate.measurement.shapes:
        calibration = state.calibrations.get(part.shape)
        bound = part.reference_ns / calibration.bound_ns if calibration else None
        reach = calibration.reachable_ns if calibration else 0
        against = candidate.measurement.against
        word = str(state.state_of(candidate.id))
        bars = (
            _shape_bar(candidate.id, word, part, "whisker-candidate"),
            Bar(
                against,
                "BEST" if against == state.incumbent else "OK",
                part.reference_ns / part.incumbent_ns,
                part.reference_ns / part.incumbent_ns,
                part.reference_ns / part.incumbent_ns,
                f"{milliseconds(part.incumbent_ns)} ms",
                "whisker-best",
                "state-best" if against == state.incumbent else "state-ok",
            ),
        )
        title = f"{part.shape}   {difference(part.interval, part.verdict)}"
        reachable = part.reference_ns / reach if reach else None
        charts.append(Chart(title, bars, bound, reachable=reachable))
    return charts


def _shape_bar(name: str, word: str, part: ShapeMeasurement, style: str) -> Bar:
    half = (part.reference_interval.high - part.reference_interval.low) / 2
    return Bar(
        name,
        word,
        part.ratio * math.exp(-half),
        part.ratio,
        part.ratio * math.exp(half),
        f"{milliseconds(part.candidate_ns)} ms",
        style,
        f"state-{word.lower()}",
    )


def difference_text(state: State, candidate: Candidate | None, width: int) -> Line:
    """Returns the difference line: percent, interval and the word, against whom it was measured."""
    measurement = candidate.measurement if candidate else None
    if candidate is None or measurement is None:
        return ()
    if measurement.against == state.incumbent:
        against = "BEST"
    else:
        against = (
            f"{measurement.against} ({'then' if candidate.id == state.incumbent else 'older'} BEST)"
        )
    text = difference(measurement.geomean, measurement.verdict)
    numbers, _, word = text.rpartition(" ")
    spans: list[tuple[str, str]] = [
        (f"vs {against} ", "dim"),
        (numbers + " ", "ink"),
        (word, f"verdict-{word.lower()}"),
    ]
    slower = len(measurement.slower_shapes)
    if slower and measurement.verdict is not Verdict.SLOWER:
        spans.append((f", SLOWER on {slower} of {len(measurement.shapes)}", "verdict-slower"))
    if measurement.quarantine:
        spans.append((", quarantined", "state-quar"))
        reason: Line = ((f": {clean(measurement.quarantine)}", "state-quar"),)
        if line_width((*spans, *reason)) <= width:
            spans += reason
    return tuple(spans)


def _window(chart: Chart) -> tuple[float, float]:
    best = max((bar.middle for bar in chart.bars), default=1.0)
    inside = [bar for bar in chart.bars if bar.middle >= best * _FAR] or list(chart.bars)
    edges = [edge for bar in inside for edge in (bar.low, bar.high)]
    if chart.bound is not None and chart.bound <= best / _FAR / _FAR:
        edges.append(chart.bound)
    if not edges:
        return 0.9, 1.1
    low, high = min(edges), max(edges)
    margin = max((high - low) * 0.08, high * 0.005)
    return low - margin, high + margin


def whisker(
    bar: Bar,
    window: tuple[float, float],
    bound: float | None,
    width: int,
    reachable: float | None = None,
) -> Line:
    """Returns the plotting area of one bar: dot, whiskers, limits, or an arrow when out of view."""
    cells: list[tuple[str, str]] = [(" ", "")] * width
    low, high = window

    def column(value: float) -> int:
        return math.floor((value - low) / (high - low) * width)

    if reachable is not None and 0 <= column(reachable) < width:
        cells[column(reachable)] = ("╎", "dim")
    if bound is not None and 0 <= column(bound) < width:
        cells[column(bound)] = ("┊", "bound")
    middle = column(bar.middle)
    if middle < 0:
        cells[0] = ("◂", bar.style)
    elif middle >= width:
        cells[-1] = ("▸", bar.style)
    else:
        start, end = max(column(bar.low), 0), min(column(bar.high), width - 1)
        for index in range(start, end + 1):
            cells[index] = ("─", bar.style)
        if start < middle:
            cells[start] = ("├", bar.style)
        if end > middle:
            cells[end] = ("┤", bar.style)
        cells[middle] = ("●", bar.style)
    return tuple(cells)


def _axis(window: tuple[float, float], width: int) -> Line:
    low, high = window
    step = 10 ** math.floor(math.log10((high - low) / 2))
    while (high - low) / step > max(3, width // 14):
        step *= 2 if str(step)[0] != "2" else 2.5
    text = [" "] * width
    digits = max(0, -math.floor(math.log10(step)))
    tick = math.ceil(low / step) * step
    while tick < high:
        label = f"{tick:.{digits}f}"
        start = math.floor((tick - low) / (high - low) * width) - len(label) // 2
        free = text[max(start - 1, 0) : start + len(label) + 1]
        if start >= 0 and start + len(label) <= width and not "".join(free).strip():
            text[start : start + len(label)] = label
        tick += step
    return (("".join(text), "axis"),)


def chart_lines(chart: Chart, width: int, height: int) -> Sequence[Line]:
    """Returns the chart in at most `height` lines: candidate, incumbent, baselines, then the axis."""
    if not chart.bars:
        return [((" nothing measured yet", "dim"),)][:height]
    bars = _fitting(chart.bars, height)
    notes = max((len(bar.note) for bar in bars), default=0)
    narrow = width < 70
    numbers = 8 if narrow else 15
    area = max(width - 1 - _LABEL - numbers - notes - 3, 8)
    window = _window(chart)
    lines: list[Line] = []
    for bar in bars:
        value = f"{ratio(bar.middle):>7} "
        if not narrow:
            known = bar.high > bar.low
            value += f"{half_width((bar.high - bar.low) / 2) if known else '':<7}"
        name = fit(bar.name, 6 if bar.word else _LABEL)
        word = fit(bar.word, _LABEL - 6) if bar.word else ""
        head: Line = ((f" {name}", "ink"), (word, bar.word_style), (value, "ink"))
        lines.append(
            pad(
                (*head, *whisker(bar, window, chart.bound, area, chart.reachable)),
                width - 1,
                ((bar.note, "dim"),) if bar.note else (),
            )
        )
    if height > len(bars):
        lines.append(((" " * (1 + _LABEL + numbers), ""), *_axis(window, area)))
    return [cut(line, width) for line in lines]


def _fitting(bars: Sequence[Bar], height: int) -> Sequence[Bar]:
    """Keeps contenders first; with two rows: the candidate and the best baseline."""
    if len(bars) <= height:
        return bars
    baselines = [bar for bar in bars if not bar.word]
    contenders = [bar for bar in bars if bar.word]
    if height == 1:
        return bars[:1]
    return [*contenders, *baselines][:height] if height > 2 else [*contenders[:1], *baselines[:1]]
