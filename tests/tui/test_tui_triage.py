"""Triage by rule: what a rule decides, and that each decision is an ordinary one."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import Desk, drive, has, tuning, until
from tui_record import record

from kerneltui.model.command import Accept, Reject, Undo
from kerneltui.model.state import fold
from kerneltui.tui.keymap import action
from kerneltui.tui.screens.dialogs import ChoiceDialog
from kerneltui.tui.screens.triage import TriageDialog
from kerneltui.tui.triage import RULES, Rule, RuleError, chosen, commands, parse_rule

STATE = fold(record().events)
ALL = list(STATE.candidates)


def ids(rule: str, among: list[str] | None = None) -> list[str]:
    return [c.id for c in chosen(STATE, parse_rule(rule), ALL if among is None else among)]


@pytest.mark.parametrize("text", RULES)
def test_every_example_is_a_rule_and_names_itself(text: str) -> None:
    assert parse_rule(text).text == text


@pytest.mark.parametrize(
    "text", ["", "reject", "reject everything", "accept all", "accept best older than 3"]
)
def test_what_is_no_rule_decides_nothing(text: str) -> None:
    with pytest.raises(RuleError, match="is no rule"):
        parse_rule(text)


def test_words_around_a_rule_do_not_matter() -> None:
    assert parse_rule("  Reject all  SLOWER ") == Rule("slower")
    assert parse_rule("accept best faster") == Rule("best")


def test_rules_decide_only_what_waits() -> None:
    assert ids("reject unclear") == ["c0031"]
    assert ids("reject stale") == ["c0027"]
    assert ids("reject quarantined") == ["c0026"]
    assert ids("reject slower") == []
    assert ids("accept best") == ["c0028"]


def test_older_counts_the_candidates_proposed_after() -> None:
    # c0031 was proposed before c0029 and c0030.
    assert ids("reject unclear older than 2") == ["c0031"]
    assert ids("reject unclear older than 3") == []


def test_only_those_named_are_decided() -> None:
    assert ids("accept best", ["c0031", "c0027"]) == []


def test_the_best_is_the_fastest_against_the_incumbent_and_nowhere_slower() -> None:
    session = record()
    kernel = session.kernels["c0028"]
    session.whole("c0032", "c0025", kernel, "faster still", 1.75, generation=10)
    state = fold(session.events)
    rule = parse_rule("accept best")
    assert state.candidates["c0032"].measurement.slower_shapes == ()
    assert [c.id for c in chosen(state, rule, list(state.candidates))] == ["c0032"]


def test_decisions_are_bound_to_the_commit_and_name_the_rule() -> None:
    rule = parse_rule("reject unclear")
    sha = STATE.candidates["c0031"].sha
    assert commands(rule, chosen(STATE, rule, ALL)) == [
        Reject("c0031", sha, note="triage: reject unclear")
    ]
    best = parse_rule("accept best")
    assert isinstance(commands(best, chosen(STATE, best, ALL))[0], Accept)


async def triage(desk: Desk, pilot: Any) -> None:
    await tuning(desk).perform(action("triage"))
    await until(pilot, lambda: isinstance(desk.app.screen, TriageDialog), "the dialog")
    await pilot.pause()


@drive()
async def test_a_rule_is_previewed_confirmed_once_and_undone_one_by_one(
    desk: Desk, pilot: Any
) -> None:
    await triage(desk, pilot)
    await until(pilot, lambda: has(desk, "decides nothing here"), "nothing is SLOWER")
    await pilot.press("enter")
    assert isinstance(desk.app.screen, TriageDialog), "a rule that decides nothing is not taken"
    await pilot.press("down")
    await until(pilot, lambda: has(desk, "rejects 1 of 31"))
    await until(pilot, lambda: has(desk, "c0031 PEND"))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog), "the question")
    assert has(desk, "reject 1 candidate")
    assert desk.decisions == []
    await pilot.press("y")
    await until(pilot, lambda: desk.decisions)
    sha = desk.paper.session.shas["c0031"]
    assert desk.decisions == [Reject("c0031", sha, note="triage: reject unclear")]
    await until(pilot, lambda: "1 decided" in tuning(desk).notice)
    await pilot.press("z")
    await until(pilot, lambda: len(desk.decisions) == 2)
    assert desk.decisions[1] == Undo()


@drive()
async def test_escape_decides_nothing(desk: Desk, pilot: Any) -> None:
    await triage(desk, pilot)
    await pilot.press("down", "enter")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog), "the question")
    await pilot.press("escape")
    await triage(desk, pilot)
    await pilot.press("escape")
    await until(pilot, lambda: desk.app.screen is tuning(desk))
    assert desk.decisions == []


@drive()
async def test_marked_rows_come_before_the_filter(desk: Desk, pilot: Any) -> None:
    await pilot.press("c", "c")
    await until(pilot, lambda: tuning(desk).candidates.marked == {"c0031", "c0028"})
    await until(pilot, lambda: has(desk, "2 marked"))
    await until(pilot, lambda: has(desk, "*  c0031") and has(desk, "*  c0028"))
    await triage(desk, pilot)
    await until(pilot, lambda: has(desk, "Triage: 2 marked candidates"))
    await until(
        pilot,
        lambda: desk.app.screen.query_one("#preview").size.height == 2,
        "room for what may be decided",
    )
    await pilot.press(*["down"] * 5)
    await until(pilot, lambda: has(desk, "accepts 1 of 2"))
    await pilot.press("escape")
    await tuning(desk).perform(action("unmark"))
    await until(pilot, lambda: not has(desk, "marked"))


@drive()
async def test_the_filter_says_over_what_is_decided(desk: Desk, pilot: Any) -> None:
    await pilot.press("slash", *"stale", "enter")
    await triage(desk, pilot)
    await until(pilot, lambda: has(desk, "1 shown by the filter /stale"))
    await pilot.press(*["down"] * 3)
    await until(pilot, lambda: has(desk, "rejects 1 of 1"))


@drive()
async def test_a_refusal_of_the_engine_is_told_and_the_rest_goes_on(desk: Desk, pilot: Any) -> None:
    await triage(desk, pilot)
    await pilot.press("down", "enter")
    await until(pilot, lambda: isinstance(desk.app.screen, ChoiceDialog), "the question")
    desk.paper.refuse = "c0031 is now another commit"
    await pilot.press("y")
    await until(pilot, lambda: "1 refused" in tuning(desk).notice)
    assert "0 decided; 1 refused, c0031: c0031 is now another commit" in tuning(desk).notice


@drive(writer=False)
async def test_a_terminal_that_only_reads_decides_nothing(desk: Desk, pilot: Any) -> None:
    await tuning(desk).perform(action("triage"))
    await until(pilot, lambda: "read only" in tuning(desk).notice)
