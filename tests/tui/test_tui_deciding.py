"""Decisions bind to what is displayed, and are dead while one types."""

from __future__ import annotations

from typing import Any

from fakes import Desk, drive, has, select, tuning, until
from textual import events
from textual.widgets import Input

from kerneltui.model.command import (
    Accept,
    Edit,
    Redo,
    Reject,
    SetRule,
    Undo,
)
from kerneltui.model.event import AcceptRule
from kerneltui.tui.screens.dialogs import ChoiceDialog, NoteDialog


@drive()
async def test_accept_binds_to_id_and_sha(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("a")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [Accept("c0028", desk.paper.session.shas["c0028"], None)]
    await until(pilot, lambda: tuning(desk).snapshot.state.incumbent == "c0028")
    assert has(desk, "c0028 BEST")


@drive()
async def test_a_key_within_the_grace_is_refused(desk: Desk, pilot: Any) -> None:
    screen = tuning(desk)
    screen.candidates.select("c0028")
    await until(pilot, lambda: screen.loaded is not None and screen.loaded.candidate == "c0028")
    await pilot.press("a")
    await until(pilot, lambda: "came on screen just now" in screen.notice)
    assert desk.decisions == []
    desk.clock.advance(0.31)
    await pilot.press("a")
    await until(pilot, lambda: desk.decisions)


@drive()
async def test_nothing_is_accepted_before_its_diff_is_there(desk: Desk, pilot: Any) -> None:
    screen = tuning(desk)
    desk.link.holding = True
    screen.candidates.select("c0028")
    await until(pilot, lambda: any("c0028" in str(c) for c in desk.paper.commands))
    desk.clock.advance(1)
    await pilot.press("a")
    await until(pilot, lambda: "not on screen yet" in screen.notice)
    assert desk.decisions == []
    desk.link.release()
    await until(pilot, lambda: screen.loaded is not None)


@drive()
async def test_a_stale_sha_is_refused(desk: Desk, pilot: Any) -> None:
    desk.paper.session.shas["c0028"] = "0" * 40
    await select(desk, pilot, "c0028")
    await pilot.press("a")
    await until(pilot, lambda: "has changed since it was displayed" in tuning(desk).notice)
    assert desk.decisions == []


@drive()
async def test_typing_in_the_steer_line_decides_nothing(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("s", *"arzpq", "space", "b")
    await until(pilot, lambda: tuning(desk).steer.input.value == "arzpq b")
    assert desk.decisions == []
    await pilot.press("escape")
    await until(pilot, lambda: not isinstance(tuning(desk).focused, Input))
    assert tuning(desk).steer.input.value == "arzpq b", "the draft stays"


@drive()
async def test_other_screen_keys_are_dead_in_the_steer_line(desk: Desk, pilot: Any) -> None:
    await pilot.press("s")
    await until(pilot, lambda: tuning(desk).typing)
    await pilot.press("f1", "ctrl+p", "ctrl+r", "pagedown")
    assert desk.app.screen is tuning(desk)


@drive()
async def test_decision_keys_are_bound_on_list_and_diff_only(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("3", "a", "r")
    assert desk.decisions == []
    await pilot.press("0", "a")
    await until(pilot, lambda: desk.decisions)
    assert [type(command) for command in desk.decisions] == [Accept]


@drive()
async def test_part_of_the_hunks_is_a_new_candidate(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0008")
    hunks = len(tuning(desk).main.diff.diff.hunks)
    assert hunks > 1
    await pilot.press("space")
    await until(pilot, lambda: has(desk, f"hunk 1/{hunks} [ ]"))
    displayed = tuning(desk).displayed
    assert displayed is not None
    assert displayed.partial == tuple(range(1, hunks))


@drive()
async def test_a_chosen_part_is_sent_with_its_hunks(desk: Desk, pilot: Any) -> None:
    desk.paper.session.parents["c0028"] = "c0005"
    await select(desk, pilot, "c0028")
    hunks = len(tuning(desk).main.diff.diff.hunks)
    assert hunks > 1
    await pilot.press("l", "space", "a")
    await until(pilot, lambda: desk.decisions)
    command = desk.decisions[0]
    assert isinstance(command, Accept)
    assert command.hunks == tuple(i for i in range(hunks) if i != 1)
    await until(pilot, lambda: "c0033 proposed" in tuning(desk).notice)


@drive()
async def test_no_hunk_is_nothing_to_accept(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("space", "a")
    await until(pilot, lambda: "no hunk is selected" in tuning(desk).notice)
    assert desk.decisions == []


@drive()
async def test_unclear_needs_a_note(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0031")
    await pilot.press("a")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    await pilot.press("enter")
    assert isinstance(desk.app.screen, NoteDialog), "an empty note is none"
    assert desk.decisions == []
    await pilot.press(*"simpler", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions[0].note == "simpler"


@drive()
async def test_a_note_is_whole_also_if_it_is_typed_before_the_dialog_is_there(
    desk: Desk, pilot: Any
) -> None:
    await select(desk, pilot, "c0031")
    for name in ("a", *"simpler", "enter"):
        desk.app.post_message(events.Key(name, name if len(name) == 1 else None))
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions[0].note == "simpler"


@drive()
async def test_quarantined_needs_a_note_and_esc_decides_nothing(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0026")
    await pilot.press("a")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    assert has(desk, "quarantined")
    await pilot.press(*"ok", "escape")
    await until(pilot, lambda: desk.app.screen is tuning(desk))
    assert desk.decisions == []


@drive()
async def test_what_cannot_be_accepted_says_why(desk: Desk, pilot: Any) -> None:
    for candidate, reason in (
        ("c0027", "measured against an older main"),
        ("c0006", "failed in verify"),
        ("c0029", "not measured yet"),
        ("c0025", "on main already"),
        ("c0001", "seed of the session"),
        ("c0004", "was rejected"),
    ):
        await select(desk, pilot, candidate)
        await pilot.press("a")
        await until(pilot, lambda reason=reason: reason in tuning(desk).notice, candidate)
    assert desk.decisions == []


@drive()
async def test_reject_with_and_without_a_note(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("R")
    await until(pilot, lambda: isinstance(desk.app.screen, NoteDialog))
    await pilot.press(*"no", "enter")
    await until(pilot, lambda: len(desk.decisions) == 1)
    assert desk.decisions[0] == Reject("c0028", desk.paper.session.shas["c0028"], "no")
    await select(desk, pilot, "c0031")
    await pilot.press("r")
    await until(pilot, lambda: len(desk.decisions) == 2)
    assert desk.decisions[1] == Reject("c0031", desk.paper.session.shas["c0031"], "")


@drive()
async def test_undo_and_redo(desk: Desk, pilot: Any) -> None:
    await pilot.press("Z")
    await until(pilot, lambda: "no undone decision" in tuning(desk).notice)
    await pilot.press("z")
    await until(pilot, lambda: tuning(desk).snapshot.state.undone)
    await pilot.press("Z")
    await until(pilot, lambda: not tuning(desk).snapshot.state.undone)
    assert [type(command) for command in desk.decisions] == [Undo, Redo]


@drive()
async def test_accept_by_rule_shows_the_rule_first(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("A")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))
    assert has(desk, "no shape is SLOWER")
    await pilot.press("escape")
    assert desk.decisions == []
    await pilot.press("A", "y")
    await until(pilot, lambda: len(desk.decisions) == 2)
    assert desk.decisions[0] == SetRule(AcceptRule.AUTO)
    assert isinstance(desk.decisions[1], Accept)


@drive()
async def test_editing_makes_a_candidate_of_the_human(desk: Desk, pilot: Any) -> None:
    from kerneltui.tui.screens import deciding

    asked: list[str] = []

    def editor(text: str, name: str, environment: Any) -> str | None:
        asked.append(name)
        return text.replace("CHUNK_ROWS 96", "CHUNK_ROWS 64")

    original = deciding.edit_text
    deciding.edit_text = editor
    try:
        await select(desk, pilot, "c0028")
        screen = tuning(desk)
        loaded = screen.loaded
        assert loaded is not None
        edited = screen._deciding._edited(loaded.source, "kernel.cpp")
        assert edited is not None
        screen._deciding.propose(loaded, edited)
        await until(pilot, lambda: desk.decisions)
    finally:
        deciding.edit_text = original
    command = desk.decisions[0]
    assert isinstance(command, Edit)
    assert command.candidate == "c0028"
    assert "#define CHUNK_ROWS 64" in command.source
    assert asked == ["kernel.cpp"]
