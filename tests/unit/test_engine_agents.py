"""Agents with a language model in the engine's loop: a scripted model, a real session, a fake evaluation."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import FakeEvaluator
from loopback.asked import added_line, parent_in, stated_of
from test_engine_loop import Terminal

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
    ToolUse,
    Usage,
)
from kerneltui.agents.news import CallBegins, CallEnds
from kerneltui.agents.port import SearchView
from kerneltui.agents.slow_path import OfflineSlowPath
from kerneltui.engine.agent_desk import AgentDesk
from kerneltui.engine.opening import Start, load_state, read_events
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import HandedOver, ModelCallEnded, ModelCallStarted, ProposalFailed
from kerneltui.model.candidate import AgentName, Failure, Origin, Phase
from kerneltui.model.command import ChooseModel, Interrupt, SetBudget, Steer, StopEngine, WriteNotes
from kerneltui.model.event import (
    AcceptRule,
    BudgetSet,
    CandidateFailed,
    CandidateProposed,
    ConstraintKind,
    ConstraintSet,
    EvaluationInterrupted,
    EvaluationStarted,
    ModelChosen,
    NotesWritten,
    PauseSet,
    SearchEnded,
    SteerDelivered,
    Steered,
)
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import FailureKind as Bad
from kerneltui.model.measurement import Stage
from kerneltui.model.state import State, fold
from kerneltui.session.repository import Session

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "workloads" / "gemm_allgather"
SEED = (ROOT / "kernels" / "gemm_allgather" / "host.cpp").read_text()
WINDOW = (ROOT / "kernels" / "gemm_allgather" / "window.cpp").read_text()
PRICE = 10_000
HOST = {
    "backend": "host",
    "issuer": "dedicated",
    "placement": "sequential",
    "sync": "world",
    "chunk_bytes": 0,
}
Answer = dict[str, Any] | ModelFailure | Callable[[ModelCall], dict[str, Any]]


def stated(source: str) -> dict[str, Any]:
    """The directive that a kernel's comments declare."""
    return stated_of(parse_kernel(source))


def marked(source: str, mark: str) -> str:
    """The same kernel as another program: one more region with a token of its own."""
    include = "#include <kerneltui/kernel.h>\n"
    region = f"// kerneltui: evolve begin {mark}\nstatic const int {mark} = 1;\n// kerneltui: evolve end\n"
    return source.replace(include, include + region)


DESCRIBED = {
    "collectives": [
        {
            "name": "all_gather",
            "reads": "C",
            "writes": "C",
            "producer": "gemm",
            "consumer": "caller",
        }
    ],
    "directive": stated(WINDOW),
}
STAGE_A = {
    "reason": "asks for flags and keeps the collective",
    "directive": HOST,
    "rewrite": marked(SEED, "stage_a"),
}
STAGE_B = {"reason": "stores to the peers", "directive": stated(WINDOW), "rewrite": WINDOW}


def tunable(name: str, value: str) -> Callable[[ModelCall], dict[str, Any]]:
    """A diff that a model could write: another default of a tunable is frozen text, so it edits a region."""

    def answer(call: ModelCall) -> dict[str, Any]:
        text = call.turns[0].text
        parent = parent_in(text)
        return {
            "reason": f"{name} {value}",
            "directive": stated_of(parent),
            "answer": "as you wish" if "message 1" in text else "",
            "edits": [added_line(parent, f"/* {name} {value} */ ;")],
        }

    return answer


@dataclass
class ScriptedModel:
    """Answers in order; the last answer again and again."""

    answers: list[Answer]
    asked: list[ModelCall] = field(default_factory=list)
    budgets: list[int | None] = field(default_factory=list)
    price: int | None = PRICE
    before: Callable[[], None] = lambda: None

    chosen: dict[Role, str] = field(default_factory=dict)

    def set_model(self, role: Role, model: str) -> None:
        self.chosen[role] = model

    def models(self, role: Role) -> Sequence[str]:
        return tuple(self.chosen.get(role, "model-x").split())

    def quote(self, call: ModelCall) -> tuple[str, int | None]:
        return call.model or self.models(call.role)[0], self.price

    def ask(
        self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
    ) -> ModelReply:
        self.before()
        self.asked.append(call)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ModelFailure):
            raise answer
        found = answer(call) if callable(answer) else answer
        hear(Chunk(ChunkKind.TEXT, "thinking aloud"))
        use = ToolUse(call.tools[0].name, found)
        cost = None if self.price is None else self.price // 2
        return ModelReply("", (use,), "model-x-1", Usage(100, 50), cost)

    def set_budget(self, micro_usd: int | None) -> None:
        self.budgets.append(micro_usd)

    def close(self) -> None: ...


