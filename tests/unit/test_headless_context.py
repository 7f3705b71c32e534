"""`kerneltui context` prints what an engine that goes on with the session asks next."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scripted_model import (
    DESCRIBED,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    noting,
    run,
)

from kerneltui.agents.directive_rows import features_of, rows_text, unknown_of
from kerneltui.agents.model_port import ModelCall, Role
from kerneltui.agents.tool_schema import wire_schema
from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.engine.opening import load_state
from kerneltui.engine.recorder import Recorder
from kerneltui.headless.context import context
from kerneltui.model.event import BudgetSet
from kerneltui.session.repository import Session


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "config" / "kerneltui"
    config.mkdir(parents=True)
    (config / "agents.toml").write_text("[islands]\ncount = 3\n[search]\nahead = 0\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    return tmp_path / "session"


def budget(folder: Path, candidates: int | None, time_ns: int | None = None) -> None:
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(BudgetSet(at=state.at + 1, candidates=candidates, time_ns=time_ns))


def printed(capsys: pytest.CaptureFixture[str], session: Path | None, agent: str = "slow") -> str:
    capsys.readouterr()
    context(WORKLOAD, session=session, target=None, agent=agent)
    return capsys.readouterr().out


def check(text: str, call: ModelCall) -> None:
    """All that a call says is printed, and counted."""
    for block in call.system:
        assert block.text in text
    for turn in call.turns:
        assert turn.text in text
    for tool in call.in_request:
        shown = text.split(f"──── tool {tool.name}", 1)[1].split("────")[0]
        assert f"\n\n{tool.description}\n\n" in shown
        schema = shown.split(tool.description, 1)[1].lstrip()
        assert json.JSONDecoder().raw_decode(schema)[0] == wire_schema(tool.schema)
    parts = [int(n.replace(",", "")) for n in re.findall(r"^──── .*about ([\d,]+) tok", text, re.M)]
    assert len(parts) == len(call.system) + len(call.turns) + len(call.in_request)
    assert f"\nabout {sum(parts):,} tokens in all" in text


def test_it_is_the_next_question_on_the_islands_of_the_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run(folder, model, candidates=5)
    for candidates in (6, 7, 8):
        budget(folder, candidates)
        text = printed(capsys, folder)
        before = len(model.asked)
        run(folder, model, candidates=candidates)
        call = model.asked[before]
        assert call.role is Role.SLOW
        check(text, call)
        assert "not asked now" not in text and "without --session" not in text


def test_the_time_that_is_used_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the end of the budget one other kernel is shown, at its begin three."""
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")]), candidates=14)
    shown: list[int] = []
    for time_ns in (10**18, 1):
        budget(folder, None, time_ns)
        shown.append(printed(capsys, folder).count("\nHow it differs from c0"))
    assert shown == [3, 1]


def test_without_a_session_this_machine_is_told_and_what_nobody_knows_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel([DESCRIBED])
    text = printed(capsys, None, "fast")
    run(folder, model, candidates=1)
    call = model.asked[0]
    assert call.turns[0].text in text and call.system[0].text in text
    machine = text.split("## This machine\n\n", 1)[1].split("\n\n", 1)[0]
    assert [line.partition(":")[0] for line in machine.splitlines()] == [
        "- clocks",
        "- compiler",
        "- cores",
        "- kernel",
        "- machine",
        "- python",
    ]
    assert "\nwithout --session nobody knows, and it is not in there: rates, bounds" in text
    assert "not asked now" not in text
    slow = printed(capsys, None)
    assert "\nnot asked now: the slow path begins once the fast path has landed" in slow


def test_a_path_that_has_done_its_part_asks_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    assert "\nnot asked now: landed at c0002" in printed(capsys, folder, "fast")
    with pytest.raises(WorkloadUnfit, match="is of target cpu, not cuda"):
        context(WORKLOAD, session=folder, target="cuda", agent="fast")


def test_no_row_is_told_that_depends_on_a_gpu_nobody_looked_at() -> None:
    known = features_of("cuda", 2, ["sm_90a"])
    words = ["gin:", "no"]
    told = rows_text(features_of("cuda", 2, words), unknown_of("cuda", words))
    assert told and set(told.splitlines()) <= set(
        rows_text(known, unknown_of("cuda", ["sm_90a"])).splitlines()
    )
    older = features_of("cuda", 2, ["sm_80"])
    assert set(told.splitlines()) < set(
        rows_text(older, unknown_of("cuda", ["sm_80"])).splitlines()
    )
    assert not unknown_of("cpu", words)
