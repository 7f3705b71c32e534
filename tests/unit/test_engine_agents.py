"""Agents with a language model in the engine's loop: a scripted model, a real session, a fake evaluation."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    PRICE,
    SEED,
    STAGE_A,
    STAGE_B,
    WINDOW,
    WORKLOAD,
    ScriptedModel,
    events_of,
    failing,
    run,
    stated,
    tunable,
)

from kerneltui.agents.model_port import (
    FailureKind,
    ModelFailure,
    Usage,
)
from kerneltui.agents.news import CallBegins, CallEnds
from kerneltui.agents.port import SearchView
from kerneltui.agents.slow_path import OfflineSlowPath
from kerneltui.engine.agent_desk import AgentDesk
from kerneltui.engine.opening import Start, load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import ModelCallEnded, ModelCallStarted, ProposalFailed
from kerneltui.model.candidate import AgentName, Origin, Phase
from kerneltui.model.command import ChooseModel
from kerneltui.model.event import (
    AcceptRule,
    BudgetSet,
    CandidateProposed,
    ConstraintKind,
    ConstraintSet,
    ModelChosen,
)
from kerneltui.model.state import fold
from kerneltui.session.repository import Session


def test_the_fast_path_goes_through_both_stages_and_the_slow_path_evolves(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")])
    state = run(folder, model)
    made = [c for c in state.candidates.values() if c.id != state.base]
    assert [(c.agent, c.origin, c.phase) for c in made[:2]] == [
        (AgentName.FAST, Origin.TRANSFORM, Phase.MEASURED),
        (AgentName.FAST, Origin.TRANSFORM, Phase.MEASURED),
    ]
    assert made[0].reason.startswith("stage A: ")
    assert made[1].reason.startswith("stage B: ")
    assert any("communication: all_gather" in message.text for message in state.messages)
    assert [call.purpose for call in model.asked[:3]] == [
        "analyse the seed",
        "stage A from c0000",
        "stage B from c0001",
    ]
    assert made[0].calls == (1, 2)
    assert state.spent(made[0].calls).micro_usd == PRICE
    message = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%B", made[0].sha],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "Kerneltui-Model: model-x-1" in message
    assert "Kerneltui-Tokens: 300" in message
    assert "Kerneltui-Cost: $0.01" in message


def test_a_failed_gate_is_diagnosed_and_repaired(folder: Path) -> None:
    repaired = {**STAGE_A, "rewrite": STAGE_A["rewrite"].replace("stage_a", "stage_a2")}
    model = ScriptedModel(
        [DESCRIBED, STAGE_A, {"diagnosis": "rank 1 reads too early"}, repaired, STAGE_B]
    )
    state = run(folder, model, FakeEvaluator(fail=failing("stage_a ", 1)))
    purposes = [call.purpose for call in model.asked]
    assert purposes[2] == "diagnose c0001"
    assert "rank 1 is wrong" in model.asked[3].turns[0].text
    assert "rank 1 reads too early" in model.asked[3].turns[0].text
    assert state.candidates["c0001"].phase is Phase.FAILED
    assert state.candidates["c0002"].parents == ("c0001",)
    assert any("rank 1 reads too early" in message.text for message in state.messages)


def test_what_cannot_be_applied_goes_back_with_the_reason(folder: Path) -> None:
    edits = [{"search": "no such line", "replace": "y"}]
    wrong = {"reason": "x", "directive": stated(WINDOW), "edits": edits}
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, wrong, tunable("x", "1")])
    state = run(folder, model)
    repair = next(call for call in model.asked if call.purpose.endswith("repair 1"))
    assert "no such line" in repair.turns[-1].text or "not" in repair.turns[-1].text
    assert state.candidates["c0003"].phase is Phase.MEASURED
    assert len(state.candidates["c0003"].calls) == 2


def test_attempts_that_come_to_nothing_are_events_and_end_after_a_few(folder: Path) -> None:
    failure = ModelFailure(FailureKind.REFUSED, "the model declined", model="model-x", micro_usd=7)
    model = ScriptedModel([failure])
    state = run(folder, model)
    found = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert [event.agent for event in found] == ["fast"] * 5 + ["slow"] * 5
    assert found[0].reason == "refused: the model declined"
    assert state.spent().micro_usd == 7 * len(model.asked)
    assert state.ended == "the search has nothing left to propose"


def test_a_model_that_the_server_does_not_know_is_asked_once_in_each_role(folder: Path) -> None:
    no_such = "no such model model-x at host, /model ROLE NAME to change"
    model = ScriptedModel([ModelFailure(FailureKind.UNKNOWN_MODEL, no_such, model="model-x")])
    state = run(folder, model)
    found = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert [(event.agent, event.reason) for event in found] == [
        ("fast", f"unknown_model: {no_such}"),
        ("slow", f"unknown_model: {no_such}"),
    ]
    assert state.ended == "the search has nothing left to propose"
    with Session.open(folder, writable=True) as session:
        recorder = Recorder(session, load_state(session), "kernel.cpp", lambda *_: None)
        recorder.record(ModelChosen(at=state.at + 1, role="fast", model="model-y"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=1, time_ns=None))
    again = run(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1)
    assert again.candidates["c0001"].agent is AgentName.FAST, "another model ends the rest"


def test_a_model_without_a_price_is_taken_with_a_warning(folder: Path) -> None:
    def choose() -> None:
        if not model.chosen:
            terminal = Terminal(Place(folder, WORKLOAD, exists=True))
            model.price = None
            assert terminal.ask(ChooseModel("slow", "gateway-x"))["ok"]
            model.price = PRICE
            assert terminal.ask(ChooseModel("judge", "model-y"))["ok"]
            terminal.socket.close()

    model = ScriptedModel([DESCRIBED, STAGE_A], before=choose)
    state = run(folder, model, candidates=1, money=10**9)
    warned = [m.text for m in state.messages if m.agent == "engine" and "no price" in m.text]
    assert len(warned) == 1
    assert warned[0].startswith("no price of gateway-x is known: what it costs is unknown, and")
    assert "a budget in money cannot limit it" in warned[0]
    assert state.models == {"slow": "gateway-x", "judge": "model-y"}


def test_no_call_goes_over_the_budget(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")])
    state = run(folder, model, candidates=30, money=2 * PRICE)
    assert state.spent().micro_usd <= 2 * PRICE
    assert "of the budget of $0.02 are used" in state.ended
    warned = [message.text for message in state.messages if message.agent == "engine"]
    assert "50 % of the budget of $0.02 is used" in warned
    assert model.budgets[-1] == 2 * PRICE


def test_a_model_without_a_price_is_not_free(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B], price=None)
    state = run(folder, model, candidates=2)
    assert state.spent().text == "price unknown"


def test_the_journal_folds_to_the_live_state(folder: Path) -> None:
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")]))
    assert fold(events_of(folder)).canonical() == state.canonical()


def test_a_call_that_nobody_saw_the_end_of_counts_with_all_it_may_have_cost(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(
            ModelCallStarted(
                at=state.at + 1, number=99, agent="slow", role="slow", model="model-x",
                purpose="diff of c0002", reserved_micro_usd=123_456,
            )
        )  # fmt: skip
        recorder.record(BudgetSet(at=state.at + 2, candidates=2, time_ns=None, micro_usd=200_000))
    state = run(folder, ScriptedModel([tunable("x", "1")]), candidates=2)
    assert state.calls["99"].outcome == "lost"
    assert state.spent([99]).micro_usd == 123_456
    (warned,) = [m.text for m in state.messages if "of the budget of" in m.text]
    assert warned == "50 % of the budget of $0.20 is used"
    ends = [e for e in events_of(folder) if isinstance(e, ModelCallEnded) and e.number == 99]
    assert len(ends) == 1


def test_an_agent_thinks_while_an_evaluation_runs(folder: Path) -> None:
    running, thought = threading.Event(), threading.Event()
    evaluator = FakeEvaluator(block=thought)
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")])

    def before() -> None:
        if len(model.asked) >= 2 and evaluator.calls:
            running.set()
        if len(model.asked) >= 1:
            thought.set()

    model.before = before
    run(folder, model, evaluator)
    assert thought.is_set()


def test_marks_that_are_not_proven_come_to_nothing_with_the_lines(folder: Path) -> None:
    hidden = {**STAGE_A, "rewrite": SEED.replace("struct State {", "struct State { int more;")}
    model = ScriptedModel([DESCRIBED, hidden])
    run(folder, model)
    failed = next(event for event in events_of(folder) if isinstance(event, ProposalFailed))
    assert "outside of every evolve region" in failed.reason
    assert "now: struct State { int more;" in failed.detail
    assert [call.purpose for call in model.asked[1:5]] == [
        "stage A from c0000", *(f"stage A from c0000, repair {n}" for n in (1, 2, 3))
    ]  # fmt: skip


@pytest.mark.parametrize("agents", ["claude", "offline"])
def test_with_one_rank_the_search_waits_for_no_kernel_that_moves_data(
    folder: Path, agents: str
) -> None:
    model = ScriptedModel([ModelFailure(FailureKind.REFUSED, "no")])
    setup = EngineSetup(
        Place(folder, WORKLOAD.parent / "gemm", exists=False),
        Start("cuda", agents, 1, AcceptRule.AUTO, 4, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
        make_model=lambda calls: model,
    )
    state, _, failure = run_engine(setup)
    assert failure is None and state.ended == "the budget of 4 candidates is used"
    made = [c for c in state.candidates.values() if c.id != state.base]
    assert {c.agent for c in made} == {AgentName.SLOW}
    assert made[0].seed_file == "gemm_sm90.cu" and Origin.TUNABLES in {c.origin for c in made[1:]}
    assert state.handover is None


def test_island_and_arm_of_a_proposal_are_in_its_commit_and_in_every_replay(folder: Path) -> None:
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")]))
    made = state.candidates["c0003"]
    assert (made.agent, made.arm, made.island) == (AgentName.SLOW, "model-x", 1)
    assert {c.island for c in state.candidates.values() if c.agent is not AgentName.SLOW} == {0}
    message = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%B", made.sha],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "Kerneltui-Island: 1" in message
    assert "Kerneltui-Arm: model-x" in message
    again = fold(events_of(folder))
    assert again.candidates["c0003"] == made
    assert again.canonical() == state.canonical()


def test_a_models_crossover_is_no_point_of_the_search(folder: Path) -> None:
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    landed = state.candidates["c0002"]
    crossed = CandidateProposed(
        at=state.at, id="c0003", sha="0" * 40, parents=("c0002", "c0001"), agent=AgentName.SLOW,
        origin=Origin.CROSSOVER, reason="both ideas", directive=landed.directive, generation=3,
        seed_file=landed.seed_file, configuration={**landed.configuration, "MR": "4"},
        calls=(1,), arm="model-x",
    )  # fmt: skip
    state.apply(crossed)
    shapes = [shape.dimensions for shape in state.shapes]
    view = SearchView(state, lambda name: WINDOW, shapes, "kernel.cpp")
    search = OfflineSlowPath(1, 40)
    for name, refused in (
        ("c0002", ()),
        ("c0003", ("pin: c0003 is no choice of values of c0002",)),
    ):
        pin = ConstraintSet(at=state.at, kind=ConstraintKind.PIN, field="", value=name)
        state.apply(pin)
        assert search.propose(view) is not None
        assert search.refusals() == refused


@pytest.fixture
def desk(folder: Path) -> Iterator[AgentDesk]:
    """A desk over a session that has a budget of a dollar, with two calls under way."""
    run(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1, money=10 * PRICE)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        budget = BudgetSet(at=state.at, candidates=2, time_ns=None, micro_usd=1_000_000)
        recorder.record(budget)
        desk = AgentDesk(recorder, lambda *_: None)
        for agent in (AgentName.FAST, AgentName.SLOW):
            desk.handle(CallBegins(agent, "slow", "model-x", "diff of c0001", 450_000))
        yield desk


def warnings_of(desk: AgentDesk) -> list[str]:
    messages = desk.recorder.state.messages
    return [m.text.partition(" of the")[0] for m in messages if "of the budget of $1.00" in m.text]


def test_a_level_of_the_budget_is_told_with_two_calls_under_way(desk: AgentDesk) -> None:
    first, second = [int(key) for key in desk.recorder.state.calls][-2:]
    desk.handle(CallEnds(AgentName.FAST, first, "ok", "model-x", Usage(), 400_000, 1))
    assert warnings_of(desk) == []
    desk.handle(CallEnds(AgentName.SLOW, second, "ok", "model-x", Usage(), 100_000, 1))
    assert warnings_of(desk) == ["50 %"]


def test_a_level_that_a_lower_budget_reaches_is_told(desk: AgentDesk) -> None:
    first = [int(key) for key in desk.recorder.state.calls][-2]
    state = desk.recorder.state
    half = BudgetSet(at=state.at, candidates=2, time_ns=None, micro_usd=2_000_000)
    whole = BudgetSet(at=state.at, candidates=2, time_ns=None, micro_usd=1_000_000)
    desk.recorder.record(half)
    desk.warn()
    desk.handle(CallEnds(AgentName.FAST, first, "ok", "model-x", Usage(), 850_000, 1))
    assert warnings_of(desk) == []
    desk.recorder.record(whole)
    desk.warn()
    desk.warn()
    assert warnings_of(desk) == ["80 %"]
