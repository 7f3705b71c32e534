"""Drawing is pure: formats, rows, diffs, charts, timelines, and text that nothing can break."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import NOW
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tui_record import record
from tui_session import SECOND

from kerneltui.model.agent_event import ProposalFailed
from kerneltui.model.state import fold
from kerneltui.model.statistics import Interval, Verdict
from kerneltui.tui import format as form
from kerneltui.tui.draw.agents import agents_lines, steer_status, strip_line
from kerneltui.tui.draw.candidates import Row, Sort, candidate_line, details, rows
from kerneltui.tui.draw.chart import (
    Bar,
    Chart,
    chart_lines,
    chart_of,
    difference_text,
    shape_charts,
    whisker,
)
from kerneltui.tui.draw.code import code_spans, highlight
from kerneltui.tui.draw.header import header_line, hints_line
from kerneltui.tui.draw.tables import bench_table, candidate_log, directive_lines, machine_lines
from kerneltui.tui.steering import SteerError, parse_steer
from kerneltui.tui.text import LazyLines, clean, cut, fit, line_width, pad, plain, wrap
from kerneltui.tui.timeline import KEYFRAME_EVERY, Timeline
from kerneltui.tui.view import Link, Live, Round, Snapshot

SESSION = record()
STATE = fold(SESSION.events)
WIDTHS = st.integers(20, 200)


@given(st.text(), st.integers(0, 60))
def test_fit_has_exactly_the_width(text: str, width: int) -> None:
    assert cell_len(fit(clean(text), width)) == width


@given(st.text())
def test_nothing_that_could_move_the_cursor_survives(text: str) -> None:
    assert clean(text).isprintable() or clean(text) == ""


@given(st.lists(st.text(max_size=12), max_size=5), st.integers(1, 40))
def test_cut_and_pad_keep_to_the_width(texts: list[str], width: int) -> None:
    line = tuple((clean(text), "") for text in texts)
    assert line_width(cut(line, width)) <= width
    assert line_width(pad(line, width)) == width


@given(st.text(), st.integers(1, 30))
def test_wrapped_lines_fit(text: str, width: int) -> None:
    assert all(cell_len(part) <= max(width, 2) for part in wrap(text, width))


@pytest.mark.parametrize(
    ("candidates", "time_ns", "money", "text"),
    [
        (None, None, None, "30 candidates so far, no limit"),
        (40, None, None, "30 of 40 candidates"),
        (None, 600 * 10**9, 5_000_000, "30 candidates so far, at most 10m 00s, $5"),
        (40, 600 * 10**9, 5_500_000, "30 of 40 candidates, 10m 00s, $5.50"),
        (40, None, 5_000_000, "30 of 40 candidates, $5"),
    ],
)
def test_what_is_used_of_the_budget_and_what_limits_it(
    candidates: int | None, time_ns: int | None, money: int | None, text: str
) -> None:
    state = replace(STATE, budget_candidates=candidates, budget_ns=time_ns, budget_micro_usd=money)
    lines = [plain(line).strip() for line in machine_lines(state, 90, 9)]
    assert f"budget  {text}" in lines


@pytest.mark.parametrize(
    ("noise", "text"),
    [((0.002, 0.1004), "±0.2-10%"), ((0.0031, 0.0031), "±0.3%"), ((0.001, 0.0094), "±0.1-0.9%")],
)
def test_noise_is_that_of_single_shapes_and_a_verdict_is_of_all(
    noise: tuple[float, float], text: str
) -> None:
    one = next(iter(STATE.calibrations.values()))
    parts = {str(value): replace(one, noise=value) for value in noise}
    lines = [
        plain(line).strip() for line in machine_lines(replace(STATE, calibrations=parts), 90, 9)
    ]
    assert f"noise   verdicts need {STATE.delta:.1%}  shapes {text}" in lines


def test_large_noise_fits_the_panel_of_120_columns() -> None:
    one = next(iter(STATE.calibrations.values()))
    parts = {str(value): replace(one, noise=value) for value in (0.045, 0.18)}
    state = replace(STATE, calibrations=parts, delta=0.12)
    lines = [plain(line).strip() for line in machine_lines(state, 44, 9)]
    assert "noise   verdicts need 12%  shapes ±4.5-18%" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(14, "00:14"), (860, "14m 20s"), (7500, "2h 05m"), (273_600, "3d 04h"), (-5, "00:00")],
)
def test_elapsed(seconds: int, text: str) -> None:
    assert form.elapsed(seconds * SECOND) == text


def test_the_difference_line_turns_log_ratios_around() -> None:
    interval = Interval(-0.01, -0.02, 0.001)
    assert form.difference(interval, Verdict.UNCLEAR) == "+1.0% [-0.1, +2.0] UNCLEAR"


@given(st.lists(st.one_of(st.none(), st.floats(0.1, 10)), max_size=50), st.integers(0, 80))
def test_a_sparkline_has_its_width(values: list[float | None], width: int) -> None:
    assert len(form.sparkline(values, width)) == width


@given(WIDTHS, st.sampled_from(sorted(STATE.candidates)), st.booleans())
def test_a_row_fits_and_never_loses_id_state_agent(width: int, id_: str, tree: bool) -> None:
    row = Row(id_, "├ " if tree else "")
    text = plain(candidate_line(STATE, Live(), row, selected=False, width=max(width, 24)))
    assert cell_len(text) <= max(width, 24)
    assert id_ in text
    assert str(STATE.state_of(id_)) in text
    assert STATE.candidates[id_].agent in text


def test_what_goes_first_as_width_shrinks() -> None:
    def text(width: int) -> str:
        return plain(candidate_line(STATE, Live(), Row("c0028"), selected=True, width=width))

    assert "CHUNK_ROWS" in text(78)
    assert "g9" in text(78)
    assert "±" in text(78)
    assert "g9" not in text(40)
    assert "1.630x" in text(40)
    assert "±" not in text(30)
    assert text(30).startswith(" > c0028 PEND  slow")


def test_rounds_of_a_running_benchmark() -> None:
    live = Live(rounds={"c0029": Round(13, 22, "512x512x512")})
    text = plain(candidate_line(STATE, live, Row("c0029"), selected=False, width=78))
    assert "round 13 of 22  512x512x512" in text


def test_the_log_says_why_a_candidate_is_quarantined() -> None:
    candidate = STATE.candidates["c0026"]
    assert candidate.measurement is not None
    for width in (60, 100):
        lines = [plain(line) for line in candidate_log(STATE, candidate, "", width)]
        (start,) = [i for i, line in enumerate(lines) if line.startswith(" quarantined: ")]
        assert all(cell_len(line) <= width for line in lines[start:])
        assert candidate.measurement.quarantine in " ".join(" ".join(lines[start:]).split())


def test_the_log_of_the_seed_says_where_it_was_measured() -> None:
    (seed,) = [c for c in STATE.candidates.values() if not c.parents]
    text = [plain(line) for line in candidate_log(STATE, seed, "", 100)]
    assert any("in the calibration, as the first incumbent" in line for line in text)
    child = "\n".join(plain(x) for x in candidate_log(STATE, STATE.candidates["c0028"], "", 100))
    assert "calibration" not in child


def test_pending_first_then_running_then_best() -> None:
    order = [row.id for row in rows(STATE, sort=Sort.PENDING)]
    assert set(order[:4]) == {"c0031", "c0028", "c0026", "c0027"}
    assert order.index("c0029") < order.index("c0025") < order.index("c0004")
    assert order[-1] == "c0001"


def test_the_tree_has_everyone_once_and_the_trunk_in_front() -> None:
    tree = rows(STATE, sort=Sort.PENDING, tree=True)
    assert sorted(row.id for row in tree) == sorted(STATE.candidates)
    trunk = [row.id for row in tree if not row.prefix]
    assert trunk[0] == "c0001"
    assert trunk[-1] == "c0025"
    seen: set[str] = set()
    for row in tree:
        parents = STATE.candidates[row.id].parents
        assert not parents or parents[0] in seen, "a parent stands above its children"
        seen.add(row.id)


def test_a_filter_needs_every_word() -> None:
    found = [row.id for row in rows(STATE, sort=Sort.NEWEST, needle="fail compile")]
    assert found == []
    found = [row.id for row in rows(STATE, sort=Sort.NEWEST, needle="FAIL slow")]
    assert found == ["c0020", "c0012", "c0007", "c0006"]
    assert rows(STATE, sort=Sort.NEWEST, needle="chunk_rows=192 rej")


def test_code_is_never_markup() -> None:
    text = "acc[i] += sA[k % STAGES]; // [/red] [bold]"
    spans = code_spans(text, highlight(text)[0], "add", ((0, 3),), "add-mark")
    assert "".join(part for part, _ in spans) == text


@given(st.text(max_size=200))
def test_highlighting_covers_any_text(text: str) -> None:
    tokens = highlight(text)
    for line, ranges in zip(text.split("\n"), tokens, strict=False):
        assert all(0 <= a <= b <= len(clean(line)) for a, b, _ in ranges)
    assert len(tokens) == len(text.split("\n"))


def test_a_whisker_lies_where_its_value_is() -> None:
    bar = Bar("c", "PEND", 1.42, 1.52, 1.62, "", "whisker-candidate")
    text = plain(whisker(bar, (1.0, 2.0), 1.85, 20))
    assert text.index("●") == 10
    assert text.index("├") == 8
    assert text.index("┊") == 17
    assert len(text) == 20


def test_what_is_out_of_view_is_an_arrow() -> None:
    low = Bar("c", "", 0.4, 0.5, 0.6, "", "")
    high = Bar("c", "", 2.4, 2.5, 2.6, "", "")
    assert plain(whisker(low, (1.0, 2.0), None, 10)).startswith("◂")
    assert plain(whisker(high, (1.0, 2.0), None, 10)).endswith("▸")


@given(
    st.lists(st.floats(0.01, 50), min_size=1, max_size=6),
    st.floats(0, 0.5),
    st.one_of(st.none(), st.floats(0.01, 50)),
    st.integers(40, 180),
    st.integers(1, 9),
)
def test_any_chart_fits_its_panel(
    middles: list[float], spread: float, bound: float | None, width: int, height: int
) -> None:
    bars = tuple(
        Bar(f"c{i}", "PEND", m * (1 - spread), m, m * (1 + spread), "94.7%", "")
        for i, m in enumerate(middles)
    )
    lines = chart_lines(Chart("", bars, bound), width, height)
    assert len(lines) <= height
    assert all(line_width(line) <= width for line in lines)


def test_the_chart_has_candidate_incumbent_baselines_and_bound() -> None:
    chart = chart_of(STATE, STATE.candidates["c0028"])
    assert [bar.name for bar in chart.bars] == ["c0028", "c0025", "torch_gloo", "host"]
    assert chart.bound == pytest.approx(1.861, abs=0.002)
    assert "n=11" in chart.title
    assert len(shape_charts(STATE, STATE.candidates["c0028"])) == 5


def test_the_difference_names_whom_it_is_against() -> None:
    def text(id_: str, width: int = 100) -> str:
        return plain(difference_text(STATE, STATE.candidates[id_], width))

    assert text("c0028").startswith("vs BEST +")
    assert text("c0028").endswith("FASTER")
    assert text("c0027").startswith("vs c0022 (older BEST)")
    assert text("c0025").startswith("vs c0022 (then BEST)")
    assert "faster than the bound on" in text("c0026", 140)
    assert text("c0026", 60).endswith(", quarantined")
    assert text("c0006") == ""


@given(st.integers(30, 160), st.sampled_from(sorted(STATE.candidates)))
def test_tables_fit(width: int, id_: str) -> None:
    candidate = STATE.candidates[id_]
    lines = [
        *bench_table(STATE, candidate, max(width, 60)),
        *directive_lines(STATE, candidate, max(width, 60)),
        *candidate_log(STATE, candidate, "", max(width, 60)),
    ]
    assert lines
    assert all(line_width(line) <= max(width, 60) for line in machine_lines(STATE, 60, 5))
    assert len(details(STATE, candidate, 44)) <= 5


def test_the_table_names_what_changed_against_the_parent() -> None:
    text = "\n".join(plain(line) for line in directive_lines(STATE, STATE.candidates["c0028"], 80))
    assert "CHUNK_ROWS   96   was 48" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_findings_stand_beside_the_directive(width: int) -> None:
    finding = "kernel.cpp:12: warn: D11: flags are reset: memset is called on signal words; " * 2
    candidate = replace(STATE.candidates["c0028"], findings=(finding.strip(),))
    lines = directive_lines(STATE, candidate, width)
    text = [plain(line) for line in lines]
    assert " Lint: the directive and the code" in text
    assert text[text.index(" Lint: the directive and the code") + 1].startswith(
        "   kernel.cpp:12: warn"
    )
    assert all(line_width(line) <= width for line in lines)


def test_steers_go_queued_delivered_answered() -> None:
    assert [steer_status(steer) for steer in STATE.steers] == ["answered@c0009", "queued"]
    text = "\n".join(plain(line) for line in agents_lines(STATE, Live(), STATE.at, 100))
    assert "queued" in text
    assert "answered@c0009" in text


def test_agents_off_is_said() -> None:
    state = STATE.copy()
    state.agents = "off"
    assert "agents off" in plain(strip_line(state, Live(), NOW, 100))


@given(st.integers(60, 200))
def test_the_header_fits_and_keeps_pending(width: int) -> None:
    text = plain(header_line(Snapshot(STATE, Live(), Link("live", "", False)), NOW, width))
    assert len(text) <= width
    assert "4 pending" in text
    assert "READ ONLY" in text


@given(st.integers(20, 160))
def test_hints_keep_help(width: int) -> None:
    hints = [(f"{i}", "something") for i in range(12)] + [("^p", "palette"), ("?", "help")]
    text = plain(hints_line(hints, width))
    assert len(text) <= width
    assert width < 24 or "? help" in text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nothing to send"),
        ("@slow", "nothing to send"),
        ("@bob hello", "no agent '@bob'"),
        ("/pin c9999", "/pin needs a candidate"),
        ("/ban placement", "needs field=value"),
        ("/force =x", "needs field=value"),
        ("/budget soon", "does not understand 'soon'"),
        ("/budget", "/budget needs"),
        ("/unpin", "no candidate is pinned"),
        ("/nothing", "unknown command '/nothing'"),
    ],
)
def test_lines_that_cannot_be_sent(text: str, problem: str) -> None:
    with pytest.raises(SteerError, match=problem.replace("/", "/")):
        parse_steer(text, "all", STATE)


def test_a_newline_sign_becomes_a_newline() -> None:
    line = parse_steer("@fast one↵two", "all", STATE)
    assert line.to == "fast"
    assert line.command.text == "one\ntwo"


def test_lazy_lines_are_a_sequence() -> None:
    lines = LazyLines(3, lambda i: ((str(i), ""),))
    assert [plain(line) for line in lines] == ["0", "1", "2"]
    assert plain(lines[-1]) == "2"
    assert len(lines[1:]) == 2
    with pytest.raises(IndexError):
        lines[3]


def test_every_step_of_a_timeline_is_the_fold_up_to_it() -> None:
    events = SESSION.events
    timeline = Timeline(events)
    expected = fold(())
    for step, event in enumerate(events):
        assert timeline.state(step).canonical() == expected.canonical()
        expected.apply(event)


def test_keyframes_give_the_same_states() -> None:
    events = [*SESSION.events]
    while len(events) <= 2 * KEYFRAME_EVERY:
        events.append(events[-1])
    timeline = Timeline(events)
    for step in (KEYFRAME_EVERY - 1, KEYFRAME_EVERY, KEYFRAME_EVERY + 1, len(events)):
        assert timeline.state(step).canonical() == fold(events[:step]).canonical()
    assert timeline.state(10**9).position == len(events)
    assert timeline.state(-1).position == 0


@given(st.integers(30, 160), st.text(max_size=200))
def test_what_stands_behind_a_message_is_shown_and_bounded(width: int, more: str) -> None:
    detail = "was: int a;\n    now: int b;\n" + more + "\nx" * 60
    state = STATE.copy()
    failed = ProposalFailed(
        at=NOW, agent="slow", parent="c0001", reason="no such line", detail=detail
    )
    state.apply(failed)
    lines = agents_lines(state, Live(), state.at, width)
    text = [plain(line) for line in lines]
    assert "       │ was: int a;" in text
    assert "       │     now: int b;" in text
    assert any("more lines" in line for line in text)
    start = text.index("       │     now: int b;")
    assert all(line_width(line) <= max(width, 19) for line in lines[start - 1 :])
    assert sum(line.startswith("       │ ") for line in text) <= 25
