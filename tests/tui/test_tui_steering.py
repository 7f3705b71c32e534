"""The steer line: messages, commands, refusals, drafts."""

from __future__ import annotations

from typing import Any

from fakes import Desk, drive, has, tuning, until
from textual import events

from kerneltui.model.command import (
    Constrain,
    SetBudget,
    SetPaused,
    Steer,
)
from kerneltui.model.event import ConstraintKind


@drive()
async def test_steering_goes_queued_and_keeps_its_address(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"@slow keep 48 rows", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [Steer("slow", "keep 48 rows")]
    assert tuning(desk).steer.to == "slow"
    await until(pilot, lambda: has(desk, "2 steer queued"))
    await pilot.press("s", "up")
    await until(pilot, lambda: tuning(desk).steer.input.value == "keep 48 rows")


@drive()
async def test_after_a_message_single_keys_work_again(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"fewer flags", "enter")
    await until(pilot, lambda: desk.decisions and not tuning(desk).typing)
    await pilot.press("p")
    await until(pilot, lambda: len(desk.decisions) == 2)
    await pilot.press("s", *"and p", "enter")
    await until(pilot, lambda: len(desk.decisions) == 3)
    assert desk.decisions == [
        Steer("all", "fewer flags"),
        SetPaused(True),
        Steer("all", "and p"),
    ]


@drive()
async def test_steer_commands(desk: Desk, pilot: Any) -> None:
    for line in ("/pin c0028", "/ban SYNC=world", "/budget 60 20m", "/pause"):
        await pilot.press("s")
        await until(pilot, lambda: tuning(desk).typing)
        tuning(desk).steer.input.value = line
        await pilot.press("enter")
    await until(pilot, lambda: len(desk.decisions) == 4)
    assert desk.decisions == [
        Constrain(ConstraintKind.PIN, "", "c0028"),
        Constrain(ConstraintKind.BAN, "SYNC", "world"),
        SetBudget(60, 1_200_000_000_000),
        SetPaused(True),
    ]
    await until(pilot, lambda: "/pause: done" in tuning(desk).notice)


@drive()
async def test_an_unknown_command_keeps_the_text(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"/frobnicate", "enter")
    await until(pilot, lambda: "unknown command '/frobnicate'" in tuning(desk).notice)
    assert tuning(desk).steer.input.value == "/frobnicate"
    assert desk.decisions == []


@drive()
async def test_a_refusal_of_the_engine_is_shown(desk: Desk, pilot: Any) -> None:
    desk.paper.refuse = "the journal is full"
    await pilot.press("p")
    await until(pilot, lambda: "the journal is full" in tuning(desk).notice)


@drive()
async def test_a_line_that_the_engine_refuses_comes_back(desk: Desk, pilot: Any) -> None:
    desk.paper.refuse = "MR has no value '77'"
    await pilot.press("s", *"/ban MR=77", "enter")
    await until(pilot, lambda: "/ban MR=77: MR has no value '77'" in tuning(desk).notice)
    assert tuning(desk).steer.input.value == "/ban MR=77"
    assert not tuning(desk).typing
    desk.paper.refuse = ""
    await pilot.press("s", "backspace", "enter")
    await until(pilot, lambda: "/ban MR=7: done" in tuning(desk).notice)
    assert tuning(desk).steer.input.value == ""


@drive()
async def test_a_refused_line_does_not_overwrite_a_new_one(desk: Desk, pilot: Any) -> None:
    steer = tuning(desk).steer
    steer.input.value = "begun meanwhile"
    steer.give_back("/ban MR=77")
    assert steer.input.value == "begun meanwhile"


@drive()
async def test_a_draft_is_gone_on_with(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"fewer", "escape", "j", "s", *" flags", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [Steer("all", "fewer flags")]


@drive()
async def test_a_message_is_queued_and_an_undo_names_the_decision(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"fewer flags", "enter")
    await until(
        pilot, lambda: "message to all: queued for the next proposal" in tuning(desk).notice
    )
    last = tuning(desk).snapshot.state.decisions[-1]
    await pilot.press("z")
    await until(
        pilot, lambda: f"undo {last.action} of {last.candidate}: done" in tuning(desk).notice
    )
    await pilot.press("Z")
    await until(
        pilot, lambda: f"redo {last.action} of {last.candidate}: done" in tuning(desk).notice
    )


@drive()
async def test_what_is_typed_in_one_burst_is_a_message_and_no_decisions(
    desk: Desk, pilot: Any
) -> None:
    """Also the paste, the key that sends, and those behind it mean what they would one by one."""
    typed: list[events.Event] = [*keys("s", *"@slow fewer barriers"), events.Paste(", please")]
    typed += keys(*"!?", "backspace", "enter", "p", "s", *"again p", "enter")
    for event in typed:
        desk.app.post_message(event)
    await until(pilot, lambda: len(desk.decisions) == 3)
    await pilot.pause()
    assert desk.decisions == [
        Steer("slow", "fewer barriers, please!"),
        SetPaused(True),
        Steer("slow", "again p"),
    ]


def keys(*names: str) -> list[events.Key]:
    return [events.Key(name, name if len(name) == 1 else None) for name in names]
