"""The tuning screen under keys: what is shown, found, zoomed and kept."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from fake_engine import Paper
from fakes import Desk, drive, has, select, shown, tuning, until
from tui_session import START, Session

from kerneltui.model.command import (
    Progress,
    Rebench,
    Reject,
    SetPaused,
    SetRule,
)
from kerneltui.model.event import AcceptRule
from kerneltui.model.record import to_plain
from kerneltui.tui.screens.dialogs import HelpDialog


def text_of_only_file(folder: Path) -> str:
    (file,) = folder.iterdir()
    return file.read_text(encoding="utf-8")


@drive()
async def test_first_screen_shows_the_session(desk: Desk, pilot: Any) -> None:
    assert has(desk, "gemm_allgather")
    assert has(desk, "4 pending")
    assert has(desk, "c0031 PEND")
    assert has(desk, "#define SYNC world")
    assert has(desk, "UNCLEAR")
    assert has(desk, "slow * proposing c0032")
    assert has(desk, "1 steer queued")


@drive()
async def test_mode_pause_and_rebench(desk: Desk, pilot: Any) -> None:
    await pilot.press("m")
    await until(pilot, lambda: has(desk, "AUTO"))
    await pilot.press("p")
    await until(pilot, lambda: has(desk, "PAUSED"))
    await select(desk, pilot, "c0027")
    await pilot.press("b")
    await until(pilot, lambda: len(desk.decisions) == 3)
    assert desk.decisions == [SetRule(AcceptRule.AUTO), SetPaused(True), Rebench("c0027")]


@drive()
async def test_a_screenshot_is_a_file_of_its_own(desk: Desk, pilot: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in (1, 2):
            tuning(desk).save_screenshot(folder)
            file = folder / f"{tuning(desk).snapshot.state.session}-{number}.svg"
            assert "c0031" in file.read_text(encoding="utf-8")
            assert tuning(desk).notice == f"screenshot: {file}"
        tuning(desk).save_screenshot(folder / "nowhere")
        assert tuning(desk).notice == "screenshot: cannot be written (No such file or directory)"


@drive()
async def test_a_screenshot_from_the_palette_does_not_show_the_palette(
    desk: Desk, pilot: Any
) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: desk.app.screen is not tuning(desk))
        await pilot.press(*"screenshot")
        await until(pilot, lambda: has(desk, "save this screen as an SVG"))
        await pilot.press("enter")
        await until(pilot, lambda: tuning(desk).notice.startswith("screenshot: "))
        text = text_of_only_file(Path(name))
    assert "c0031" in text
    assert "SVG" not in text


@drive()
async def test_the_filter_narrows_and_esc_clears_it(desk: Desk, pilot: Any) -> None:
    await pilot.press("slash", *"fail")
    await until(pilot, lambda: has(desk, "4 of 31  /fail"))
    await pilot.press("a", "backspace", "enter")
    assert desk.decisions == []
    await pilot.press("escape")
    await until(pilot, lambda: has(desk, "of 31  sort:pending"))


@drive()
async def test_next_pending_and_sort(desk: Desk, pilot: Any) -> None:
    first = tuning(desk).candidates.selected
    seen = [first]
    for _ in range(4):
        await pilot.press("n")
        await until(pilot, lambda: tuning(desk).candidates.selected != seen[-1])
        seen.append(tuning(desk).candidates.selected)
    assert sorted(set(seen)) == ["c0026", "c0027", "c0028", "c0031"]
    assert seen[-1] == first
    await pilot.press("o")
    await until(pilot, lambda: has(desk, "sort:ratio"))


@drive()
async def test_zoom_and_back(desk: Desk, pilot: Any) -> None:
    await pilot.press("0", "f")
    await until(pilot, lambda: not has(desk, "1 Candidates"))
    await pilot.press("escape")
    await until(pilot, lambda: has(desk, "1 Candidates"))


@drive()
async def test_zooming_the_chart_shows_every_shape(desk: Desk, pilot: Any) -> None:
    await pilot.press("3", "f")
    await until(pilot, lambda: has(desk, "512x512x512"))


@drive()
async def test_tabs(desk: Desk, pilot: Any) -> None:
    for tab, text in (
        ("Code", "kerneltui: evolve begin"),
        ("Log", "compile  ok"),
        ("Jobs", "verify 12 shapes"),
        ("Bench", "UNCLEAR"),
        ("Directive", "split_put_wait"),
    ):
        await pilot.press("right_square_bracket")
        await until(pilot, lambda tab=tab: has(desk, f"[{tab}]"))
        await pilot.press(*["J"] * 8) if tab == "Code" else None
        await until(pilot, lambda text=text: has(desk, text), f"{text} in {tab}")


@drive()
async def test_the_log_of_a_failure_is_fetched(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0007")
    await pilot.press("right_square_bracket", "right_square_bracket", "0", "f")
    await until(pilot, lambda: has(desk, "In function 'void publish"))


@drive()
async def test_help_and_palette(desk: Desk, pilot: Any) -> None:
    await pilot.press("question_mark")
    await until(pilot, lambda: isinstance(desk.app.screen, HelpDialog))
    assert has(desk, "accept the displayed candidate")
    await pilot.press("escape")
    await select(desk, pilot, "c0006")
    await pilot.press("ctrl+p", *"accept")
    await until(pilot, lambda: has(desk, "not now: c0006 failed in verify"))


@drive()
async def test_the_selection_survives_a_new_order(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    before = tuning(desk).candidates.selected
    desk.paper.take(0, Reject("c0031", desk.paper.session.shas["c0031"]))
    state = desk.paper.state
    desk.link.push(
        {
            "frame": "welcome",
            "protocol": 1,
            "writer": True,
            "replay": False,
            "position": state.position,
            "state": to_plain(state),
        }
    )
    await until(pilot, lambda: has(desk, "3 pending"))
    assert tuning(desk).candidates.selected == before


@drive(size=(120, 40))
async def test_resizing_keeps_what_is_selected(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.resize_terminal(60, 16)
    await until(pilot, lambda: has(desk, "c0028 PEND"))
    await pilot.resize_terminal(50, 10)
    await until(pilot, lambda: has(desk, "too small"))
    await pilot.resize_terminal(80, 24)
    await until(pilot, lambda: has(desk, "c0028 PEND"))
    assert len(shown(desk)) == 24


def test_a_new_session_says_how_far_the_calibration_is() -> None:
    session = Session(at=START)
    session.open()
    del session.events[1:]
    progress = Progress("calibration", "", "noise on 512x512x512", at=START)

    async def play() -> None:
        desk = Desk(paper=Paper(session, writer=True))
        async with desk.app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: has(desk, "c0001 BASE"))
            assert has(desk, "calibrating: about to begin")
            desk.link.push({"frame": "progress", "progress": to_plain(progress)})
            await until(pilot, lambda: has(desk, "calibrating: noise on 512x512x512"))

    asyncio.run(play())
