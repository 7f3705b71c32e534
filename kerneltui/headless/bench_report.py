"""The text of a side-by-side run: a line for each lane of a shape, then each kernel by size band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kerneltui.evaluation.bench_result import LaneResult, Mode, ModeTimes, ShapeResult
from kerneltui.evaluation.bench_summary import BandSummary, summaries
from kerneltui.headless.output import table
from kerneltui.model.statistics import Interval

__all__ = ["all_summaries", "report", "shape_table", "worst_first"]

_LAUNCH_COLUMNS = [
    (f"{part}_ns", share) for part in ("launch", "latency", "device") for share in ("p50", "p99")
]
_HEAD = ["kernel", "mode", "time us", "ratio", "95% CI", "verdict", "of bound", "launch us", ""]


def shape_table(result: ShapeResult) -> str:
    """Returns a shape's lanes, mode by mode, with its best baselines; or why it was left out."""
    if result.left_out:
        return f"{result.shape}: left out: {result.left_out}"
    lines = [_HEAD]
    for mode in Mode:
        lines += [_line(result, lane, mode) for lane in result.lanes if mode in lane.modes]
    for lane in result.lanes:
        if lane.error:
            lines.append([lane.name, "", "-", "-", "-", "FAIL", "-", "", lane.error])
    cache = "cold" if result.cold else f"{result.sets * result.set_bytes >> 20} MiB in rotation"
    calls = f"{result.calls} calls a sample{' as a graph' if result.graph else ''}"
    head = f"{result.shape}: {calls}{_shortest(result)}, {result.sets} sets, {cache}"
    return f"{head}, {result.seconds:.1f} s\n{table(lines, right=frozenset({2, 3, 4, 6, 7}))}"


def _shortest(result: ShapeResult) -> str:
    """What the shortest sample of calls back to back took."""
    rows = [lane.modes[Mode.OFFLINE].rounds for lane in result.lanes if Mode.OFFLINE in lane.modes]
    times = [value for rounds in rows for taken in rounds for value in taken]
    return f" ({result.calls * min(times) / 1e6:.2g} ms at least)" if times else ""


def _line(result: ShapeResult, lane: LaneResult, mode: Mode) -> list[str]:
    times = lane.modes[mode]
    ratio, interval = _ratio(result.interval(lane, mode))
    if mode is Mode.SUSTAINED:
        ratio = f"{result.ratio(lane, mode) or 0.0:.3f}x"
    verdict = result.verdict(lane, mode)
    launch = times.more.get("launch_ns")
    reference = result.reference(mode)
    words: list[str] = []
    if reference is lane:
        words.append("best baseline")
    if lane.favoured:
        words.append(lane.favoured)
    if times.host_bound:
        words.append("host-bound")
    words += [part for part in (_clock(times), result.doubt(lane, mode)) if part]
    return [
        lane.name,
        str(mode),
        f"{times.time_ns / 1e3:.2f}",
        ratio,
        interval,
        "-" if verdict is None or reference is lane else str(verdict),
        f"{result.bound_ns / times.time_ns:.1%}",
        f"{launch['p50'] / 1e3:.1f}" if launch else "",
        "; ".join(words),
    ]


def _clock(times: ModeTimes) -> str:
    """Clock and power where calls went on for seconds, and what held the clock down."""
    gpu = times.more.get("gpu")
    if not gpu or "readings" not in gpu:
        return ""
    held = "".join(f", {name}" for name in gpu["held"])
    power = "" if gpu["power_w"] is None else f", {gpu['power_w']:.0f} W"
    return f"{gpu['sm_clock_mhz']:.0f} MHz{power}{held}"


def report(
    results: Sequence[ShapeResult], kernels: Sequence[str], summary: Sequence[BandSummary]
) -> str:
    """Returns each kernel by size band, and its worst shapes first; baselines if there is no kernel."""
    parts: list[str] = []
    for mode in (Mode.OFFLINE, Mode.EAGER, Mode.WARM, Mode.SERVER):
        rows = [row for row in summary if row.mode is mode]
        if rows:
            best = _best_baselines(results, mode)
            parts.append(f"{mode}: ratio to the best baseline ({best})\n{_bands(rows)}")
    launches = _launches(results)
    if launches:
        parts.append(f"{Mode.SERVER}: median over the shapes, us\n{launches}")
    for name in kernels:
        lines = worst_first(results, name)
        if lines:
            parts.append(f"{name}: worst shapes first, {Mode.OFFLINE}\n" + "\n".join(lines))
    left_out = [f"  {result.shape}: {result.left_out}" for result in results if result.left_out]
    if left_out:
        parts.append("left out, in no number above:\n" + "\n".join(left_out))
    return "\n\n".join(parts)


