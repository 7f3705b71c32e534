"""Language models on the screen: streams, money in words, messages, the goal, lab notes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import LAB_NOTES, Paper
from fakes import Desk, drive, has, shown, tuning, until
from model_session import LOCAL, OPUS, stream, with_models
from tui_record import record

from kerneltui.model.agent_event import Migrated, ModelCallEnded, ModelCallStarted
from kerneltui.model.command import ChooseModel, Progress, SetBudget, Steer, WriteNotes
from kerneltui.model.event import SteerDelivered, encode_event
from kerneltui.model.record import parse_json, to_plain
from kerneltui.model.spend import Spent
from kerneltui.model.state import State, fold
from kerneltui.model.steering import Message
from kerneltui.tui.draw.agents import agents_lines, agents_summary, has_models
from kerneltui.tui.draw.candidates import details
from kerneltui.tui.draw.header import header_line
from kerneltui.tui.draw.spend import call_lines, money, spend_line, spend_lines
from kerneltui.tui.draw.tables import directive_lines, machine_lines
from kerneltui.tui.layout import Panel, plan_tuning
from kerneltui.tui.steering import SteerError, parse_steer
from kerneltui.tui.stream import Piece, Stream
from kerneltui.tui.text import line_width, plain
from kerneltui.tui.timeline import Timeline, event_text
from kerneltui.tui.view import Link, Live, Snapshot

STATE = fold(with_models().events)
UNPRICED = fold(with_models(priced=False, budget=None).events)


def live(parts: list[Progress]) -> Live:
    found = Live()
    for part in parts:
        found = found.fold(part)
    return found


def text_of(lines: Any) -> str:
    return "\n".join(plain(line) for line in lines)


# The stream


def test_pieces_of_one_kind_join_and_kinds_stay_apart() -> None:
    found = live(stream()).streams["slow"]
    assert [piece.kind for piece in found.pieces] == ["thinking", "text", "tool"]
    assert found.pieces[0].text.startswith("The tall shape spends a fifth")
    assert found.tokens == round(sum(len(p.text) for p in found.pieces) / 3.5)


def test_only_the_end_of_a_long_stream_is_kept_and_that_is_said() -> None:
    found = Stream()
    for index in range(200):
        found = found.fold("thinking" if index % 2 else "text", f"{index:03d} " * 25)
    assert sum(len(piece.text) for piece in found.pieces) == 8_000
    assert found.pieces[-1].text.endswith("199 ")
    assert found.cut
    assert found.heard == 200 * 100


def test_a_status_goes_with_the_next_piece() -> None:
    found = Stream().fold("status", "overloaded, again in 4 s")
    assert found.status == "overloaded, again in 4 s"
    assert found.heard == 0
    assert found.fold("text", "x").status == ""


def test_an_unknown_kind_is_text() -> None:
    assert Stream().fold("", "x").pieces == (Piece("text", "x"),)


def test_thinking_is_dim_and_code_keeps_its_indentation() -> None:
    code = Progress("stream", "slow:tool", r'{"replace": "if (x) {\n    y();\n}"}')
    lines = agents_lines(STATE, live([*stream()[:4], code]), STATE.at, 80)
    styles = {style for line in lines for text, style in line if "The tall shape" in text}
    assert styles == {"dim"}
    assert any(plain(line).endswith("│     y();") for line in lines)


def test_the_tail_is_the_running_call_with_model_tokens_and_time() -> None:
    lines = [
        plain(line) for line in agents_lines(STATE, live(stream()), STATE.at + 61 * 10**9, 100)
    ]
    head = next(line for line in lines if "* rewrite of c0028" in line)
    assert "claude-opus-5-5" in head
    assert "~118 tokens   1m 01s" in head
    assert lines.index(head) > lines.index(next(line for line in lines if "goal: no shape" in line))


def test_where_there_is_little_room_only_the_end_of_a_reply_is_shown() -> None:
    said = len(agents_lines(STATE, Live(), STATE.at, 80)) - 1  # without the line on the call
    lines = agents_lines(STATE, live(stream()), STATE.at, 80)
    short = agents_lines(STATE, live(stream()), STATE.at, 80, 3)
    assert short[:said] == lines[:said], "what was said stays"
    assert short[said] == lines[said], "and what the call is for"
    assert short[-3:] == lines[-3:]
    hidden = len(lines) - said - 4
    assert hidden > 1
    assert plain(short[said + 1]).strip() == f"… {hidden} lines before, in the Agents tab"
    assert agents_lines(STATE, live(stream()), STATE.at, 80, 99) == lines


def test_a_long_name_does_not_touch_what_it_says() -> None:
    message = Message(STATE.at, "engine", "no price of nosuch is known")
    told = replace(STATE, messages=(message,), steers=())
    assert " engine no price of nosuch is known" in text_of(agents_lines(told, Live(), told.at, 80))


def test_before_the_first_word_that_is_said() -> None:
    assert "no word yet" in text_of(agents_lines(STATE, Live(), STATE.at, 100))


def test_a_failed_proposal_stands_with_its_reason() -> None:
    lines = agents_lines(STATE, Live(), STATE.at, 100)
    found = [line for line in lines if "no proposal from c0028: refused" in plain(line)]
    assert [style for line in found for text, style in line if "refused" in text] == ["bad"]


def test_before_the_calibration_agents_are_not_called_idle() -> None:
    new = replace(STATE, messages=(), calls={}, paused=False, ended="")
    assert plain(agents_summary(new, Live(), new.at)) == "agents idle"
    new = replace(new, calibrations={})
    assert plain(agents_summary(new, Live(), new.at)) == "agents wait for the calibration"


def test_the_summary_names_what_the_running_call_is_for() -> None:
    line = plain(agents_summary(STATE, live(stream()), STATE.at))
    assert line.startswith("slow * rewrite of c0028 ~118 tok")
    assert line.endswith("| fast . landed at c0002")


@pytest.mark.parametrize("width", [24, 58, 78, 118])
def test_lines_fit_their_width(width: int) -> None:
    for lines in (
        agents_lines(STATE, live(stream()), STATE.at, width),
        spend_lines(STATE, width),
        call_lines(STATE, STATE.candidates["c0028"], width),
    ):
        assert max(map(line_width, lines)) <= width


# Money


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Spent(micro_usd=500_000, reserved=80_000), "$0.42 (+$0.08 running)"),
        (Spent(micro_usd=420_000), "$0.42"),
        (Spent(calls=2, unpriced=2), "price unknown"),
        (Spent(micro_usd=420_000, unpriced=1), "$0.42 + price unknown"),
    ],
)
def test_sums_in_words(found: Spent, text: str) -> None:
    assert money(found) == text


def test_the_status_line_shows_what_is_used_of_the_budget() -> None:
    assert plain(spend_line(STATE)) == "$0.32 of $5.00 (+$0.08 running)"
    assert plain(spend_line(UNPRICED)) == "$0.23 (+$0.08 running) + price unknown"
    assert spend_line(fold(record().events)) == ()
    for width in (80, 120):
        header = plain(
            header_line(Snapshot(STATE, Live(), Link("live", "", True)), STATE.at, width)
        )
        assert "$0.32 of $5.00 (+$0.08 running)" in header


@pytest.mark.parametrize(
    ("budget", "style"), [(5_000_000, "ink"), (790_000, "warn"), (450_000, "bad")]
)
def test_the_status_line_warns_at_50_and_80_percent(budget: int, style: str) -> None:
    state = fold(with_models(budget=budget).events)
    assert [found for _, found in spend_line(state)] == [style]


def test_spend_by_role_and_candidate_adds_up_to_the_whole() -> None:
    text = text_of(spend_lines(STATE, 118))
    assert "judge          1    18.5k" in text
    assert "c0028          3    53.8k     79 %  $0.20" in text
    assert "none           2" in text
    parts = [STATE.spent(c.calls) for c in STATE.candidates.values() if c.calls]
    rest = STATE.spent([5, 6])
    assert sum(p.micro_usd for p in (*parts, rest)) == STATE.spent().micro_usd


def test_a_model_without_a_price_is_never_zero_dollars() -> None:
    text = text_of(spend_lines(UNPRICED, 118))
    row = next(line for line in text.split("\n") if LOCAL in line)
    assert "price unknown" in row
    assert "$" not in row
    limited = text_of(spend_lines(fold(with_models(priced=False).events), 118))
    assert "1 calls have no known price and are not in the sum" in limited


def test_a_candidate_says_what_it_cost() -> None:
    candidate = STATE.candidates["c0028"]
    assert "$0.20  53.8k tok  claude-opus-5-5" in text_of(details(STATE, candidate, 46))
    text = text_of(call_lines(STATE, candidate, 100))
    assert "rewrite of c0025, repai…" in text
    assert "claude-sonnet-5-5" in text
    assert call_lines(STATE, STATE.candidates["c0025"], 100) == ()


# Steering


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/budget $7.50", SetBudget(40, 600 * 10**9, 7_500_000)),
        ("/budget 60", SetBudget(60, 600 * 10**9)),
        ("/budget 20m", SetBudget(40, 1200 * 10**9)),
        ("/budget 60 1h $5", SetBudget(60, 3600 * 10**9, 5_000_000)),
        ("/budget 60 -", SetBudget(60, None)),
        ("/budget -", SetBudget(None, None)),
        ("/budget $none", SetBudget(40, 600 * 10**9, None, no_money_limit=True)),
        ("/budget none", SetBudget(None, None, None, no_money_limit=True)),
        ("/budget none $5", SetBudget(None, None, 5_000_000)),
        ("/budget 60 $none", SetBudget(60, 600 * 10**9, None, no_money_limit=True)),
        ("/goal fewer flags", Steer("all", "goal: fewer flags")),
        ("/goal -", Steer("all", "goal:")),
        ("/model slow claude-x", ChooseModel("slow", "claude-x")),
        ("/Model slow claude-X", ChooseModel("slow", "claude-X")),
    ],
)
def test_commands_of_the_steer_line(text: str, command: object) -> None:
    assert parse_steer(text, "all", STATE).command == command


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/budget $0", "does not understand"),
        ("/budget $", "does not understand"),
        ("/budget $5 $none", "exclude one another"),
        ("/budget 1e3", "does not understand"),
        ("/model slow", "needs a role"),
        ("/model boss x", "needs a role"),
        ("/goal", "needs a text"),
        ("/pause now", "/pause stands alone; 'now' means nothing here"),
        ("/unpin c0001", "/unpin stands alone"),
    ],
)
def test_wrong_commands_say_what_is_missing(text: str, reason: str) -> None:
    with pytest.raises(SteerError, match=reason):
        parse_steer(text, "all", STATE)


def test_there_must_be_a_goal_to_lift() -> None:
    with pytest.raises(SteerError, match="no goal to lift"):
        parse_steer("/goal -", "all", fold(record().events))


def test_the_goal_in_force_stands_beside_the_constraints() -> None:
    assert STATE.goal == "no shape slower than torch + gloo"
    assert "asked   goal no shape slower" in text_of(machine_lines(STATE, 60, 8))


def test_both_answers_to_a_message_to_all_are_shown() -> None:
    session = with_models()
    for agent, answer in (("fast", "mine\nwill"), ("slow", "so will mine")):
        session.add(SteerDelivered(at=session.wait(1), number=4, agent=agent, answer=answer))
    lines = [plain(line) for line in agents_lines(fold(session.events), Live(), session.at, 100)]
    first = next(row for row, line in enumerate(lines) if "goal: no shape" in line)
    assert lines[first + 1 : first + 3] == [" fast  mine will", " slow  so will mine"]


# Old sessions and replay


def test_offline_agents_cost_no_room() -> None:
    offline = fold(record().events)
    assert not has_models(offline)
    assert has_models(STATE)
    small = plan_tuning(120, 40).panels[Panel.AGENTS]
    large = plan_tuning(120, 40, models=True).panels[Panel.AGENTS]
    assert (small.height, large.height) == (8, 12)
    assert plan_tuning(80, 24, models=True).panels == plan_tuning(80, 24).panels


def test_the_timeline_tells_of_calls_and_failed_proposals() -> None:
    texts = [" ".join(event_text(event)) for event in Timeline(with_models().events).events]
    assert "slow asks claude-opus-5-5: diff of c0028" in texts
    assert "engine call 5 ended, refused: the model declined" in texts
    assert "slow has no proposal from c0028: refused: the model declined" in texts


def test_a_state_with_models_reads_back_equal() -> None:
    assert State.from_canonical(STATE.canonical()).canonical() == STATE.canonical()


# On the screen


@drive(paper=Paper(with_models()))
async def test_the_agents_tab_follows_the_stream_and_scrolls_back(desk: Desk, pilot: Any) -> None:
    main = tuning(desk).main
    main.open_tab("Agents")
    await pilot.press("0")
    await until(pilot, lambda: has(desk, "publish(flag + 1, epoch);"))
    desk.link.push(
        {
            "frame": "progress",
            "progress": to_plain(Progress("stream", "slow:text", "\n".join("abcdefghij"))),
        }
    )
    await until(pilot, lambda: has(desk, "       j"), "the next piece")
    await pilot.press("K", "K", "K")
    await until(pilot, lambda: not main.current.following)
    top = main.current.top
    desk.link.push(
        {"frame": "progress", "progress": to_plain(Progress("stream", "slow:text", "\nkk\nll"))}
    )
    await until(pilot, lambda: any("ll" in plain(line) for line in main.current.lines), "more")
    assert main.current.top == top
    await pilot.press(*["J"] * 12)
    await until(pilot, lambda: main.current.following)


@drive(paper=Paper(with_models()), size=(120, 40))
async def test_a_new_call_begins_with_an_empty_stream(desk: Desk, pilot: Any) -> None:
    assert has(desk, "publish(flag + 1, epoch);")
    state = desk.paper.state
    for event in (
        ModelCallEnded(at=desk.paper.now, number=6, model="claude-opus-5-5", outcome="ok"),
        ModelCallStarted(
            at=desk.paper.now, number=7, agent="slow", role="slow", model="claude-opus-5-5",
            purpose="diff of c0029", reserved_micro_usd=1,
        ),
    ):  # fmt: skip
        state.apply(event)
        plain_event = parse_json(encode_event(event))
        desk.link.push({"frame": "event", "position": state.position, "event": plain_event})
    await until(pilot, lambda: has(desk, "* diff of c0029"), "the next call")
    assert not has(desk, "publish(flag + 1, epoch);")
    assert has(desk, "no word yet")


@drive(paper=Paper(with_models()))
async def test_a_budget_in_dollars_is_sent_and_shown(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"/budget $8", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [SetBudget(40, 600 * 10**9, 8_000_000)]
    await until(pilot, lambda: has(desk, "$0.32 of $8.00"))


@drive(paper=Paper(with_models()))
async def test_a_limit_in_money_can_be_lifted_and_that_is_said(desk: Desk, pilot: Any) -> None:
    await pilot.press("s", *"/budget $none", "enter")
    await until(pilot, lambda: desk.decisions)
    assert desk.decisions == [SetBudget(40, 600 * 10**9, None, no_money_limit=True)]
    await until(pilot, lambda: has(desk, "$0.32 (+$0.08 running), no limit"))


@drive()
async def test_offline_there_are_no_tabs_of_models(desk: Desk, pilot: Any) -> None:
    await pilot.press(*["right_square_bracket"] * 8)
    await until(pilot, lambda: has(desk, "[Diff]"))
    assert not has(desk, "Spend")


@drive()
async def test_the_lab_notes_are_shown_and_edited(desk: Desk, pilot: Any) -> None:
    screen = tuning(desk)
    screen.main.open_tab("Notes")
    await until(pilot, lambda: has(desk, "KC 512 pays from K = 1024 on"), "the notes")
    assert has(desk, "as they are on main")
    seen: list[str] = []
    screen.session_tabs.with_notes(seen.append)
    assert seen == [LAB_NOTES]
    screen._deciding.write_notes("# Notes\n\nflags cost a line\n")
    await until(pilot, lambda: has(desk, "flags cost a line"), "the new notes")
    assert has(desk, "as you wrote them")
    assert desk.decisions == [WriteNotes("# Notes\n\nflags cost a line\n")]


@drive(paper=Paper(with_models(), replay=True), replay=True)
async def test_a_replay_shows_the_same_tabs(desk: Desk, pilot: Any) -> None:
    await until(pilot, lambda: len(desk.app.base.timeline), "the session")
    main = desk.app.base.main
    main.open_tab("Spend")
    await until(pilot, lambda: has(desk, "$0.32 of $5.00 (+$0.08 running)"), "spend")
    main.open_tab("Grid")
    await until(pilot, lambda: has(desk, "split_put_wait"), "grid")
    main.open_tab("Notes")
    await until(pilot, lambda: has(desk, "KC 512 pays"), "notes")
    assert all(len(line) <= 80 for line in shown(desk))


# The slow path's arms and islands


def test_arms_with_pulls_gains_reward_and_cost() -> None:
    text = text_of(spend_lines(STATE, 118))
    assert " arm              pulls  gained  reward  cost of a pull" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.split("\n") if line.strip()}
    opus, search = rows[OPUS], rows["offline"]
    made = [c for c in STATE.candidates.values() if c.arm == OPUS]
    assert int(opus[0]) == len(made) + 1, "with the attempt that came to nothing"
    assert opus[3] == "$0.11"
    assert search[3:] == ["no", "money"]
    assert int(search[0]) == sum(c.arm == "offline" for c in STATE.candidates.values())
    unknown = text_of(spend_lines(UNPRICED, 118))
    row = next(line for line in unknown.split("\n") if line.startswith(f" {LOCAL} "))
    assert "price unknown" in row
    assert "arm " not in text_of(spend_lines(fold(record().events), 118))


def test_a_candidate_says_who_made_it_and_on_which_island() -> None:
    candidate = STATE.candidates["c0028"]
    assert "(rewrite, isl 1→2)" in text_of(details(STATE, candidate, 46))
    text = text_of(directive_lines(STATE, candidate, 100))
    assert re.search(r"island +1, guest of 2", text)
    assert re.search(rf"arm +{OPUS}", text)
    assert re.search(r"shown, too +c0014, c0012", text)
    plain_one = directive_lines(STATE, STATE.candidates["c0002"], 100)
    assert "island" not in text_of(plain_one)


def test_a_migration_is_in_the_list_of_events() -> None:
    event = next(event for event in with_models().events if isinstance(event, Migrated))
    assert event_text(event) == ("engine", "islands took over: c0028 to 2")
