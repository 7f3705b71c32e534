"""The tuning screen under keys: decisions bind to what is displayed and are dead while one types."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from fake_engine import Paper
from fakes import Desk, drive, has, shown, until
from textual.widgets import Input
from tui_session import START, Session

from kerneltui.model.command import (
    Accept,
    Constrain,
    Edit,
    First,
    Interrupt,
    Progress,
    Rebench,
    Redo,
    Reject,
    SetBudget,
    SetPaused,
    SetRule,
    Steer,
    StopEngine,
    TakeOver,
    Undo,
)
from kerneltui.model.event import AcceptRule, ConstraintKind
from kerneltui.model.record import to_plain
from kerneltui.tui.ending import Quit
from kerneltui.tui.screens.dialogs import ChoiceDialog, HelpDialog, NoteDialog
from kerneltui.tui.screens.tuning import TuningScreen


def tuning(desk: Desk) -> TuningScreen:
    screen = desk.app.base
    assert isinstance(screen, TuningScreen)
    return screen


def text_of_only_file(folder: Path) -> str:
    (file,) = folder.iterdir()
    return file.read_text(encoding="utf-8")


async def select(desk: Desk, pilot: Any, candidate: str) -> None:
    """Puts a candidate on the screen and lets the grace pass."""
    screen = tuning(desk)
    screen.candidates.select(candidate)
    await until(
        pilot,
        lambda: screen.loaded is not None and screen.loaded.candidate == candidate,
        f"the diff of {candidate}",
    )
    desk.clock.advance(1)


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
    assert "came on screen just now" in screen.notice
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
    assert "not on screen yet" in screen.notice
    assert desk.decisions == []
    desk.link.release()
    await until(pilot, lambda: screen.loaded is not None)


@drive()
async def test_a_stale_sha_is_refused(desk: Desk, pilot: Any) -> None:
    desk.paper.session.shas["c0028"] = "0" * 40
    await select(desk, pilot, "c0028")
    await pilot.press("a")
    assert "has changed since it was displayed" in tuning(desk).notice
    assert desk.decisions == []


@drive()
async def test_typing_in_the_steer_line_decides_nothing(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("s", *"arzpq", "space", "b")
    assert tuning(desk).steer.input.value == "arzpq b"
    assert desk.decisions == []
    await pilot.press("escape")
    assert tuning(desk).steer.input.value == "arzpq b", "the draft stays"
    assert not isinstance(tuning(desk).focused, Input)


@drive()
async def test_other_screen_keys_are_dead_in_the_steer_line(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", "f1", "ctrl+p", "ctrl+r", "pagedown")
    assert desk.app.screen is tuning(desk)


@drive()
async def test_decision_keys_are_bound_on_list_and_diff_only(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0028")
    await pilot.press("3", "a", "r")
    assert desk.decisions == []
    await pilot.press("0", "a")
    await until(pilot, lambda: desk.decisions)


@drive()
async def test_part_of_the_hunks_is_a_new_candidate(desk: Desk, pilot: Any) -> None:
    await select(desk, pilot, "c0008")
    hunks = len(tuning(desk).main.diff.diff.hunks)
    assert hunks > 1
    await pilot.press("space")
    assert has(desk, f"hunk 1/{hunks} [ ]")
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
    assert "no hunk is selected" in tuning(desk).notice
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
        assert reason in tuning(desk).notice, candidate
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
    assert "no undone decision" in tuning(desk).notice
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
async def test_steering_goes_queued_and_keeps_its_address(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"@slow keep 48 rows", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [Steer("slow", "keep 48 rows")]
    assert tuning(desk).steer.to == "slow"
    await until(pilot, lambda: has(desk, "2 steer queued"))
    await pilot.press("s", "up")
    assert tuning(desk).steer.input.value == "keep 48 rows"


@drive()
async def test_after_a_message_single_keys_work_again(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"fewer flags", "enter")
    await until(pilot, lambda: desk.decisions)
    assert not tuning(desk).typing
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
    assert "unknown command '/frobnicate'" in tuning(desk).notice
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
        seen.append(tuning(desk).candidates.selected)
    assert sorted(set(seen)) == ["c0026", "c0027", "c0028", "c0031"]
    assert seen[-1] == first
    await pilot.press("o")
    assert has(desk, "sort:ratio")


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
async def test_quit_asks_and_can_leave_the_engine(desk: Desk, pilot: Any) -> None:
    await pilot.press("q")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog))
    await pilot.press("escape")
    assert desk.app.screen is tuning(desk)
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
    assert "read only; take over" in tuning(desk).notice
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
    assert "engine is gone" in tuning(desk).notice
    await pilot.press("ctrl+p", *"reconnect")
    await until(pilot, lambda: has(desk, "connect to the engine again"))
    await pilot.press("enter")
    await until(pilot, lambda: len(desk.links) == 2)
    await until(pilot, lambda: not has(desk, "ENGINE GONE"))


@drive()
async def test_a_frame_that_cannot_be_read_is_said_and_survived(desk: Desk, pilot: Any) -> None:
    desk.link.push({"frame": "event", "position": 10_000, "event": {"event": "decided"}})
    await until(pilot, lambda: has(desk, "an event needs 'event' and 'schema'"))


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
            assert "not up yet" in tuning(desk).notice
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
