"""Repairs of the fast path in the engine's loop: what they are told, and what each stage takes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    SEED,
    STAGE_A,
    STAGE_B,
    WINDOW,
    WORKLOAD,
    ScriptedModel,
    events_of,
    failing,
    marked,
    run,
)

from kerneltui.agents.model_notes import NotesPlan, write_notes
from kerneltui.agents.model_port import (
    Chunk,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
)
from kerneltui.agents.thinking import Talk
from kerneltui.engine.opening import load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.model.agent_event import ModelCallEnded, ProposalFailed
from kerneltui.model.candidate import AgentName, Phase
from kerneltui.model.command import Interrupt, Steer
from kerneltui.model.directive import Backend
from kerneltui.model.event import (
    BudgetSet,
    ConstraintKind,
    ConstraintSet,
    Decided,
    Decision,
    SteerDelivered,
    Steered,
)
from kerneltui.session.repository import Session

BAD = {**STAGE_B, "reason": "stores too early", "rewrite": marked(WINDOW, "bad")}
DIAGNOSIS = {"diagnosis": "the flag comes before the data"}
GATHER = "if (ctx->host->all_gather("


def failed_stage_b(folder: Path) -> None:
    """A session whose stage A passed and whose stage B failed."""
    model = ScriptedModel([DESCRIBED, STAGE_A, BAD])
    state = run(folder, model, FakeEvaluator(fail=failing("bad", 1)), candidates=2)
    assert state.candidates["c0002"].phase is Phase.FAILED


def test_a_repair_is_told_what_the_human_says_and_what_its_stage_asks_for(folder: Path) -> None:
    failed_stage_b(folder)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="fast", text="never a barrier"))
        recorder.record(Steered(at=state.at + 1, number=2, to="all", text="goal: the tall shape"))
        ban = ConstraintSet(
            at=state.at + 1, kind=ConstraintKind.BAN, field="placement", value="persistent"
        )
        recorder.record(ban)
        turned_down = Decided(
            at=state.at + 1, action=Decision.REJECT, candidate="c0002", by="human",
            sha=state.candidates["c0002"].sha, main=state.main, note="the region is too large",
        )  # fmt: skip
        recorder.record(turned_down)
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    model = ScriptedModel([DIAGNOSIS, {**STAGE_B, "answer": "none is left"}])
    state = run(folder, model, candidates=3)
    assert [call.purpose for call in model.asked] == ["diagnose c0002", "stage B from c0002"]
    asked = model.asked[1].turns[0].text
    assert "message 1: never a barrier" in asked
    assert "the goal in force: the tall shape" in asked
    assert "ban: placement persistent" in asked
    assert "the region is too large" in asked
    assert "Stage B. Replace the host collectives" in asked
    assert "all_gather (C → C, made by gemm, used by caller)" in asked
    assert "as the directive says: lsa thread sequential world" in asked
    assert "the flag comes before the data" in asked and "static const int bad" in asked
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert (told[0].number, told[0].agent, told[0].candidate) == (1, "fast", "c0003")
    assert told[0].answer == "none is left"
    trailers = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%(trailers:key=Kerneltui-Steer)",
         "refs/kerneltui/candidates/c0003"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert 'Kerneltui-Steer: 1 "never a barrier"' in trailers


def test_a_repair_of_stage_a_is_told_the_rules_of_stage_a(folder: Path) -> None:
    again = {**STAGE_A, "rewrite": marked(SEED, "stage_a2")}
    model = ScriptedModel([DESCRIBED, STAGE_A, DIAGNOSIS, again, STAGE_B])
    run(folder, model, FakeEvaluator(fail=failing("stage_a ", 1)), candidates=2)
    asked = model.asked[3].turns[0].text
    assert (
        "Repair it." in asked and "Stage A. Add what" in asked and "Stage B. Replace" not in asked
    )
    assert "the text of c0000, byte for byte" in asked
    assert "The directive that the next stage is to follow: lsa thread sequential world" in asked


def test_ctrl_c_cuts_a_repair_that_was_begun_before_the_message(folder: Path) -> None:
    failed_stage_b(folder)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    questions: list[tuple[Role, bool]] = []

    def say_it() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.ask(Steer("fast", "never a barrier"))
        terminal.ask(Interrupt())
        terminal.socket.close()

    class Model(ScriptedModel):
        def ask(
            self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
        ) -> ModelReply:
            questions.append((call.role, "never a barrier" in call.turns[0].text))
            if len(questions) == 2:
                threading.Thread(target=say_it).start()
                never = threading.Event()
                assert any(stop() or never.wait(0.01) for _ in range(2000))
                raise ModelFailure(FailureKind.STOPPED, "stopped")
            return ScriptedModel.ask(self, call, hear, stop)

    state = run(folder, Model([DIAGNOSIS, DIAGNOSIS, STAGE_B]), candidates=3)
    assert questions == [
        (Role.JUDGE, False), (Role.FAST, False), (Role.JUDGE, False), (Role.FAST, True)
    ]  # fmt: skip
    assert state.steers[0].candidate == "c0003"


def last_turn(call: ModelCall) -> str:
    assert "repair" in call.purpose
    return call.turns[-1].text


def test_stage_a_refuses_a_kernel_whose_ranks_move_the_data(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_B, STAGE_A, STAGE_B])
    state = run(folder, model, candidates=2)
    assert [call.purpose for call in model.asked[1:]] == [
        "stage A from c0000", "stage A from c0000, repair 1", "stage B from c0001"
    ]  # fmt: skip
    assert last_turn(model.asked[2]).startswith("This is stage A, in which the host still moves")
    assert "you stated lsa" in last_turn(model.asked[2])
    first = state.candidates["c0001"].directive
    assert first is not None and first.backend is Backend.HOST
    assert state.candidates["c0001"].reason == "stage A: asks for flags and keeps the collective"


def test_stage_a_that_never_keeps_the_host_comes_to_nothing(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_B])
    state = run(folder, model, candidates=1)
    failed = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert "This is stage A" in failed[0].reason and "you stated lsa" in failed[0].reason
    fast = [call.purpose for call in model.asked if call.role is Role.FAST]
    assert fast[1:5] == [
        "stage A from c0000", *(f"stage A from c0000, repair {n}" for n in (1, 2, 3))
    ]  # fmt: skip
    assert not any(c.agent is AgentName.FAST for c in state.candidates.values())


def test_stage_a_keeps_the_calls_of_the_collectives(folder: Path) -> None:
    line = next(line for line in SEED.splitlines() if GATHER in line)
    without = STAGE_A["rewrite"].replace(line, "    if (0)")
    model = ScriptedModel([DESCRIBED, {**STAGE_A, "rewrite": without}, STAGE_A])
    run(folder, model, candidates=1)
    assert "the code has no `host->all_gather` any more" in last_turn(model.asked[2])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({**STAGE_A, "rewrite": marked(SEED, "again")}, "you stated that the backend is host"),
        (
            {**STAGE_B, "rewrite": WINDOW.replace(
                "int kerneltui_run(", "int more(const kt_context *ctx) "
                "{ return ctx->host->barrier(ctx->host->self); }\nint kerneltui_run(")},
            "the code still has `host->barrier`",
        ),
    ],
    ids=["backend", "call"],
)  # fmt: skip
def test_stage_b_leaves_the_host_or_is_asked_again(
    folder: Path, answer: dict[str, Any], said: str
) -> None:
    assert answer["rewrite"] not in (SEED, WINDOW)
    model = ScriptedModel([DESCRIBED, STAGE_A, answer, STAGE_B])
    state = run(folder, model, candidates=2)
    told = last_turn(model.asked[3])
    assert told.startswith("This is stage B, in which the ranks move the data") and said in told
    assert state.candidates["c0002"].reason == "stage B: stores to the peers"
    assert not any(isinstance(event, ProposalFailed) for event in events_of(folder))


def test_a_diagnosis_that_the_budget_refuses_is_followed_by_no_repair(folder: Path) -> None:
    over = ModelFailure(FailureKind.BUDGET, "it could pass the limit", model="model-x")
    model = ScriptedModel([DESCRIBED, STAGE_A, over, STAGE_A])
    state = run(folder, model, FakeEvaluator(fail=failing("stage_a ", 9)), candidates=9)
    assert [call.purpose for call in model.asked][2:] == ["diagnose c0001"]
    assert "it could pass the limit" in state.ended
    ends = [event for event in events_of(folder) if isinstance(event, ModelCallEnded)]
    assert [event.outcome for event in ends] == ["ok", "ok", "budget"]


@pytest.mark.parametrize("kind", [FailureKind.BUDGET, FailureKind.REFUSED])
def test_lab_notes_that_the_budget_refuses_end_the_thought(kind: FailureKind) -> None:
    said: list[Any] = []

    def tell(news: Any) -> None:
        said.append(news)
        if hasattr(news, "answered"):
            news.answered.set()

    model = ScriptedModel([ModelFailure(kind, "no")])
    talk = Talk(AgentName.SLOW, model, tell, lambda: False)
    plan = NotesPlan((), "what was learned?", "", 8)
    if kind is FailureKind.BUDGET:
        with pytest.raises(ModelFailure, match="no"):
            write_notes(talk, plan)
    else:
        write_notes(talk, plan)
        assert said[-1].text == "no lab notes: no"
