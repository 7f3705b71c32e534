"""Where each panel lies: a pure function of the terminal's size and of what is zoomed.

Three width classes (narrow below 100 columns, wide from 160), two height classes (tall from 32 rows).
Works down to 60x16; below that only a notice is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["MINIMUM", "Panel", "Plan", "Rect", "Zoom", "plan_replay", "plan_tuning"]

MINIMUM = (60, 16)
NORMAL_WIDTH = 100
WIDE_WIDTH = 160
TALL_HEIGHT = 32
_LEFT = 46
_STRIP_SPARE = 3  # a lower screen needs its rows for the list and the diff
_RIGHT = 50


class Panel(StrEnum):
    """The parts of a screen; the value is the id of its widget."""

    HEADER = "header"
    GPUS = "gpus"
    CANDIDATES = "candidates"
    MAIN = "main"
    BENCH = "bench"
    AGENTS = "agents"
    STRIP = "strip"
    MACHINE = "machine"
    JOBS = "jobs"
    TIMELINE = "timeline"
    EVENTS = "events"
    STEER = "steer"
    HINTS = "hints"
    FOOTER = "footer"
    NOTICE = "small"


class Zoom(StrEnum):
    """How much of the screen the focused panel takes."""

    NORMAL = "normal"
    HALF = "half"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The panels that are on screen, and whether the candidate list is drawn as a tree."""

    panels: Mapping[Panel, Rect]
    tree: bool = False


def _too_small(width: int, height: int) -> Plan | None:
    if width >= MINIMUM[0] and height >= MINIMUM[1]:
        return None
    return Plan({Panel.NOTICE: Rect(0, 0, width, height)})


def _stack(x: int, y: int, width: int, *parts: tuple[Panel, int]) -> dict[Panel, Rect]:
    placed: dict[Panel, Rect] = {}
    for panel, height in parts:
        if height > 0:
            placed[panel] = Rect(x, y, width, height)
            y += height
    return placed


def plan_tuning(
    width: int,
    height: int,
    zoom: Zoom = Zoom.NORMAL,
    focused: Panel = Panel.CANDIDATES,
    *,
    gpus: bool = False,
    models: bool = False,
) -> Plan:
    """Returns where the panels of the tuning screen lie.

    With the strip of GPUs if there are any, and more room for agents that ask language models.
    """
    if gpus and width >= MINIMUM[0] and height > MINIMUM[1] + _STRIP_SPARE:
        below = plan_tuning(width, height - 1, zoom, focused, models=models)
        moved = {
            panel: rect if panel is Panel.HEADER else replace(rect, y=rect.y + 1)
            for panel, rect in below.panels.items()
        }
        return Plan({**moved, Panel.GPUS: Rect(0, 1, width, 1)}, below.tree)
    small = _too_small(width, height)
    if small:
        return small
    if zoom is Zoom.FULL:
        return _full(width, height, focused)
    if width < NORMAL_WIDTH:
        return _narrow(width, height, zoom, focused)
    if width >= WIDE_WIDTH and height >= TALL_HEIGHT:
        return _wide(width, height, zoom, focused)
    return _normal(width, height, zoom, focused, models=models)


def _full(width: int, height: int, focused: Panel) -> Plan:
    body = focused if focused not in (Panel.STEER, Panel.STRIP) else Panel.MAIN
    parts = [
        (Panel.HEADER, 1),
        (body, height - 4),
        (Panel.STRIP, 1),
        (Panel.STEER, 1),
        (Panel.FOOTER, 1),
    ]
    return Plan(_stack(0, 0, width, *parts), tree=width >= NORMAL_WIDTH)


