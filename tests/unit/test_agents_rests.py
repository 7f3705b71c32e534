"""Models that their server wants to be left alone: who goes on meanwhile, and what ends it."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    events_of,
    failing,
    noting,
    run,
)

from kerneltui.agents.model_notes import NOTES_EVERY
from kerneltui.agents.model_port import FailureKind, ModelCall, ModelFailure, Role
from kerneltui.agents.rests import Rests, rest_text
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import ProposalFailed
from kerneltui.model.candidate import AgentName
from kerneltui.model.command import SetPaused, StopEngine
from kerneltui.model.event import AcceptRule
from kerneltui.model.state import State
from kerneltui.search.arms import OFFLINE

DAY_MS = 86_400_000
SHORT_MS = 300


def limited(milliseconds: int) -> ModelFailure:
    return ModelFailure(FailureKind.OVERLOADED, "429 rate limited", wait_ms=milliseconds)


def slow_arms(state: State) -> list[str]:
    return [c.arm for c in state.candidates.values() if c.agent is AgentName.SLOW]


def failures(folder: Path) -> list[ProposalFailed]:
    return [event for event in events_of(folder) if isinstance(event, ProposalFailed)]


def connected(place: Place) -> Terminal:
    """A terminal, once the engine listens."""
    while True:
        try:
            return Terminal(place)
        except OSError:
            time.sleep(0.02)


def timed(model: ScriptedModel) -> list[float]:
    """When each question of a model came."""
    times: list[float] = []
    model.before = lambda: times.append(time.time())
    return times


def test_a_rest_is_over_when_its_time_has_come_or_the_human_wants_that() -> None:
    now = [1_000.0]
    rests = Rests(lambda: now[0])
    rests.begin("a", 60_000)
    rests.begin("a", 10_000)
    rests.begin("b", 20_000)
    assert (rests.until("a"), rests.until("b"), rests.until("c")) == (1_060, 1_020, None)
    assert rests.until("b", 1_020) is None
    rests.end(["a"])
    assert (rests.until("a"), rests.until("b")) == (None, 1_020)
    rests.end()
    assert rests.until("b") is None


def test_the_line_has_the_day_if_that_is_another() -> None:
    now = time.mktime((2026, 11, 30, 14, 0, 0, 0, 0, -1))
    assert rest_text(now + 320, now) == "rests until 14:05:20: the server asked for that"
    assert rest_text(now + 12 * 3600, now).startswith("rests until 2026-12-01 02:00: ")


def test_the_search_goes_on_while_the_only_model_is_left_alone(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, limited(DAY_MS)])
    state = run(folder, model, candidates=9, alone=False)
    assert len([call for call in model.asked if call.role is Role.SLOW]) == 1
    assert slow_arms(state) == [OFFLINE] * 7
    assert state.ended == "the budget of 9 candidates is used"


def test_another_model_goes_on(folder: Path) -> None:
    answer = noting("none")

    def slow(call: ModelCall) -> Any:
        if call.model == "limited":
            raise limited(DAY_MS)
        return answer(call)

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    model.set_model(Role.SLOW, "limited model-x")
    state = run(folder, model, candidates=6)
    assert [call.model for call in model.asked].count("limited") == 1
    assert slow_arms(state) == ["model-x"] * 4


def test_with_nobody_else_a_long_rest_ends_the_search_with_its_reason(folder: Path) -> None:
    model = ScriptedModel([limited(DAY_MS)])
    state = run(folder, model)
    assert len(model.asked) == 1
    assert state.ended.startswith("fast rests until ")
    assert state.ended.endswith(": the server asked for that, and nothing else can propose")
    assert [event.reason for event in failures(folder)] == ["overloaded: 429 rate limited"]


def test_who_pauses_and_goes_on_has_the_model_asked_all_the_same(folder: Path) -> None:
    model = ScriptedModel([limited(DAY_MS), DESCRIBED, STAGE_A])
    setup = EngineSetup(
        Place(folder, WORKLOAD, exists=False),
        Start("cpu", "claude", 1, AcceptRule.AUTO, 1, None),
        Options(undecided=None),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
        on_progress=lambda progress: said.append(f"{progress.about} {progress.text}"),
        make_model=lambda calls: model,
        models_alone=True,
    )
    said: list[str] = []
    thread = threading.Thread(target=run_engine, args=(setup,), daemon=True)
    thread.start()
    terminal = connected(setup.place)
    try:
        terminal.wait(lambda state: state.ended)
        assert len(model.asked) == 1
        assert terminal.ask(SetPaused(True))["ok"] and terminal.ask(SetPaused(False))["ok"]
        terminal.wait(lambda state: "budget of 1 candidates" in state.ended)
    finally:
        terminal.ask(StopEngine())
        terminal.socket.close()
        thread.join(20)
    assert [call.purpose for call in model.asked[1:]] == ["analyse the seed", "stage A from c0000"]
    assert any(re.match("fast rests until .*: the server asked for that$", line) for line in said)


def test_a_short_rest_is_waited_for(folder: Path) -> None:
    model = ScriptedModel([limited(SHORT_MS), DESCRIBED, STAGE_A, STAGE_B])
    times = timed(model)
    state = run(folder, model, candidates=2)
    assert times[1] - times[0] >= SHORT_MS / 1000
    assert len(state.candidates) == 3
    assert state.ended == "the budget of 2 candidates is used"


def test_no_repair_is_asked_of_the_model_whose_diagnosis_was_put_off(folder: Path) -> None:
    """Judge and fast path ask the same model; that it was not asked again is nobody's fault."""
    repaired = {**STAGE_A, "rewrite": STAGE_A["rewrite"].replace("stage_a", "stage_a2")}
    diagnosis = {"diagnosis": "rank 1 reads too early"}
    model = ScriptedModel([DESCRIBED, STAGE_A, limited(2_000), diagnosis, repaired])
    times = timed(model)
    state = run(folder, model, FakeEvaluator(fail=failing("stage_a ", 1)), candidates=2)
    purposes = [call.purpose for call in model.asked]
    assert purposes[2:] == ["diagnose c0001", "diagnose c0001", "stage A from c0001"]
    assert times[3] - times[2] >= 2
    (put_off,) = failures(folder)
    assert put_off.blameless and put_off.reason.startswith("resting: model-x rests until ")
    assert state.candidates["c0002"].parents == ("c0001",)


def test_no_lab_notes_are_asked_of_a_model_that_is_to_be_left_alone(folder: Path) -> None:
    """The slow path asks another one and goes on."""
    answer = noting("none")

    def slow(call: ModelCall) -> Any:
        if call.role is Role.META:
            raise limited(DAY_MS)
        return answer(call)

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    model.set_model(Role.META, "small")
    state = run(folder, model, candidates=3 * NOTES_EVERY)
    assert [call.role for call in model.asked].count(Role.META) == 1
    said = [message.text for message in state.messages if "lab notes" in message.text]
    assert said == ["no lab notes: 429 rate limited"]
