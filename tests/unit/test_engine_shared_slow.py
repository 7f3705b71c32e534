"""A slow path that two models and the search share, on two islands, over real HTTP."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import engine_fakes
import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal
from loopback.script import Say, Step
from loopback.server import Loopback
from scripted_model import (
    DESCRIBED,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    events_of,
    noting,
    run,
)
from test_engine_loopback import KINDS, Session, idea, propose

from kerneltui.agents.agent_config import RoleModel
from kerneltui.agents.model_notes import NOTES_EVERY
from kerneltui.agents.model_port import FailureKind, ModelFailure, Role
from kerneltui.agents.news import Migrates
from kerneltui.engine.agent_desk import AgentDesk
from kerneltui.engine.opening import Start, load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import Migrated, Move, ProposalFailed
from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.command import ChooseModel, SetBudget, Steer, StopEngine
from kerneltui.model.event import (
    AcceptRule,
    CandidateFailed,
    CandidateMeasured,
    CandidateProposed,
    Event,
    ModelChosen,
    SteerDelivered,
)
from kerneltui.model.kernel import Kernel
from kerneltui.model.state import State, fold
from kerneltui.search.arms import OFFLINE, pulls_of, slot_micro_usd
from kerneltui.search.bandit import arm_records, choose_arm
from kerneltui.search.islands import home_of
from kerneltui.session.repository import Session as Session_

GOOD, POOR = "claude-sonnet-5-5", "claude-opus-5-5"


def cost(kernel: Kernel) -> float:
    """A kernel is 4 % faster for each good idea in it, and nothing else matters."""
    return 0.96 ** kernel.source.count("good_idea_")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "config"
    (config / "kerneltui").mkdir(parents=True)
    (config / "kerneltui" / "agents.toml").write_text("[islands]\ncount = 2\nmigrate_every = 4\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.setattr(engine_fakes, "cost", cost)
    return tmp_path / "session"


def fast_steps() -> list[Step]:
    return [
        Step("describe", expect=("^tool describe$",),
             say=(Say("tool", json.dumps(DESCRIBED), "describe"),)),
        Step("stage A", expect=("Stage A\\.",), say=(propose(**STAGE_A),)),
        Step("stage B", expect=("Stage B\\.",), say=(propose(**STAGE_B),)),
    ]  # fmt: skip


def slow_steps(model: str, word: str, count: int) -> list[Step]:
    """Answers of a model to every kind of question, each another program."""

    def answer(kind: Origin, number: int, question: str) -> list[Say]:
        fields = idea(kind, f"{word}_idea_{kind}_{number}", number, question)
        return [propose(reason=f"{word} {kind} {number}", **fields)]

    return [
        Step(f"{word} {kind} {number}", expect=(f"^model {model}$", asked),
             say=partial(answer, kind, number))
        for number in range(count)
        for kind, asked in KINDS.items()
    ]  # fmt: skip


def notes() -> Step:
    said = Say("tool", '{"notes": "none"}', "write_notes")
    return Step("notes", expect=("^tool write_notes$",), times=0, say=(said,))


def slow_of(state: State) -> list[Any]:
    return [c for c in state.candidates.values() if c.agent is AgentName.SLOW]


def test_two_models_and_the_search_share_the_slow_path(folder: Path) -> None:
    steps = [*fast_steps(), *slow_steps(GOOD, "good", 30), *slow_steps(POOR, "poor", 30), notes()]
    roles = {Role.SLOW: RoleModel(POOR, others=(GOOD,))}
    with Loopback(steps) as server:
        session = Session(
            folder, server, 36, roles=roles, evaluator=FakeEvaluator(), alone=False, ahead=0
        )
        state = session.run()
        assert not server.problems

    made = slow_of(state)
    pulled = Counter(candidate.arm for candidate in made)
    assert set(pulled) == {GOOD, POOR, OFFLINE}
    assert pulled[GOOD] > max(pulled[POOR], pulled[OFFLINE]), "it is the only one that helps"
    assert min(pulled.values()) >= 1
    models = {call.model for call in state.calls.values() if call.role == "slow"}
    assert models == {GOOD, POOR}
    for candidate in made:
        asked = {state.calls[str(number)].model for number in candidate.calls}
        assert asked == (set() if candidate.arm == OFFLINE else {candidate.arm})

    islands = Counter(candidate.island for candidate in made if candidate.calls)
    assert set(islands) == {1, 2}
    assert abs(islands[1] - islands[2]) <= 1
    events = events_of(folder)
    migrations = [event for event in events if isinstance(event, Migrated)]
    assert migrations
    for event in migrations:
        for move in event.moves:
            assert state.candidates[move.candidate].island not in move.to
            assert set(move.to) <= set(state.candidates[move.candidate].guest_of)

    crossed = [c for c in made if c.origin is Origin.CROSSOVER and c.calls]
    homes = [{home_of(state.candidates[p], 2) for p in c.parents} for c in crossed]
    assert all(len(c.parents) == 2 for c in crossed)
    between = [c for c, home in zip(crossed, homes, strict=True) if home == {1, 2}]
    assert between, "two islands were crossed"
    message = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%P%n%B", between[0].sha],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    parents = [state.candidates[name].sha for name in between[0].parents]
    assert message.splitlines()[0].split() == parents
    assert f"Kerneltui-Island: {between[0].island}\n" in message
    assert f"Kerneltui-Arm: {between[0].arm}\n" in message
    if between[0].inspirations:
        assert f"Kerneltui-Inspiration: {' '.join(between[0].inspirations)}\n" in message

    assert fold(events).canonical() == state.canonical()


def test_every_choice_of_an_arm_follows_from_the_journal(folder: Path) -> None:
    """Folding the events up to a proposal gives the arm that made it."""
    steps = [*fast_steps(), *slow_steps(GOOD, "good", 20), *slow_steps(POOR, "poor", 20), notes()]
    roles = {Role.SLOW: RoleModel(POOR, others=(GOOD,))}
    with Loopback(steps) as server:
        Session(
            folder, server, 16, roles=roles, evaluator=FakeEvaluator(), alone=False, ahead=0
        ).run()
    state, checked = State(), 0
    for event in events_of(folder):
        if isinstance(event, CandidateProposed) and event.arm:
            slot = slot_micro_usd(state)
            assert slot
            assert choose_arm((POOR, GOOD, OFFLINE), pulls_of(state), state.seed, slot) == event.arm
            checked += 1
        state.apply(event)
    assert checked >= 12


def test_a_model_that_only_fails_rests_and_the_others_go_on(folder: Path) -> None:
    declined = ModelFailure(FailureKind.REFUSED, "the model declined", model="bad", micro_usd=7)
    answer = noting("none")

    def slow(call: Any) -> Any:
        if call.model == "bad":
            raise declined
        return answer(call)

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    model.set_model(Role.SLOW, "bad model-x")
    state = run(folder, model, FakeEvaluator(), candidates=30, alone=False)
    failures = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    failed = [event for event in failures if event.arm == "bad"]
    assert 1 <= len(failed) <= 5
    pulled = Counter(candidate.arm for candidate in slow_of(state))
    assert set(pulled) == {"model-x", OFFLINE}
    assert len(state.candidates) == 31
    record = arm_records(("bad",), pulls_of(state))["bad"]
    assert (record.pulls, record.reward, record.micro_usd) == (len(failed), 0.0, 7)


def test_the_search_answers_messages_once_all_models_rest(folder: Path) -> None:
    sent: list[int] = []

    def write() -> None:
        slow = [call for call in model.asked if call.role is Role.SLOW]
        if slow and not sent:
            sent.append(len(model.asked))
            terminal = Terminal(Place(folder, WORKLOAD, exists=True))
            terminal.ask(Steer("slow", "fewer barriers"))
            terminal.socket.close()

    declined = ModelFailure(FailureKind.REFUSED, "the model declined", model="bad", micro_usd=7)
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, declined], before=write)
    state = run(folder, model, FakeEvaluator(), candidates=16, alone=False)
    steer = state.steers[0]
    assert steer.delivered_to == "slow"
    assert steer.answer.startswith("the models rest; the offline search cannot read prose")
    events = events_of(folder)
    failed = [i for i, event in enumerate(events) if isinstance(event, ProposalFailed)]
    told = [i for i, event in enumerate(events) if isinstance(event, SteerDelivered)]
    assert len(told) == 1 and told[0] > failed[4], "it waited for the models until all of them rest"


def test_the_humans_choice_of_a_model_replaces_the_list(folder: Path) -> None:
    chosen: list[int] = []

    def questions() -> list[str]:
        slow = [call for call in model.asked if call.role is Role.SLOW]
        return [call.model for call in slow if "repair" not in call.purpose]

    def choose() -> None:
        if len(questions()) == 2 and not chosen:
            chosen.append(len(model.asked))
            terminal = Terminal(Place(folder, WORKLOAD, exists=True))
            terminal.ask(ChooseModel("slow", "mine"))
            terminal.socket.close()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")], before=choose)
    model.set_model(Role.SLOW, "model-x model-y")
    state = run(folder, model, candidates=14)
    assert any(isinstance(event, ModelChosen) for event in events_of(folder))
    assert questions()[:2] == ["model-x", "model-y"], "each once"
    assert len(questions()) > 4
    assert set(questions()[3:]) == {"mine"}, "the third was under way when the choice came"
    assert slow_of(state)[-1].arm == "mine"


def test_the_search_fills_in_while_a_model_thinks_where_candidates_are_not_limited(
    folder: Path,
) -> None:
    """The model's question is only answered once the search has proposed."""
    place = Place(folder, WORKLOAD, exists=False)
    filled = threading.Event()
    stopping: list[threading.Thread] = []

    def before() -> None:
        if len(model.asked) > 2:
            assert filled.wait(60)

    def heard(event: Event, state: State) -> None:
        if isinstance(event, CandidateProposed) and event.arm == OFFLINE:
            filled.set()
        over = len(state.candidates) > 600  # then it fails below
        made = isinstance(event, CandidateProposed) and event.arm == "model-x"
        if (made or over) and not stopping:
            stopping.append(threading.Thread(target=stop))
            stopping[0].start()

    def stop() -> None:
        terminal = Terminal(place)
        terminal.ask(SetBudget(candidates=1, time_ns=None))
        terminal.socket.close()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")], before=before)
    setup = EngineSetup(
        place,
        Start("cpu", "claude", 1, AcceptRule.AUTO, None, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
        make_model=lambda calls: model,
        on_event=heard,
    )
    state, reason, _ = run_engine(setup)
    stopping[0].join()
    arms = [candidate.arm for candidate in slow_of(state)]
    failed = [event for event in events_of(folder) if isinstance(event, ProposalFailed)]
    assert all(event.blameless for event in failed), "at most what the end has cut"
    assert arms.index(OFFLINE) < arms.index("model-x")
    assert "budget of 1 candidates" in reason


def test_lab_notes_never_follow_lab_notes_however_fast_results_come(folder: Path) -> None:
    """Each answer with notes waits until there are enough results for the next ones."""
    place = Place(folder, WORKLOAD, exists=False)
    heard, results = threading.Condition(), 0

    def hear(event: Event, state: State) -> None:
        nonlocal results
        if isinstance(event, CandidateMeasured | CandidateFailed):
            with heard:
                results += 1
                heard.notify_all()

    def wait() -> None:
        with heard:
            wanted = results + NOTES_EVERY
            enough = heard.wait_for(lambda: results >= wanted, 60)
        if not enough or sum(call.role is Role.META for call in model.asked) == 3:
            terminal = Terminal(place)
            terminal.ask(StopEngine())
            terminal.socket.close()
        assert enough

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none", wait)])
    setup = EngineSetup(
        place,
        Start("cpu", "claude", 1, AcceptRule.AUTO, None, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
        make_model=lambda calls: model,
        on_event=hear,
    )
    _, _, failure = run_engine(setup)
    assert failure is None
    roles = [call.role for call in model.asked]
    assert roles.count(Role.META) == 3
    assert (Role.META, Role.META) not in pairwise(roles)


def test_a_session_without_a_model_has_neither_islands_nor_arms(folder: Path) -> None:
    state = run(folder, ScriptedModel([STAGE_A]), candidates=6, agents="offline")
    assert len(slow_of(state)) > 2
    assert b'"island"' not in state.canonical()
    assert b'"arm"' not in state.canonical()
    assert not [event for event in events_of(folder) if isinstance(event, Migrated)]


def test_a_migration_that_was_told_twice_is_recorded_once(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    moves = (Move("c0002", (2,)),)
    with Session_.open(folder, writable=True) as session:
        state = load_state(session)
        path = "kernels/gemm_allgather/kernel.cpp"
        recorder = Recorder(session, state, path, lambda *_: None)
        desk = AgentDesk(recorder, lambda *_: None)
        desk.handle(Migrates(8, moves))
        desk.handle(Migrates(9, moves))  # made from the state before the first was recorded
    found = [event for event in events_of(folder) if isinstance(event, Migrated)]
    assert [event.results for event in found] == [8]


def test_one_rank_has_no_fast_path(folder: Path) -> None:
    model = ScriptedModel([noting("none")])
    gemm = WORKLOAD.parent / "gemm"
    setup = EngineSetup(
        Place(folder, gemm, exists=False),
        Start("cuda", "claude", 1, AcceptRule.AUTO, 3, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
        make_model=lambda calls: model,
        models_alone=True,
    )
    _, _, failure = run_engine(setup)
    assert failure is None
    assert model.asked
    assert {call.role for call in model.asked} == {Role.SLOW}