def _narrow(width: int, height: int, zoom: Zoom, focused: Panel) -> Plan:
    room = height - 4
    tall = height >= TALL_HEIGHT
    bench = 6 if tall else 4 if room >= 18 else 3
    rest = room - bench
    candidates = max(4, rest * 7 // 16)
    if zoom is Zoom.HALF:
        candidates = rest - 4 if focused is Panel.CANDIDATES else 4
    return Plan(
        _stack(
            0,
            0,
            width,
            (Panel.HEADER, 1),
            (Panel.CANDIDATES, candidates),
            (Panel.MAIN, rest - candidates),
            (Panel.BENCH, bench),
            (Panel.STRIP, 1),
            (Panel.STEER, 1),
            (Panel.FOOTER, 1),
        )
    )


def _normal(width: int, height: int, zoom: Zoom, focused: Panel, *, models: bool) -> Plan:
    tall = height >= TALL_HEIGHT
    agents = (min(14, height * 3 // 10) if models else min(9, height // 5)) if tall else 1
    if tall and zoom is Zoom.HALF and focused is Panel.AGENTS:
        agents = height // 2
    bottom = 2 + tall  # steer, footer, and the steer line's hints when there is room
    body = height - 1 - agents - bottom
    bench = 7 if tall else 4
    left = (
        _LEFT if zoom is not Zoom.HALF else (width * 2 // 3 if focused is Panel.CANDIDATES else 30)
    )
    right = width - left
    panels: dict[Panel, Rect] = {Panel.HEADER: Rect(0, 0, width, 1)}
    machine = bench if tall else 0
    panels |= _stack(0, 1, left, (Panel.CANDIDATES, body - machine), (Panel.MACHINE, machine))
    panels |= _stack(left, 1, right, (Panel.MAIN, body - bench), (Panel.BENCH, bench))
    panels |= _stack(
        0,
        1 + body,
        width,
        (Panel.AGENTS if tall else Panel.STRIP, agents),
        (Panel.STEER, 1),
        (Panel.HINTS, int(tall)),
        (Panel.FOOTER, 1),
    )
    return Plan(panels, tree=True)


def _wide(width: int, height: int, zoom: Zoom, focused: Panel) -> Plan:
    jobs = 8 if height >= 44 else 0
    body = height - 1 - jobs - 3
    left, side = _LEFT, _RIGHT
    if zoom is Zoom.HALF:
        side = width // 2 if focused is Panel.AGENTS else 0
        left = width // 2 if focused is Panel.CANDIDATES else _LEFT
    center = width - left - side
    panels: dict[Panel, Rect] = {Panel.HEADER: Rect(0, 0, width, 1)}
    panels |= _stack(0, 1, left, (Panel.CANDIDATES, body))
    panels |= _stack(left, 1, center, (Panel.MAIN, body - 9), (Panel.BENCH, 9))
    if side:
        panels |= _stack(left + center, 1, side, (Panel.AGENTS, body - 9), (Panel.MACHINE, 9))
    panels |= _stack(
        0,
        1 + body,
        width,
        (Panel.JOBS, jobs),
        (Panel.STEER, 1),
        (Panel.HINTS, 1),
        (Panel.FOOTER, 1),
    )
    return Plan(panels, tree=True)


def plan_replay(
    width: int, height: int, zoom: Zoom = Zoom.NORMAL, focused: Panel = Panel.EVENTS
) -> Plan:
    """Returns where the panels of the replay screen lie."""
    small = _too_small(width, height)
    if small:
        return small
    body = height - 3
    if zoom is Zoom.FULL:
        return Plan(
            _stack(
                0, 0, width, (Panel.HEADER, 1), (focused, body), (Panel.STRIP, 1), (Panel.FOOTER, 1)
            )
        )
    timeline = 4
    panels: dict[Panel, Rect] = {Panel.HEADER: Rect(0, 0, width, 1)}
    panels |= _stack(0, 1, width, (Panel.TIMELINE, timeline))
    rest = body - timeline
    top = 1 + timeline
    bench = 7 if height >= TALL_HEIGHT else 0
    if width < NORMAL_WIDTH:
        events = max(4, rest // 3)
        panels |= _stack(
            0,
            top,
            width,
            (Panel.EVENTS, events),
            (Panel.MAIN, rest - events - bench),
            (Panel.BENCH, bench),
        )
    else:
        left = min(72, width * 9 // 20)
        panels |= _stack(0, top, left, (Panel.EVENTS, rest))
        panels |= _stack(left, top, width - left, (Panel.MAIN, rest - bench), (Panel.BENCH, bench))
    panels |= _stack(0, top + rest, width, (Panel.STRIP, 1), (Panel.FOOTER, 1))
    return Plan(panels)
