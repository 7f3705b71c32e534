"""When nothing more is paid for: pauses, ends of budgets, withdrawn calls, what a stop leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    PRICE,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    events_of,
    noting,
    recording,
)
from scripted_model import run as run_to_the_end

from kerneltui.agents.model_port import (
    Chunk,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    Usage,
)
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import (
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.candidate import Phase
from kerneltui.model.command import Command, Progress, SetBudget, SetPaused, Steer, StopEngine
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    BudgetSet,
    CandidateProposed,
    PauseSet,
    SteerDelivered,
    Steered,
)
from kerneltui.model.state import State, fold

MINUTE = 60 * 10**9


def run(
    folder: Path,
    model: ScriptedModel,
    evaluator: FakeEvaluator,
    *,
    candidates: int = 9,
    leave: bool = False,
    hear: Callable[[Progress], None] = lambda progress: None,
) -> State:
    """An engine that goes on after the end of its search, unless it is to leave."""
    setup = EngineSetup(
        Place(folder, WORKLOAD, exists=(folder / ".git").exists()),
        Start("cpu", "claude", 1, AcceptRule.AUTO, candidates, None, micro_usd=100 * PRICE),
        Options(undecided=None, leave_when_done=leave),
        lambda workload, spec: evaluator,
        take_signals=False,
        make_model=lambda calls: model,
        models_alone=True,
        on_progress=hear,
    )
    state, _, failure = run_engine(setup)
    assert failure is None
    return state


def tell(folder: Path, *commands: Command) -> None:
    """Gives commands as a terminal does."""
    terminal = Terminal(Place(folder, WORKLOAD, exists=True))
    for command in commands:
        assert terminal.ask(command)["ok"]
    terminal.socket.close()


def unheard_of(call: ModelCall) -> dict[str, Any]:
    """An edit of lines that are not there, so it goes back."""
    good = noting("none")(call)
    return {**good, "edits": [{"search": "nowhere(to);", "replace": "here();"}]}


def test_a_pause_holds_the_next_call_and_the_thought_goes_on_after_it(folder: Path) -> None:
    good = noting("none")
    too_early: list[str] = []
    goes_on = threading.Event()

    def slow(call: ModelCall) -> dict[str, Any]:
        if call.purpose.endswith("repair 1"):
            if not goes_on.is_set():
                too_early.append(call.purpose)
                resume()
            return good(call)
        tell(folder, SetPaused(True))
        return unheard_of(call)

    def resume() -> None:
        goes_on.set()
        threading.Thread(target=tell, args=(folder, SetPaused(False))).start()

    def hear(progress: Progress) -> None:
        if progress.kind == "stream" and progress.text.startswith("paused"):
            resume()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    state = run(folder, model, FakeEvaluator(), candidates=3, leave=True, hear=hear)
    assert not too_early
    events = events_of(folder)
    assert not any(isinstance(event, ProposalFailed) for event in events), "nothing is lost"
    first = next(n for n, event in enumerate(events) if isinstance(event, PauseSet))
    kinds = (PauseSet, ModelCallStarted, ModelCallEnded, CandidateProposed)
    after = [type(event) for event in events[first:] if isinstance(event, kinds)]
    assert after == [
        PauseSet,
        ModelCallEnded,
        PauseSet,
        ModelCallStarted,
        ModelCallEnded,
        CandidateProposed,
    ]
    assert state.candidates["c0003"].phase is Phase.MEASURED
    assert fold(events).canonical() == state.canonical()


class Evaluating(ScriptedModel):
    """The slow path's first kernel is evaluated until `block`; its second question is answered by a stop."""

    def __init__(self, block: threading.Event) -> None:
        super().__init__([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
        self.block = block
        self.slow = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(
        self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
    ) -> ModelReply:
        if call.role is Role.SLOW:
            self.slow += 1
        if self.slow == 1:
            self.block.clear()
        if self.slow < 2:
            return ScriptedModel.ask(self, call, hear, stop)
        threading.Thread(target=self.meanwhile).start()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if stop():
                raise ModelFailure(FailureKind.STOPPED, "stopped", usage=Usage(9), micro_usd=7)
            threading.Event().wait(0.01)
        raise AssertionError("it was not cut")


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (SetBudget(2, None), "the budget of 2 candidates is used"),
        (SetBudget(None, 1), "minutes is used"),
        (SetBudget(None, None, PRICE), "/budget raises it"),
    ],
    ids=["candidates", "time", "money"],
)
@pytest.mark.parametrize("paused", [False, True])
def test_the_end_of_a_budget_cuts_thoughts_while_an_evaluation_runs(
    folder: Path, budget: SetBudget, why: str, paused: bool
) -> None:
    evaluator = FakeEvaluator(block=threading.Event())
    assert evaluator.block is not None
    evaluator.block.set()
    model = Evaluating(evaluator.block)
    phases: list[Phase] = []

    def no_more() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.wait(lambda state: "c0003" in state.candidates)
        if paused:
            terminal.ask(SetPaused(True))
        terminal.ask(budget)
        terminal.wait(lambda state: all(call.outcome for call in state.calls.values()))
        phases.append(terminal.state.candidates["c0003"].phase)
        model.block.set()
        if paused:
            terminal.ask(SetPaused(False))
        terminal.wait(lambda state: state.ended)
        terminal.ask(StopEngine())
        terminal.socket.close()

    model.meanwhile = no_more
    state = run(folder, model, evaluator)
    assert phases and phases[0] is not Phase.MEASURED, "its evaluation still ran"
    assert why in state.ended
    assert model.slow == 2
    events = events_of(folder)
    ends = [event.outcome for event in events if isinstance(event, ModelCallEnded)]
    assert ends == ["ok"] * 4 + ["stopped"]
    failed = [event for event in events if isinstance(event, ProposalFailed)]
    # Whoever goes on after a pause wants refused calls to be asked for again, and that is refused again.
    assert len(failed) <= 1 + paused
    assert all(event.blameless for event in failed)
    assert state.fruitless == {}
    assert state.candidates["c0003"].phase is Phase.MEASURED