def all_summaries(results: Sequence[ShapeResult], kernels: Sequence[str]) -> list[BandSummary]:
    """Returns the summaries of the kernels, or of the baselines if there is none, in all modes."""
    names = list(kernels) or list(dict.fromkeys(r.name for x in results for r in x.lanes))
    found: list[BandSummary] = []
    for mode in Mode:
        if any(result.reference(mode) for result in results):
            timed = [r for r in results if r.reference(mode)]
            found += [row for name in names for row in summaries(timed, name, mode)]
    return found


def worst_first(results: Sequence[ShapeResult], name: str, most: int = 12) -> list[str]:
    """Returns lines for the shapes on which a lane is furthest behind."""
    rows: list[tuple[float, str]] = []
    for result in results:
        lane = next((lane for lane in result.lanes if lane.name == name), None)
        reference = result.reference(Mode.OFFLINE)
        if lane is None or reference is None:
            continue
        if Mode.OFFLINE not in lane.modes:
            rows.append((0.0, f"  {result.shape}: no times: {lane.error}"))
            continue
        interval = result.interval(lane, Mode.OFFLINE)
        ratio, text = _ratio(interval)
        order = interval.ratio()[0] if interval else 0.0
        rows.append((order, f"  {result.shape}: {ratio} [{text}] of {reference.name}"))
    return [text for _, text in sorted(rows)[:most]]


def _best_baselines(results: Sequence[ShapeResult], mode: Mode) -> str:
    """Which baseline is the fastest on how many shapes."""
    names = [found.name for result in results if (found := result.reference(mode)) is not None]
    counts = sorted(((names.count(name), name) for name in set(names)), reverse=True)
    return ", ".join(f"{name} on {count}" for count, name in counts)


def _launches(results: Sequence[ShapeResult]) -> str:
    """What a call costs its host, and how long it takes from there until all is done."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(lane.name for result in results for lane in result.lanes):
        served = [
            lane.modes[Mode.SERVER].more
            for result in results
            for lane in result.lanes
            if lane.name == name and Mode.SERVER in lane.modes
        ]
        parts = [more for more in served if "launch_ns" in more]
        if parts:
            rows.append([name, *(_middle(parts, *column) for column in _LAUNCH_COLUMNS)])
    if not rows:
        return ""
    head = ["kernel", *(f"{part.removesuffix('_ns')} {share}" for part, share in _LAUNCH_COLUMNS)]
    return table([head, *rows], right=frozenset(range(1, 7)))


def _middle(parts: Sequence[Mapping[str, Any]], name: str, share: str) -> str:
    return f"{median(part[name][share] for part in parts) / 1e3:.1f}"


def _bands(rows: Sequence[BandSummary]) -> str:
    lines = [
        ["band", "kernel", "shapes", "geomean", "95% CI", "not favoured", "wins", "losses",
         "unclear", "p5", "by time"]
    ]  # fmt: skip
    for row in rows:
        ratio, interval = _ratio(row.geomean)
        shapes = str(row.shapes) if not row.failed else f"{row.shapes - row.failed} of {row.shapes}"
        lines.append(
            [
                row.band,
                row.name,
                shapes,
                ratio,
                interval,
                _ratio(row.plain)[0],
                str(row.wins),
                str(row.losses),
                str(row.unclear),
                "-" if row.worst is None else f"{row.worst:.3f}",
                "-" if row.weighted is None else f"{row.weighted:.3f}",
            ]
        )
    return table(lines, right=frozenset(range(2, 11)))


def _ratio(interval: Interval | None) -> tuple[str, str]:
    if interval is None:
        return "-", "-"
    ratio, low, high = interval.ratio()
    return f"{ratio:.3f}x", f"{low:.3f}-{high:.3f}"
