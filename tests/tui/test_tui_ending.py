"""Quitting, interrupting, other terminals, and an engine that comes and goes."""

from __future__ import annotations

import asyncio
from typing import Any

from fakes import Desk, drive, has, select, tuning, until

from kerneltui.model.command import (
    First,
    Interrupt,
    StopEngine,
    TakeOver,
)
from kerneltui.tui.ending import Quit
from kerneltui.tui.screens.dialogs import ChoiceDialog


@drive()
async def test_quit_asks_and_can_leave_the_engine(desk: Desk, pilot: Any) -> None:
    await pilot.press("q")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))
    await pilot.press("escape")
    await until(pilot, lambda: desk.app.screen is tuning(desk))
    await pilot.press("q", "l")
    await until(pilot, lambda: desk.app.return_value is not None)
    assert desk.app.return_value.stop_engine is False
    assert desk.decisions == []


@drive()
async def test_quit_can_stop_the_engine(desk: Desk, pilot: Any) -> None:
    await pilot.press("q", "s")
    await until(pilot, lambda: desk.app.return_value is not None)
    assert desk.app.return_value == Quit(stop_engine=True)
    assert desk.decisions == [StopEngine()]


@drive()
async def test_ctrl_c_interrupts_and_twice_asks_about_quitting(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", "ctrl+c")
    await until(pilot, lambda: desk.decisions == [Interrupt(First.THOUGHTS)])
    said = "interrupting the evaluation of c0032; ctrl+c again to quit"
    await until(pilot, lambda: tuning(desk).notice == said)
    await pilot.press("ctrl+c")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))


@drive()
async def test_the_second_ctrl_c_ends_the_evaluation_where_the_first_has_cut_a_thought(
    desk: Desk, pilot: Any
) -> None:
    desk.paper.goes_on = "the evaluation of c0032"
    await pilot.press("s", "ctrl+c")
    said = "interrupting what slow thinks about; ctrl+c again to end the evaluation of c0032"
    await until(pilot, lambda: tuning(desk).notice == said)
    desk.paper.goes_on = ""
    await pilot.press("ctrl+c")
    await until(
        pilot, lambda: desk.decisions == [Interrupt(First.THOUGHTS), Interrupt(First.EVALUATION)]
    )
    said = "interrupting the evaluation of c0032; ctrl+c again to quit"
    await until(pilot, lambda: tuning(desk).notice == said)
    await pilot.press("ctrl+c")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))


@drive()
async def test_a_late_second_ctrl_c_interrupts_again(desk: Desk, pilot: Any) -> None:
    await pilot.press("ctrl+c")
    desk.clock.advance(3)
    await pilot.press("ctrl+c")
    await until(pilot, lambda: desk.decisions == [Interrupt(), Interrupt()])
    assert desk.app.screen is tuning(desk)


@drive(writer=False)
async def test_the_second_terminal_is_read_only_until_it_takes_over(desk: Desk, pilot: Any) -> None:
    assert has(desk, "READ ONLY")
    assert desk.link.hello["readonly"] is True
    await select(desk, pilot, "c0028")
    await pilot.press("a")
    await until(pilot, lambda: "read only; take over" in tuning(desk).notice)
    await pilot.press("ctrl+p", *"take over")
    await until(pilot, lambda: has(desk, "make this terminal decide"))
    await pilot.press("enter")
    await until(pilot, lambda: desk.decisions == [TakeOver()])
    await until(pilot, lambda: not has(desk, "READ ONLY"))


@drive()
async def test_another_terminal_takes_over(desk: Desk, pilot: Any) -> None:
    desk.link.push({"frame": "writer", "writer": False})
    await until(pilot, lambda: has(desk, "READ ONLY"))


@drive()
async def test_the_engine_goes_and_comes_back(desk: Desk, pilot: Any) -> None:
    desk.link.break_off("the engine was stopped")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))
    assert has(desk, "the engine was stopped")
    await pilot.press("l")
    await until(pilot, lambda: has(desk, "ENGINE GONE"))
    await pilot.press("p")
    await until(pilot, lambda: "engine is gone" in tuning(desk).notice)
    await pilot.press("ctrl+p", *"reconnect")
    await until(pilot, lambda: has(desk, "connect to the engine again"))
    await pilot.press("enter")
    await until(pilot, lambda: len(desk.links) == 2)
    await until(pilot, lambda: not has(desk, "ENGINE GONE"))


@drive()
async def test_a_frame_that_cannot_be_read_is_said_and_survived(desk: Desk, pilot: Any) -> None:
    desk.link.push({"frame": "event", "position": 10_000, "event": {"event": "decided"}})
    await until(pilot, lambda: has(desk, "an event needs 'event' and 'schema'"))


def test_the_first_frame_needs_no_engine() -> None:
    async def play() -> None:
        import threading

        hold = threading.Event()

        def connect(report: Any) -> str:
            report("calibrating 3 of 5 shapes")
            hold.wait(20)
            return ""

        desk = Desk(connect=connect)
        async with desk.app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: has(desk, "calibrating 3 of 5 shapes"))
            await pilot.press("a", "p")
            await until(pilot, lambda: "not up yet" in tuning(desk).notice)
            hold.set()
            await until(pilot, lambda: has(desk, "4 pending"))

    asyncio.run(play())


def test_an_engine_that_does_not_start_is_one_line_and_an_exit_code() -> None:
    class RefusedError(Exception):
        exit_code = 3

    async def play() -> None:
        def connect(report: Any) -> str:
            raise RefusedError("workload.toml: dtype: unknown 'float31'")

        desk = Desk(connect=connect)
        async with desk.app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: desk.app.return_value is not None)
        assert desk.app.return_value == Quit(
            exit_code=3, message="workload.toml: dtype: unknown 'float31'"
        )

    asyncio.run(play())
