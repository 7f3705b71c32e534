"""What has the focus: keys that come in one burst, zooms, and terminals that shrink and grow."""

from __future__ import annotations

from typing import Any

from fakes import Desk, drive, has, until
from textual import events

from kerneltui.tui.layout import Panel
from kerneltui.tui.screens.panels import PanelScreen


def base(desk: Desk) -> PanelScreen:
    screen = desk.app.base
    assert screen is not None
    return screen


def burst(desk: Desk, keys: str) -> None:
    """Sends keys as a terminal does that is typed in fast, or pasted to: all at once."""
    for key in keys:
        name = {"/": "slash", "@": "at", " ": "space"}.get(key, key)
        desk.app.post_message(events.Key(name, key))


@drive(size=(120, 40))
async def test_a_number_and_f_in_one_burst_zoom_that_panel(desk: Desk, pilot: Any) -> None:
    for key, panel, text in (("4", Panel.AGENTS, "4 Agents"), ("3", Panel.BENCH, "3 Bench")):
        burst(desk, key + "f")
        await until(pilot, lambda text=text: has(desk, text) and not has(desk, "1 Candidates"))
        assert base(desk).focused_panel is panel
        await pilot.press("f")
        await until(pilot, lambda: has(desk, "1 Candidates"))
        assert base(desk).focused_panel is panel


@drive()
async def test_what_follows_s_in_one_burst_decides_nothing(desk: Desk, pilot: Any) -> None:
    burst(desk, "spmz")
    await until(pilot, lambda: base(desk).typing)
    await pilot.press("x")
    await until(pilot, lambda: has(desk, "x"))
    assert desk.decisions == []


@drive()
async def test_what_follows_the_slash_in_one_burst_decides_nothing(desk: Desk, pilot: Any) -> None:
    burst(desk, "/pmz")
    await until(pilot, lambda: base(desk).typing)
    await pilot.press("x")
    await until(pilot, lambda: has(desk, "x"))
    assert desk.decisions == []


@drive(size=(120, 40))
async def test_a_zoomed_panel_stays_while_a_message_is_written(desk: Desk, pilot: Any) -> None:
    await pilot.press("4", "f", "s", *"more")
    base(desk).replan()
    await until(pilot, lambda: has(desk, "@all > more") and has(desk, "4 Agents"))
    await pilot.press("escape")
    await until(pilot, lambda: base(desk).focused_panel is Panel.AGENTS)


@drive(size=(120, 40))
async def test_the_filter_brings_the_list_on_the_screen(desk: Desk, pilot: Any) -> None:
    await pilot.press("0", "f", "slash", *"fail")
    await until(pilot, lambda: has(desk, "4 of 31  /fail"))


@drive(size=(120, 40))
async def test_an_empty_filter_goes_when_the_focus_does(desk: Desk, pilot: Any) -> None:
    await pilot.press("slash")
    await until(pilot, lambda: has(desk, "filter: words of id, state, reason"))
    base(desk).focus_panel(Panel.MAIN)
    await until(pilot, lambda: not has(desk, "filter: words of id, state, reason"))


@drive(size=(120, 40))
async def test_a_terminal_that_was_too_small_gives_the_focus_back(desk: Desk, pilot: Any) -> None:
    await pilot.press("2")
    await pilot.resize_terminal(50, 10)
    await until(pilot, lambda: has(desk, "too small") and base(desk).focused is None)
    await pilot.resize_terminal(120, 40)
    await until(pilot, lambda: has(desk, "2 [Diff]"))
    assert base(desk).focused is not None
    assert base(desk).focused_panel is Panel.MAIN


@drive(size=(120, 40))
async def test_a_zoomed_panel_is_the_same_after_a_terminal_was_too_small(
    desk: Desk, pilot: Any
) -> None:
    await pilot.press("4", "f")
    await pilot.resize_terminal(50, 10)
    await until(pilot, lambda: has(desk, "too small") and base(desk).focused is None)
    await pilot.resize_terminal(120, 40)
    await until(pilot, lambda: has(desk, "4 Agents") and not has(desk, "1 Candidates"))
    assert base(desk).focused_panel is Panel.AGENTS


@drive(replay=True)
async def test_a_replay_too_gives_the_focus_back(desk: Desk, pilot: Any) -> None:
    await pilot.resize_terminal(50, 10)
    await until(pilot, lambda: has(desk, "too small") and base(desk).focused is None)
    await pilot.resize_terminal(80, 24)
    await until(pilot, lambda: has(desk, "1 Events"))
    assert base(desk).focused is not None
    assert base(desk).focused_panel is Panel.EVENTS