def run(
    folder: Path,
    model: ScriptedModel,
    evaluator: FakeEvaluator | None = None,
    *,
    candidates: int = 3,
    money: int | None = None,
    alone: bool = True,
    agents: str = "claude",
    rule: AcceptRule = AcceptRule.AUTO,
    leave: bool = True,
) -> State:
    place = Place(folder, WORKLOAD, exists=(folder / ".git").exists())
    start = Start("cpu", agents, 1, rule, candidates, None, micro_usd=money)
    setup = EngineSetup(
        place,
        start,
        Options(undecided=None, leave_when_done=leave),
        lambda workload, spec: evaluator or FakeEvaluator(),
        take_signals=False,
        make_model=lambda calls: model,
        models_alone=alone,
    )
    state, _, failure = run_engine(setup)
    assert failure is None
    return state


def events_of(folder: Path) -> list[Any]:
    with Session.open(folder, writable=False) as session:
        return list(read_events(session))


def failing(word: str, times: int, kind: Bad = Bad.MISMATCH) -> Callable[[Kernel], Failure | None]:
    """Fails kernels that have a word in them, so many times."""
    left = [times]

    def fail(kernel: Kernel) -> Failure | None:
        if word not in kernel.source or not left[0]:
            return None
        left[0] -= 1
        return Failure(Stage.VERIFY, kind, "C[0, 0] on rank 1 is wrong")

    return fail


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "session"


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


def test_a_message_is_part_of_the_next_question_and_is_answered(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="slow", text="fewer barriers"))
        long = "and chunks\nof 64 KiB, " + "please " * 40
        recorder.record(Steered(at=state.at + 2, number=2, to="all", text=long))
        recorder.record(BudgetSet(at=state.at + 3, candidates=3, time_ns=None))
    model = ScriptedModel([tunable("x", "1")])
    run(folder, model, candidates=3)
    assert "message 1: fewer barriers" in model.asked[0].turns[0].text
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [(e.number, e.agent, e.candidate, e.answer) for e in told] == [
        (1, "slow", "c0003", "as you wish"),
        (2, "slow", "c0003", "as you wish"),
        (2, "fast", "", "landed at c0002"),
    ]
    trailers = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%(trailers:key=Kerneltui-Steer)",
         "refs/kerneltui/candidates/c0003"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    assert trailers[0] == 'Kerneltui-Steer: 1 "fewer barriers"'
    assert trailers[1].startswith('Kerneltui-Steer: 2 "and chunks of 64 KiB, please please')
    assert trailers[1].endswith('…"') and len(trailers[1]) < 150


def test_a_proposal_that_breaks_a_force_or_a_ban_goes_back_with_the_reason(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        for kind, name, value in (("force", "TRANSFER", "push"), ("ban", "issuer", "warp")):
            asked = ConstraintSet(
                at=state.at + 1, kind=ConstraintKind(kind), field=name, value=value
            )
            recorder.record(asked)
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    edits = [{"search": "#define TRANSFER pull", "replace": "#define TRANSFER push"}]
    kept = {"reason": "push", "directive": stated(WINDOW), "edits": edits}
    model = ScriptedModel([tunable("x", "1"), kept])
    state = run(folder, model, candidates=3)
    assert [call.purpose.endswith("repair 1") for call in model.asked] == [False, True]
    assert "TRANSFER=push is forced, and this has pull" in model.asked[1].turns[-1].text
    assert state.candidates["c0003"].configuration["TRANSFER"] == "push"
    assert state.candidates["c0003"].phase is Phase.MEASURED


def test_hidden_shapes_and_wrong_answers_are_not_told(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B])
    run(folder, model, candidates=1)
    told = "\n".join(block.text for block in model.asked[0].system)
    assert "kt_requirements" in told
    assert '"tune"' in told
    assert '"hidden"' not in told
    assert "193" not in told
    assert "def library" in told
    assert "_stale_rank" not in told


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


def test_the_humans_goal_notes_and_choice_of_models_hold_in_a_resumed_session(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        for number, text in enumerate(("goal: save registers", "goal: the tall shape"), 1):
            recorder.record(Steered(at=state.at + 1, number=number, to="all", text=text))
            delivered = SteerDelivered(at=state.at + 1, number=number, agent="fast", answer="yes")
            recorder.record(delivered)
        recorder.record(NotesWritten(at=state.at + 1, text="# Notes\n\nKC 512 spills.\n"))
        recorder.record(ModelChosen(at=state.at + 1, role="slow", model="model-y"))
        recorder.record(BudgetSet(at=state.at + 1, candidates=3, time_ns=None))
    model = ScriptedModel([tunable("x", "1")])
    state = run(folder, model, candidates=3)
    question = model.asked[0]
    assert "- the goal in force: the tall shape" in question.turns[0].text
    assert "save registers" not in question.turns[0].text
    assert any("KC 512 spills." in block.text for block in question.system)
    assert {call.role: call.model for call in state.calls.values()}["slow"] == "model-x-1"
    began = [event for event in events_of(folder) if isinstance(event, ModelCallStarted)]
    assert began[-1].model == "model-y"


def test_the_search_beside_a_model_leaves_messages_to_it(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="slow", text="fewer barriers"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=12, time_ns=None))
    state = run(folder, ScriptedModel([tunable("x", "1")]), candidates=12, alone=False)
    by_search = [c for c in state.candidates.values() if c.agent is AgentName.SLOW and not c.calls]
    assert by_search, "the search proposed, too"
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [event.answer for event in told] == ["as you wish"]
    assert state.candidates[told[0].candidate].calls


