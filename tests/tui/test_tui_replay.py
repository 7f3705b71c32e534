"""The replay screen: the same fold as live, at any step, and nothing can be changed."""

from __future__ import annotations

from typing import Any

from fakes import Desk, drive, has, until
from textual.widgets import Input

from kerneltui.model.event import Decided, Decision
from kerneltui.model.state import fold
from kerneltui.tui.ending import Quit
from kerneltui.tui.screens.dialogs import ChoiceDialog, NoteDialog
from kerneltui.tui.screens.replay import ReplayScreen


def replay(desk: Desk) -> ReplayScreen:
    screen = desk.app.base
    assert isinstance(screen, ReplayScreen)
    return screen


@drive(replay=True)
async def test_it_begins_at_the_end_and_says_that_it_is_a_replay(desk: Desk, pilot: Any) -> None:
    total = len(desk.paper.session.events)
    assert has(desk, "REPLAY (read only)")
    assert has(desk, f"step {total} of {total}")
    assert replay(desk).snapshot.state.canonical() == desk.paper.state.canonical()


@drive(replay=True, step=30)
async def test_it_begins_at_the_wanted_step(desk: Desk, pilot: Any) -> None:
    assert has(desk, "step 30 of")
    expected = fold(desk.paper.session.events[:30])
    assert replay(desk).snapshot.state.canonical() == expected.canonical()


@drive(replay=True)
async def test_stepping_and_hopping(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    total = len(screen.timeline)
    await pilot.press("comma", "comma", "full_stop")
    await until(pilot, lambda: screen.step == total - 1)
    await pilot.press("left")
    await until(pilot, lambda: isinstance(screen.timeline.events[screen.step - 1], Decided))
    before = screen.step
    await pilot.press("left")
    await until(pilot, lambda: screen.step < before)
    await pilot.press("right")
    await until(pilot, lambda: screen.step == before)
    await pilot.press("home")
    await until(pilot, lambda: screen.step == 1)
    await pilot.press("end")
    await until(pilot, lambda: screen.step == total)
    expected = fold(desk.paper.session.events)
    await until(pilot, lambda: screen.snapshot.state.canonical() == expected.canonical())


@drive(replay=True)
async def test_goto_and_mark(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    await pilot.press("g")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    await pilot.press(*"42", "enter")
    await until(pilot, lambda: screen.step == 42)
    await pilot.press("m", "home")
    await until(pilot, lambda: screen.step == 1)
    await pilot.press("m")
    await until(pilot, lambda: screen.step == 42)


@drive(replay=True)
async def test_it_plays_to_the_end_and_stops(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    total = len(screen.timeline)
    screen.go(total - 3)
    await pilot.press(*["equals_sign"] * 5)
    await pilot.press("space")
    await until(pilot, lambda: screen.step == total)
    await until(pilot, lambda: not has(desk, "playing"))


@drive(replay=True)
async def test_the_cursor_in_the_events_is_the_step(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    total = len(screen.timeline)
    await pilot.press("k", "k")
    await until(pilot, lambda: screen.step == total - 2)
    await pilot.press("j")
    await until(pilot, lambda: screen.step == total - 1)


@drive(replay=True)
async def test_filtering_events(desk: Desk, pilot: Any) -> None:
    await pilot.press("slash")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    await pilot.press(*"rejected", "enter")
    await until(pilot, lambda: has(desk, "/rejected"))
    screen = replay(desk)
    await pilot.press("k")
    await until(pilot, lambda: isinstance(screen.timeline.events[screen.step - 1], Decided))
    await pilot.press("escape")
    await until(pilot, lambda: not has(desk, "/rejected"))


@drive(replay=True)
async def test_a_filter_goes_to_what_it_finds_and_can_be_changed(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    last = [n for n, event in enumerate(screen.timeline.events, 1) if isinstance(event, Decided)]
    assert screen.step not in last
    await pilot.press("slash", *"rejected", "enter")
    await until(pilot, lambda: has(desk, "/rejected"))
    event = screen.timeline.events[screen.step - 1]
    assert isinstance(event, Decided)
    assert event.action is Decision.REJECT
    await pilot.press("slash")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    assert desk.app.screen.query_one(Input).value == "rejected"
    await pilot.press(*"accepted", "enter")
    await until(pilot, lambda: has(desk, "/accepted"))
    await pilot.press("slash", "backspace", "enter")
    await until(pilot, lambda: not has(desk, "/accepted"))


@drive(replay=True)
async def test_decision_keys_do_nothing_and_say_so(desk: Desk, pilot: Any) -> None:
    for key, text in (("a", "accept"), ("R", "reject with note"), ("s", "steer"), ("z", "undo")):
        await pilot.press(key)
        said = f"{key} {text}: this is a replay, and read only"
        await until(pilot, lambda said=said: replay(desk).notice == said)
    await pilot.press("a", "r", "z", "p", "0", "a", "r")
    assert desk.decisions == []


@drive(replay=True, size=(120, 40))
async def test_nothing_is_offered_that_a_replay_cannot_do(desk: Desk, pilot: Any) -> None:
    replay(desk).main.open_tab("Jobs")
    await until(pilot, lambda: has(desk, "a replay has no output of jobs; see Log"))
    replay(desk).main.open_tab("Notes")
    await until(pilot, lambda: has(desk, "notes.md, as they are on main"))
    assert not has(desk, "E edits them")


@drive(replay=True)
async def test_the_diff_follows_the_step(desk: Desk, pilot: Any) -> None:
    screen = replay(desk)
    step = next(
        number
        for number, event in enumerate(screen.timeline.events, 1)
        if getattr(event, "id", "") == "c0008"
    )
    screen.go(step)
    await until(pilot, lambda: has(desk, "c0008 <- c0005"))


@drive(replay=True)
async def test_copy_and_quit(desk: Desk, pilot: Any) -> None:
    await pilot.press("y")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))
    await pilot.press("s")
    await until(pilot, lambda: "OSC 52" in replay(desk).notice)
    await pilot.press("q")
    await until(pilot, lambda: desk.app.return_value == Quit())


@drive(replay=True)
async def test_the_engine_going_away_keeps_the_replay(desk: Desk, pilot: Any) -> None:
    desk.link.break_off()
    await until(pilot, lambda: "engine is gone" in replay(desk).notice)
    await pilot.press("home")
    await until(pilot, lambda: replay(desk).step == 1)
