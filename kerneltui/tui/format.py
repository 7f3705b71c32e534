"""How numbers and states are written on the screen: pure functions, one form for each quantity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerneltui.model.candidate import CandidateState
from kerneltui.model.directive import Directive
from kerneltui.model.event import AcceptRule
from kerneltui.model.measurement import Measurement
from kerneltui.model.statistics import Interval, Verdict

__all__ = [
    "count",
    "counted",
    "difference",
    "elapsed",
    "half_width",
    "mode_word",
    "percent_change",
    "ratio",
    "reference_ratio",
    "share",
    "short_directive",
    "sparkline",
    "state_style",
    "verdict_style",
]

_SECOND = 1_000_000_000
_BLOCKS = "▁▂▃▄▅▆▇█"


def count(number: int) -> str:
    """Returns a number in a few characters: `980`, `11.2k`, `1.34M`."""
    if number < 1000:
        return str(number)
    if number < 1_000_000:
        return f"{number / 1e3:.1f}k"
    return f"{number / 1e6:.2f}M"


def ratio(value: float) -> str:
    """Returns reference ÷ candidate: `1.389x`, above 1 is faster than the reference."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.3f}x" if value < 100 else f"{value:.0f}x"


def half_width(value: float) -> str:
    """Returns the half-width of a ratio's interval: `±0.012`."""
    return f"±{value:.3f}" if value < 10 else f"±{value:.0f}"


def share(value: float) -> str:
    """Returns a share of the bound: `94.7%`."""
    return f"{value * 100:.1f}%"


def reference_ratio(measurement: Measurement) -> tuple[float, float, float]:
    """Returns the geomean ratio to the reference with its interval: estimate, low, high.

    The shapes are timed independently, so half-widths of their log-ratios add in quadrature.
    """
    count = len(measurement.shapes)
    if not count:
        return measurement.ratio, measurement.ratio, measurement.ratio
    spread = math.sqrt(
        sum(
            ((part.reference_interval.high - part.reference_interval.low) / 2) ** 2
            for part in measurement.shapes
        )
    )
    width = spread / count
    return (
        measurement.ratio,
        measurement.ratio * math.exp(-width),
        measurement.ratio * math.exp(width),
    )


def percent_change(interval: Interval) -> tuple[float, float, float]:
    """Returns an interval of log-ratios as percent faster: estimate, low, high."""
    estimate, low, high = interval.ratio()
    return (estimate - 1) * 100, (low - 1) * 100, (high - 1) * 100


def difference(interval: Interval, verdict: Verdict) -> str:
    """Returns the difference line: `+0.4% [-0.1, +0.9] UNCLEAR`."""
    estimate, low, high = percent_change(interval)
    return f"{estimate:+.1f}% [{low:+.1f}, {high:+.1f}] {verdict}"


def counted(number: int, thing: str) -> str:
    """Returns a number of things: `1 candidate`, `2 candidates`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def elapsed(time_ns: int) -> str:
    """Returns a duration: `00:14`, `14m 20s`, `2h 05m`, `3d 04h`."""
    seconds = max(0, time_ns) // _SECOND
    if seconds < 60:
        return f"00:{seconds:02d}"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}h"


def mode_word(rule: AcceptRule) -> str:
    """Returns who accepts: `MANUAL` or `AUTO`."""
    return "AUTO" if rule is AcceptRule.AUTO else "MANUAL"


def state_style(state: CandidateState) -> str:
    """Returns the style name of a state; colour only repeats the word."""
    return f"state-{state.lower()}"


def verdict_style(verdict: Verdict) -> str:
    """Returns the style name of a verdict."""
    return f"verdict-{verdict.lower()}"


def short_directive(directive: Directive | None) -> str:
    """Returns the one-line form of a directive, or a word when there is none."""
    return directive.summary() if directive else "none stated"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Returns a line of blocks, one a column; a column shows the last value that falls into it."""
    known = [value for value in values if value is not None]
    if not known or width <= 0:
        return " " * max(width, 0)
    low, high = min(known), max(known)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    blocks: list[str] = []
    for column in range(width):
        index = min(len(values) - 1, (column + 1) * len(values) // width - 1)
        value = values[max(index, 0)]
        blocks.append(" " if value is None else _BLOCKS[round((value - low) * scale)])
    return "".join(blocks)