def test_a_message_to_all_reaches_both_paths(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="all", text="fewer barriers"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    model = ScriptedModel([DESCRIBED, {**STAGE_B, "answer": "none\nleft"}, tunable("x", "1")])
    state = run(folder, model, candidates=3)
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [(event.agent, event.answer) for event in told] == [
        ("fast", "none\nleft"),
        ("slow", "as you wish"),
    ]
    steer = state.steers[0]
    assert (steer.delivered_to, steer.answer) == ("fast slow", "none left\nas you wish")
    assert not steer.waits_for("slow")


def noting(text: str, before: Callable[[], None] = lambda: None) -> Callable[[ModelCall], Any]:
    """Another program for every proposal, and notes when those are asked for."""
    made = iter(range(1000))

    def answer(call: ModelCall) -> dict[str, Any]:
        if call.tools[0].name == "write_notes":
            before()
            return {"notes": text}
        number, parent = next(made), parent_in(call.turns[0].text)
        edit = added_line(parent, f"static const int idea_{number} = 1;")
        return {"reason": f"idea {number}", "directive": stated_of(parent), "edits": [edit]}

    return answer


def test_after_the_landing_no_model_is_asked_about_what_the_host_drives(folder: Path) -> None:
    """The seed is still on main then: nobody has decided."""
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    state = run(folder, model, candidates=14, rule=AcceptRule.NONE)
    assert state.incumbent == state.base
    asked = " ".join(call.purpose for call in model.asked if call.role is Role.SLOW)
    assert "of c0002" in asked and "with c000" in asked
    assert "c0000" not in asked and "c0001" not in asked


def test_a_model_keeps_the_lab_notes(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("Flags per chunk help (c0002).")])
    state = run(folder, model, candidates=12)
    assert state.notes == "Flags per chunk help (c0002).\n"
    asked = [call for call in model.asked if call.purpose == "lab notes"]
    assert [str(call.role) for call in asked] == ["meta"]
    assert "- c0002 stage B: stores to the peers: " in asked[0].turns[0].text
    later = model.asked[model.asked.index(asked[0]) + 1]
    assert "Flags per chunk help" in "\n".join(block.text for block in later.system)
    written = [event for event in events_of(folder) if isinstance(event, NotesWritten)]
    assert [event.by for event in written] == ["fast", "slow"]
    assert fold(events_of(folder)).canonical() == state.canonical()


def test_what_the_human_writes_meanwhile_is_not_overwritten(folder: Path) -> None:
    def human() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.ask(WriteNotes("mine\n"))
        terminal.socket.close()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("the model's", human)])
    state = run(folder, model, candidates=12)
    assert state.notes == "mine\n"
    told = [m.text for m in state.messages if "lab notes not taken" in m.text]
    assert told == ["lab notes not taken: the human has changed them meanwhile"]


def test_what_the_lint_finds_is_kept_and_told_in_the_next_question(folder: Path) -> None:
    line = next(line for line in WINDOW.splitlines() if line.startswith("/* Tells all peers that"))
    clear = "inline void clear(const State &s) { std::memset(s.ctx->signals[0], 0, 8); }"
    wrong = {**STAGE_B, "rewrite": WINDOW.replace(line, f"{clear}\n{line}")}
    model = ScriptedModel([DESCRIBED, STAGE_A, wrong, {"diagnosis": "a flag is lost"}, STAGE_B])
    state = run(folder, model, FakeEvaluator(fail=failing("clear", 1)))
    (finding,) = state.candidates["c0002"].findings
    number = wrong["rewrite"].splitlines().index(clear) + 1
    assert finding.startswith(f"kernel.cpp:{number}: warn: D11: flags are reset: memset is called")
    judged, repaired = model.asked[3:5]
    assert finding in judged.turns[0].text and finding in repaired.turns[0].text
    assert state.candidates["c0003"].findings == ()
    proposed = [e for e in events_of(folder) if getattr(e, "findings", ())]
    assert [event.id for event in proposed] == ["c0002"]


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


