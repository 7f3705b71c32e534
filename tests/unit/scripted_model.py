"""A language model that answers from a script, in a real session with a fake evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_fakes import FakeEvaluator
from loopback.asked import added_line, parent_in, stated_of

from kerneltui.agents.model_port import (
    Chunk,
    ChunkKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    ToolUse,
    Usage,
)
from kerneltui.engine.opening import Start, load_state, read_events
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import HandedOver
from kerneltui.model.candidate import Failure
from kerneltui.model.event import AcceptRule, BudgetSet
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import FailureKind as Bad
from kerneltui.model.measurement import Stage
from kerneltui.model.state import State
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


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """Writes into a session that no engine has open."""
    with Session.open(folder, writable=True) as session:
        kernel = "kernels/gemm_allgather/kernel.cpp"
        yield Recorder(session, load_state(session), kernel, lambda *_: None)


@contextmanager
def rested(folder: Path) -> Iterator[Recorder]:
    """A session that has gone on, in which no call is open and a budget is left."""
    run(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1)
    with recording(folder) as recorder:
        at = recorder.state.at
        recorder.record(BudgetSet(at=at, candidates=9, time_ns=None, micro_usd=10**7))
        yield recorder


def failing(word: str, times: int, kind: Bad = Bad.MISMATCH) -> Callable[[Kernel], Failure | None]:
    """Fails kernels that have a word in them, so many times."""
    left = [times]

    def fail(kernel: Kernel) -> Failure | None:
        if word not in kernel.source or not left[0]:
            return None
        left[0] -= 1
        return Failure(Stage.VERIFY, kind, "C[0, 0] on rank 1 is wrong")

    return fail


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


def hand_overs(folder: Path) -> list[HandedOver]:
    return [event for event in events_of(folder) if isinstance(event, HandedOver)]