def told_while_a_proposal_waits(folder: Path, *commands: Command) -> tuple[ScriptedModel, State]:
    """Tells the engine something once the slow path's second proposal waits under an evaluation."""
    block = threading.Event()
    block.set()
    answer = noting("none")
    slow_calls: list[ModelCall] = []

    def slow(call: ModelCall) -> dict[str, Any]:
        block.clear()
        slow_calls.append(call)
        return answer(call)

    def hear(progress: Progress) -> None:
        if len(slow_calls) == 2 and (progress.about, progress.text) == ("slow", "1 ready"):
            threading.Thread(target=tell, args=(folder, *commands)).start()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    return model, run(folder, model, FakeEvaluator(block=block), hear=hear)


def test_proposals_that_wait_at_a_stop_are_candidates_of_the_next_sitting(folder: Path) -> None:
    model, state = told_while_a_proposal_waits(folder, StopEngine())
    asked = len(model.asked)
    assert state.candidates["c0004"].phase is Phase.PROPOSED
    used = {number for candidate in state.candidates.values() for number in candidate.calls}
    assert used == {int(key) for key in state.calls}, "every paid reply is in a candidate"
    assert fold(events_of(folder)).canonical() == state.canonical()

    with recording(folder) as recorder:
        recorder.record(BudgetSet(at=recorder.state.at, candidates=4, time_ns=None))
    state = run(folder, model, FakeEvaluator(), leave=True)
    assert len(model.asked) == asked
    assert state.candidates["c0004"].phase is Phase.MEASURED


def test_a_proposal_beyond_the_budget_is_told_at_a_stop(folder: Path) -> None:
    _, state = told_while_a_proposal_waits(folder, SetBudget(3, None), StopEngine())
    assert list(state.candidates)[-1] == "c0003"
    (failed,) = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert failed.reason == "made, but the budget of 3 candidates is used: idea 1"
    assert failed.calls == (int(list(state.calls)[-1]),)
    assert failed.blameless


def test_messages_to_a_path_that_has_landed_are_answered(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run_to_the_end(folder, model, candidates=2)
    with recording(folder) as recorder:
        recorder.record(Steered(at=recorder.state.at, number=1, to="fast", text="fewer barriers"))
        recorder.record(Steered(at=recorder.state.at, number=2, to="all", text="be quick"))
        recorder.record(BudgetSet(at=recorder.state.at, candidates=3, time_ns=None))

    def end() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.wait(lambda state: state.ended)
        terminal.ask(Steer("fast", "and later?"))  # also once the search has ended
        terminal.wait(lambda state: state.steers[2].answer)
        terminal.ask(StopEngine())
        terminal.socket.close()

    def hear(progress: Progress) -> None:
        if progress.kind == "calibration" and not thread.is_alive():
            thread.start()

    thread = threading.Thread(target=end)
    state = run(folder, model, FakeEvaluator(), hear=hear)
    thread.join(20)
    landed = "landed at c0002; write to @slow"
    assert [(s.delivered_to, s.candidate) for s in state.steers] == [
        ("fast", ""),
        ("slow fast", "c0003"),
        ("fast", ""),
    ]
    assert state.steers[0].answer == state.steers[2].answer == landed
    assert state.steers[1].answer.endswith("\nlanded at c0002")
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert len(told) == 4, "once each"


def test_a_budget_of_time_counts_earlier_sittings(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run_to_the_end(folder, model, candidates=2)
    with recording(folder) as recorder:
        at = recorder.state.at
        recorder.record(BudgetSet(at=at, candidates=9, time_ns=30 * MINUTE))
        recorder.record(AgentMessage(at=at + 29 * MINUTE, agent="engine", text="time goes by"))
        recorder.record(BudgetSet(at=at + 31 * MINUTE, candidates=9, time_ns=30 * MINUTE))
    asked = len(model.asked)
    state = run(folder, model, FakeEvaluator(), leave=True)
    assert state.ended == "the budget of 30 minutes is used"
    assert len(model.asked) == asked
    assert not any(isinstance(event, ModelCallGrew) for event in events_of(folder))