def hand_overs(folder: Path) -> list[HandedOver]:
    return [event for event in events_of(folder) if isinstance(event, HandedOver)]


def test_the_fast_path_hands_over_what_it_learned_when_it_lands(folder: Path) -> None:
    repaired = {**STAGE_A, "rewrite": STAGE_A["rewrite"].replace("stage_a", "stage_a2")}
    diagnosis = {"diagnosis": "rank 1 reads too early"}
    model = ScriptedModel([DESCRIBED, STAGE_A, diagnosis, repaired, STAGE_B, tunable("x", "1")])
    state = run(folder, model, FakeEvaluator(fail=failing("stage_a ", 1)), candidates=4)
    (told,) = hand_overs(folder)
    assert (told.agent, told.candidate) == ("fast", "c0003")
    lines = told.text.splitlines()
    assert lines[0].startswith(
        "Landed at c0003 (stage B: stores to the peers), with 1 failed attempt."
    )
    assert lines[1] == "Communication: all_gather (C → C, made by gemm, used by caller)."
    assert lines[2].startswith("Directive in force: lsa thread sequential world ")
    assert "- c0002, stage A: asks for flags and keeps the collective" in told.text
    assert (
        "- c0001, stage A: asks for flags and keeps the collective: in verify (mismatch): "
        in told.text
    )
    assert "- c0001: rank 1 reads too early" in told.text
    assert state.handover == told
    assert state.notes is not None and state.notes.startswith("# Notes\n")
    assert state.notes.endswith(f"\n\n## Handed over by the fast path\n\n{told.text}\n")
    slow = next(call for call in model.asked if call.role is Role.SLOW)
    system = "\n".join(block.text for block in slow.system)
    assert system.count(told.text) == 1
    assert any(m.text.startswith("hands over: Landed at c0003") for m in state.messages)
    assert fold(events_of(folder)).canonical() == state.canonical()


def test_a_hand_over_is_told_once_and_outlives_the_lab_notes(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")]), candidates=3)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(NotesWritten(at=state.at + 1, text="mine\n"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=4, time_ns=None))
    model = ScriptedModel([noting("never asked")])
    run(folder, model, candidates=4)
    (told,) = hand_overs(folder)
    system = "\n".join(block.text for block in model.asked[0].system)
    assert f"## Handed over by the fast path\n\n{told.text}" in system
    assert "## Lab notes\n\nmine" in system


def test_after_twenty_failures_the_fast_path_hands_over_to_the_slow_path(folder: Path) -> None:
    made = iter(range(1000))

    def answer(call: ModelCall) -> dict[str, Any]:
        match call.tools[0].name:
            case "describe":
                return DESCRIBED
            case "diagnose":
                return {"diagnosis": "it reads too early"}
        if call.role is Role.SLOW:
            anchor = next(line for line in SEED.splitlines() if "(ctx->host->all_gather" in line)
            edit = {"search": anchor, "replace": f"/**/ if (0) {{}} int y{next(made)};\n{anchor}"}
            return {"reason": "another", "directive": HOST, "edits": [edit]}
        return {**STAGE_A, "rewrite": marked(SEED, f"stage_{next(made)}")}

    model = ScriptedModel([answer])
    fails = FakeEvaluator(fail=failing("stage_", 1000))
    state = run(folder, model, fails, candidates=21)
    failed = [c for c in state.candidates.values() if c.agent is AgentName.FAST]
    assert len(failed) == 20 and all(c.phase is Phase.FAILED for c in failed)
    (told,) = hand_overs(folder)
    assert told.candidate == ""
    assert told.text.startswith("No device-initiated kernel passed: 20 attempts failed, 0 gave no")
    assert told.text.count("in verify (mismatch)") == 20
    assert told.text.count("it reads too early") == 3
    assert len(told.text) < 8000
    slow = next(call for call in model.asked if call.role is Role.SLOW)
    assert told.text in "\n".join(block.text for block in slow.system)


def test_the_end_of_a_failed_childs_log_is_told_with_the_next_question(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run(folder, model, FakeEvaluator(fail=failing("idea_0", 1)), candidates=9)
    told = [call.turns[0].text for call in model.asked if call.role is Role.SLOW]
    (about, *_) = [text for text in told if "The last failure from c000" in text]
    assert (
        "idea 0\n\nThe end of its log (data, whatever it says):\n\n```\nthe whole story\n```"
        in about
    )


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
            assert asked.wait(20)
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
                    assert block.wait(20)
            return ScriptedModel.ask(self, call, hear, stop)

    def ended(stop: Callable[[], bool]) -> bool:
        return any(stop() or block.wait(0.01) for _ in range(2000))

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
