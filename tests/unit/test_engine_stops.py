"""What ends a thought or a stage: interrupts, the end of the search, faults of the harness."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    SEED,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    events_of,
    failing,
    hand_overs,
    marked,
    noting,
    run,
    tunable,
)

from kerneltui.agents.fast_path import landing_point
from kerneltui.agents.hand_over import hand_over
from kerneltui.agents.model_port import (
    Chunk,
    ChunkKind,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    Usage,
)
from kerneltui.agents.port import SearchView
from kerneltui.engine.opening import load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.model.agent_event import ModelCallEnded, ProposalFailed
from kerneltui.model.candidate import Failure, Phase
from kerneltui.model.command import Interrupt, SetBudget, Steer, StopEngine
from kerneltui.model.event import (
    BudgetSet,
    CandidateFailed,
    EvaluationInterrupted,
    EvaluationStarted,
    PauseSet,
    SearchEnded,
)
from kerneltui.model.measurement import FailureKind as Bad
from kerneltui.model.measurement import Stage
from kerneltui.model.state import fold
from kerneltui.session.repository import Session


def test_an_interrupt_says_whose_thought_it_ends(folder: Path) -> None:
    asked = threading.Event()
    told: list[Any] = []

    def slow(call: ModelCall) -> dict[str, Any]:
        def interrupt() -> None:
            terminal = Terminal(Place(folder, WORKLOAD, exists=True))
            told.append(terminal.ask(Interrupt()))
            terminal.socket.close()
            asked.set()

        if not told:
            threading.Thread(target=interrupt).start()
            assert asked.wait(60)
        return DESCRIBED

    run(folder, ScriptedModel([slow, STAGE_A, STAGE_B]), candidates=1)
    assert told[0]["data"]["text"] == "interrupting what fast thinks about (analyse the seed)"


def test_a_message_and_ctrl_c_cut_the_thought_and_the_evaluation_goes_on(folder: Path) -> None:
    evaluator = FakeEvaluator(block=threading.Event())
    block = evaluator.block
    assert block is not None
    block.set()
    told: list[dict[str, Any]] = []
    questions: list[str] = []

    def cut_the_thought() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.wait(lambda s: "c0003" in s.candidates and s.candidates["c0003"].build_ns > 0)
        terminal.ask(Steer("slow", "fewer barriers, please"))
        told.append(terminal.ask(Interrupt())["data"])
        terminal.socket.close()

    def cut_the_evaluation() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        told.append(terminal.ask(Interrupt())["data"])
        terminal.wait(lambda s: s.candidates["c0003"].phase is Phase.INTERRUPTED)
        block.set()
        terminal.socket.close()

    class Model(ScriptedModel):
        def ask(
            self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
        ) -> ModelReply:
            if call.role is Role.SLOW:
                questions.append(call.turns[0].text)
                if len(questions) == 1:
                    block.clear()  # its proposal is evaluated until it is interrupted
                if len(questions) == 2:
                    threading.Thread(target=cut_the_thought).start()
                    assert ended(stop)
                    raise ModelFailure(FailureKind.STOPPED, "stopped")
                if len(questions) == 3:
                    threading.Thread(target=cut_the_evaluation).start()
                    assert block.wait(60)
            return ScriptedModel.ask(self, call, hear, stop)

    def ended(stop: Callable[[], bool]) -> bool:
        end = time.monotonic() + 60
        while not (stop() or block.wait(0.01)):
            if time.monotonic() > end:
                return False
        return True

    state = run(
        folder, Model([DESCRIBED, STAGE_A, STAGE_B, noting("none")]), evaluator, candidates=4
    )
    assert told[0]["text"].startswith("interrupting what slow thinks about (")
    assert told[0]["left"] == "the evaluation of c0003"
    assert told[1] == {"text": "interrupting the evaluation of c0003", "left": ""}
    assert [text.count("message 1: fewer barriers") for text in questions[:3]] == [0, 0, 1]
    assert state.candidates["c0003"].phase is Phase.INTERRUPTED
    assert state.candidates["c0004"].phase is Phase.MEASURED
    assert state.steers[0].candidate == "c0004"


def test_a_stage_that_is_interrupted_is_proposed_anew(folder: Path) -> None:
    evaluator = FakeEvaluator(block=threading.Event())
    another = {**STAGE_A, "rewrite": marked(SEED, "stage_a2")}
    model = ScriptedModel([DESCRIBED, STAGE_A, another, STAGE_B, tunable("x", "1")])

    def before() -> None:
        assert evaluator.block is not None
        if len(model.asked) == 2:  # the second question about stage A
            evaluator.block.set()

    model.before = before
    evaluator.interrupt()
    state = run(folder, model, evaluator, candidates=4)
    assert state.candidates["c0001"].phase is Phase.INTERRUPTED
    made = [(c.reason.split(":")[0], c.phase) for c in state.candidates.values()][2:4]
    assert made == [("stage A", Phase.MEASURED), ("stage B", Phase.MEASURED)]
    assert [call.purpose for call in model.asked[1:3]] == ["stage A from c0000"] * 2


def test_an_interrupted_stage_that_is_queued_again_is_waited_for(folder: Path) -> None:
    evaluator = FakeEvaluator(block=threading.Event())
    evaluator.interrupt()
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A]), evaluator, candidates=1)
    assert state.candidates["c0001"].phase is Phase.INTERRUPTED
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(BudgetSet(at=state.at + 1, candidates=2, time_ns=None))
    model = ScriptedModel([STAGE_B])
    state = run(folder, model, candidates=2)
    assert state.candidates["c0001"].phase is Phase.MEASURED
    assert [call.purpose for call in model.asked] == ["stage B from c0001"]


def test_a_fault_of_the_harness_is_no_repair_and_the_kernel_is_measured_again(folder: Path) -> None:
    evaluator = FakeEvaluator(fail=failing("stage_a", 2, Bad.HARNESS_FAULT))
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")])
    state = run(folder, model, evaluator, candidates=3)
    assert [call.purpose for call in model.asked][:3] == [
        "analyse the seed", "stage A from c0000", "stage B from c0001",
    ]  # fmt: skip
    assert state.candidates["c0001"].attempt == 3
    assert state.candidates["c0001"].measurement is not None
    assert state.handover is not None and "0 failed attempts" in state.handover.text
    faults = [e for e in events_of(folder) if isinstance(e, CandidateFailed)]
    assert [fault.failure.kind for fault in faults] == [Bad.HARNESS_FAULT] * 2


def test_fault_after_fault_of_the_harness_asks_nobody_and_is_left_to_the_human(
    folder: Path,
) -> None:
    evaluator = FakeEvaluator(fail=failing("stage_a", 3, Bad.HARNESS_FAULT))
    model = ScriptedModel([DESCRIBED, STAGE_A])
    state = run(folder, model, evaluator, candidates=5)
    assert state.ended == "3 faults of the harness in a row: C[0, 0] on rank 1 is wrong"
    assert len(model.asked) == 2 and len(state.candidates) == 2
    # Gone on with, it is neither repaired nor diagnosed: the step is asked for anew.
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(PauseSet(at=state.at + 1, paused=False))
    anew = ScriptedModel([{**STAGE_A, "rewrite": marked(SEED, "another")}, STAGE_B])
    state = run(folder, anew, candidates=3)
    assert [call.purpose for call in anew.asked][:2] == ["stage A from c0000", "stage B from c0002"]


def test_a_landing_point_that_the_harness_failed_on_stays_one(folder: Path) -> None:
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")]), candidates=3)
    view = SearchView(state, lambda name: "", [], "kernel.cpp")
    fault = Failure(Stage.BENCHMARK, Bad.HARNESS_FAULT, "a baseline failed")
    state.apply(CandidateFailed(at=state.at, id="c0002", failure=fault))
    landed = landing_point(view)
    assert landed is not None and landed.id == "c0002"


def test_a_landing_point_stays_one_while_it_is_measured_again_and_is_handed_over_once(
    folder: Path,
) -> None:
    state = run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")]), candidates=4)
    view = SearchView(state, lambda name: "", [], "kernel.cpp")
    again = EvaluationStarted(at=state.at, id="c0002", attempt=2, against="c0001", rebench=True)
    state.apply(again)
    landed = landing_point(view)
    assert landed is not None and (landed.id, landed.phase) == ("c0002", Phase.MEASURING)
    assert hand_over(view) is None
    state.apply(EvaluationInterrupted(at=state.at, id="c0002"))
    assert landing_point(view) == state.candidates["c0002"]
    wrong = Failure(Stage.VERIFY, Bad.MISMATCH, "C[0, 0] on rank 1 is wrong")
    state.apply(CandidateFailed(at=state.at, id="c0002", failure=wrong))
    landed = landing_point(view)
    assert landed is not None and landed.id == "c0003"
    assert hand_over(view) is None, "what was learned was told"


class Endless(ScriptedModel):
    """Answers only when it is told to stop; `before` runs meanwhile."""

    def ask(
        self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
    ) -> ModelReply:
        threading.Thread(target=self.before).start()
        while not stop():
            threading.Event().wait(0.01)
        hear(Chunk(ChunkKind.TEXT, "cut in the mid"))
        cut = Usage(100, 5)
        raise ModelFailure(FailureKind.STOPPED, "stopped", usage=cut, micro_usd=1_234)


def test_the_end_of_the_search_ends_what_is_thought(folder: Path) -> None:
    def no_more_time() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.ask(SetBudget(None, 1))
        terminal.wait(lambda state: state.calls["1"].outcome)
        terminal.ask(StopEngine())
        terminal.socket.close()

    state = run(folder, Endless([DESCRIBED], before=no_more_time), leave=False)
    assert "minutes is used" in state.ended
    ends = [event for event in events_of(folder) if isinstance(event, ModelCallEnded | SearchEnded)]
    assert [type(event) for event in ends] == [SearchEnded, ModelCallEnded]


def test_a_call_that_a_clean_stop_cuts_is_booked_with_what_it_has_cost(folder: Path) -> None:
    def end() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.ask(StopEngine())
        terminal.socket.close()

    state = run(folder, Endless([DESCRIBED], before=end))
    assert [call.outcome for call in state.calls.values()] == ["stopped"]
    assert state.spent().micro_usd == 1_234
    events = events_of(folder)
    assert fold(events).canonical() == state.canonical()
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    assert "lost" not in {e.outcome for e in events_of(folder) if isinstance(e, ModelCallEnded)}


def test_stops_of_the_human_do_not_make_a_path_give_up(folder: Path) -> None:
    stops = [ModelFailure(FailureKind.STOPPED, "stopped") for _ in range(6)]
    model = ScriptedModel([*stops, DESCRIBED, STAGE_A, STAGE_B])
    state = run(folder, model, candidates=2)
    failed = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert [(event.agent, event.blameless) for event in failed] == [("fast", True)] * 6
    made = [c.reason.split(":")[0] for c in state.candidates.values()][1:]
    assert made == ["stage A", "stage B"]
    assert [told.candidate for told in hand_overs(folder)] in ([], ["c0002"])
