"""When nothing more is paid for: pauses, ends of budgets, withdrawn calls, what a stop leaves behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
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
)
from scripted_model import run as run_to_the_end

from kerneltui.agents.model_port import (
    Chunk,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    Turn,
    Usage,
)
from kerneltui.agents.news import CallBegins, CallEnds, CallGrows, Thought
from kerneltui.agents.thinking import Thinker
from kerneltui.engine.agent_desk import AgentDesk
from kerneltui.engine.opening import Start, load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.search_clock import SearchClock, sittings
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import (
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.candidate import AgentName, Phase
from kerneltui.model.command import (
    Command,
    Progress,
    SetBudget,
    SetPaused,
    Steer,
    StopEngine,
)
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    BudgetSet,
    CandidateProposed,
    PauseSet,
    SearchEnded,
    SessionOpened,
    SessionResumed,
    SteerDelivered,
    Steered,
)
from kerneltui.model.state import State, fold
from kerneltui.session.repository import Session

KERNEL = "kernels/gemm_allgather/kernel.cpp"
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
        for _ in range(1000):
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

    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, KERNEL, lambda *_: None)
        recorder.record(BudgetSet(at=state.at, candidates=4, time_ns=None))
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
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, KERNEL, lambda *_: None)
        recorder.record(Steered(at=state.at, number=1, to="fast", text="fewer barriers"))
        recorder.record(Steered(at=state.at, number=2, to="all", text="be quick"))
        recorder.record(BudgetSet(at=state.at, candidates=3, time_ns=None))

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


# -- the desk


@pytest.fixture
def desk(folder: Path) -> Iterator[AgentDesk]:
    """A desk over a session that has gone on, in which no call is open."""
    run_to_the_end(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, KERNEL, lambda *_: None)
        recorder.record(BudgetSet(at=state.at, candidates=9, time_ns=None, micro_usd=10**7))
        yield AgentDesk(recorder, lambda *_: None)


def begins(desk: AgentDesk) -> CallBegins:
    """A call of the slow path that was told to the desk."""
    news = CallBegins(AgentName.SLOW, "slow", "model-x", "diff of c0001", 70_000)
    desk.handle(news)
    return news


def pause(desk: AgentDesk, paused: bool) -> None:
    desk.recorder.record(PauseSet(at=desk.recorder.state.at, paused=paused))


def test_no_call_begins_once_a_budget_is_used_or_the_search_has_ended(desk: AgentDesk) -> None:
    before = desk.recorder.state.position
    desk.over = lambda: "the budget of 3 candidates is used"
    news = begins(desk)
    assert (news.refused, news.kind) == (desk.over(), FailureKind.BUDGET)
    assert news.answered.is_set()
    assert desk.recorder.state.position == before
    assert not desk.refused, "what is used is looked up each time"
    desk.over = lambda: ""
    desk.recorder.record(SearchEnded(at=desk.recorder.state.at, reason="all is tried"))
    news = begins(desk)
    assert (news.refused, news.kind) == ("the search has ended: all is tried", FailureKind.STOPPED)
    assert desk.recorder.state.position == before + 1


def test_while_paused_no_call_begins_and_none_is_asked_again(desk: AgentDesk) -> None:
    running = begins(desk)
    pause(desk, True)
    held, grows = begins(desk), CallGrows(AgentName.SLOW, running.number, 140_000)
    desk.handle(grows)
    before = desk.recorder.state.position
    desk.go_on()  # as after another budget: it is still paused
    assert not held.answered.is_set()
    assert not grows.answered.is_set()
    assert desk.recorder.state.position == before
    pause(desk, False)
    desk.go_on()
    assert held.again
    assert held.answered.is_set()
    assert not held.number, "it is asked anew, since the model may be another one now"
    assert grows.answered.is_set()
    assert desk.recorder.state.calls[str(running.number)].reserved_micro_usd == 140_000


def test_a_call_that_ends_while_it_waits_to_be_asked_again_does_not_grow(desk: AgentDesk) -> None:
    running = begins(desk)
    pause(desk, True)
    desk.handle(CallGrows(AgentName.SLOW, running.number, 140_000))
    end = CallEnds(AgentName.SLOW, running.number, "stopped", "model-x", Usage(), 0, 1)
    desk.handle(end)
    pause(desk, False)
    before = desk.recorder.state.position
    desk.go_on()
    assert desk.recorder.state.position == before


def thinking(inbox: queue.SimpleQueue[Any], model: ScriptedModel) -> Thinker:
    """A thinker that has told that it wants to ask, and waits."""
    thinker = Thinker(AgentName.SLOW, model, inbox.put)
    call = ModelCall(Role.SLOW, (), [Turn("user", "?")], purpose="diff of c0001")
    thinker.start("c0001", lambda talk: talk.ask(call) and None)
    return thinker


def told(inbox: queue.SimpleQueue[Any]) -> list[Any]:
    """All that a thought tells, to its end."""
    news = [inbox.get(timeout=20)]
    while not isinstance(news[-1], Thought):
        news.append(inbox.get(timeout=20))
    return news


@pytest.mark.parametrize("paused", [False, True])
def test_a_call_that_is_withdrawn_before_it_was_made_holds_no_money(
    desk: AgentDesk, paused: bool
) -> None:
    state, model = desk.recorder.state, ScriptedModel([{}])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    spent = state.spent()
    pause(desk, paused)
    thinker = thinking(inbox, model)
    thinker.interrupt()
    for news in told(inbox):  # the engine was busy until the thought had ended
        desk.handle(news)
    pause(desk, False)
    desk.go_on()
    assert not model.asked
    assert all(call.outcome for call in state.calls.values())
    assert (state.spent().micro_usd, state.spent().reserved) == (spent.micro_usd, 0)
    granted = [call for call in state.calls.values() if call.purpose == "diff of c0001"]
    assert [(call.outcome, call.attempts) for call in granted] == [("stopped", 0)] * (not paused)
    assert not thinker.busy


def test_after_a_pause_the_model_of_now_is_asked(desk: AgentDesk) -> None:
    model = ScriptedModel([{}])
    model.quote = lambda call: (model.models(call.role)[0], PRICE)  # type: ignore[method-assign]
    model.ask = lambda call, hear, stop: ModelReply(  # type: ignore[method-assign]
        "", (), "", Usage(1), 1
    )
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pause(desk, True)
    thinking(inbox, model)
    desk.handle(inbox.get(timeout=20))
    model.set_model(Role.SLOW, "model-y")
    pause(desk, False)
    desk.go_on()
    desk.handle(inbox.get(timeout=20))
    for news in told(inbox):
        desk.handle(news)
    assert [c.model for c in list(desk.recorder.state.calls.values())[-1:]] == ["model-y"]


# -- time


def opened(at: int) -> SessionOpened:
    return SessionOpened(
        at=at, session="s", workload="w", title="", target="cpu", ranks=2, seed=1, agents="claude",
        rule=AcceptRule.NONE, base="c0000", base_sha="0", seed_file="host.cpp", shapes=(),
        workload_hash="",
    )  # fmt: skip


def test_time_counts_while_an_engine_runs_and_the_search_goes_on() -> None:
    events = [
        opened(at=0),
        PauseSet(at=3 * MINUTE, paused=True),
        AgentMessage(at=50 * MINUTE, agent="engine", text="still paused"),
        PauseSet(at=60 * MINUTE, paused=False),
        SearchEnded(at=62 * MINUTE, reason="all is tried"),
        BudgetSet(at=90 * MINUTE, candidates=9, time_ns=None),
        AgentMessage(at=94 * MINUTE, agent="engine", text="the last word"),
        SessionResumed(at=900 * MINUTE),
        AgentMessage(at=901 * MINUTE, agent="engine", text="the clock is set back"),
        AgentMessage(at=800 * MINUTE, agent="engine", text="now"),
        AgentMessage(at=802 * MINUTE, agent="engine", text="later"),
    ]
    assert sittings(events) == [9 * MINUTE, 3 * MINUTE]


def test_the_clock_stands_while_the_search_is_paused_or_over(desk: AgentDesk) -> None:
    recorder, now = desk.recorder, [0]
    clock = SearchClock(recorder, lambda: now[0])
    before = clock.used_ns()
    now[0] = MINUTE
    pause(desk, True)
    clock.look()
    now[0] = 30 * MINUTE
    clock.look()
    pause(desk, False)
    clock.look()
    now[0] = 31 * MINUTE
    recorder.record(SearchEnded(at=recorder.state.at, reason="all is tried"))
    clock.look()
    now[0] = 90 * MINUTE
    assert clock.used_ns() - before == 2 * MINUTE


def test_a_budget_of_time_counts_earlier_sittings(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run_to_the_end(folder, model, candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, KERNEL, lambda *_: None)
        at = state.at
        recorder.record(BudgetSet(at=at, candidates=9, time_ns=30 * MINUTE))
        recorder.record(AgentMessage(at=at + 29 * MINUTE, agent="engine", text="time goes by"))
        recorder.record(BudgetSet(at=at + 31 * MINUTE, candidates=9, time_ns=30 * MINUTE))
    asked = len(model.asked)
    state = run(folder, model, FakeEvaluator(), leave=True)
    assert state.ended == "the budget of 30 minutes is used"
    assert len(model.asked) == asked
    assert not any(isinstance(event, ModelCallGrew) for event in events_of(folder))
