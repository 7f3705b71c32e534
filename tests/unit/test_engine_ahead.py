"""Proposals that are made while a long evaluation runs: how many, of which parents, and what they know."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine_fakes
import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    STAGE_A,
    STAGE_B,
    WORKLOAD,
    ScriptedModel,
    events_of,
    noting,
)
from test_engine_loopback import ANCHOR

from kerneltui.agents.model_port import ModelCall, Role
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.command import Progress, Steer
from kerneltui.model.event import AcceptRule, CandidateProposed, Decided, SteerDelivered
from kerneltui.model.kernel import Kernel
from kerneltui.model.state import State, fold

LONG = "idea_0"
"""In the kernel whose evaluation takes as long as the test wants. It is faster than all others."""


def cost(kernel: Kernel) -> float:
    """The window kernel is faster than the seed, and the long one than that."""
    if f"{LONG} = " in kernel.source:
        return 0.8
    return 0.9 if ANCHOR in kernel.source else 1.0


class SlowEvaluator(FakeEvaluator):
    """Evaluates the long one for as long as nothing is let go."""

    __slots__ = ("_long", "go", "in_time")

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.in_time = False
        self._long = False

    def evaluate(self, kernel: Kernel, *given: Any, **named: Any) -> Any:
        if f"{LONG} = " in kernel.source and not self._long:
            self._long = True
            self.in_time = self.go.wait(30)
        return FakeEvaluator.evaluate(self, kernel, *given, **named)


@dataclass
class Run:
    """What came of a session."""

    state: State
    model: ScriptedModel
    evaluator: SlowEvaluator
    events: list[Any]
    said: list[str]

    def asked(self) -> list[ModelCall]:
        return [call for call in self.model.asked if call.role is Role.SLOW]


def tuned(folder: Path, config: str, until: str, *, candidates: int, undecided: int | None = None):
    """Runs a session in which the long evaluation ends as soon as the slow path says `until`."""
    (folder.parent / "config" / "kerneltui" / "agents.toml").write_text(config)
    place = Place(folder, WORKLOAD, exists=False)
    evaluator, said, answer = SlowEvaluator(), [], noting("none")

    def slow(call: ModelCall) -> dict[str, Any]:
        made = answer(call)
        if made.get("reason") == LONG.replace("_", " "):
            terminal = Terminal(place)
            terminal.ask(Steer("slow", "fewer barriers, please"))
            terminal.socket.close()
        return made

    def hear(progress: Progress) -> None:
        if (progress.kind, progress.about) == ("phase", "slow"):
            said.append(progress.text)
            if progress.text == until:
                evaluator.go.set()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, slow])
    setup = EngineSetup(
        place,
        Start("cpu", "claude", 1, AcceptRule.AUTO, candidates, None),
        Options(undecided=undecided, leave_when_done=True),
        lambda workload, spec: evaluator,
        take_signals=False,
        make_model=lambda calls: model,
        models_alone=True,
        on_progress=hear,
    )
    state, _, failure = run_engine(setup)
    assert failure is None
    return Run(state, model, evaluator, events_of(folder), said)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config" / "kerneltui").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(engine_fakes, "cost", cost)
    return tmp_path / "session"


def test_two_proposals_are_ready_while_one_long_evaluation_runs(folder: Path) -> None:
    ran = tuned(folder, "[search]\nahead = 2\n", "2 ready", candidates=6)
    assert ran.evaluator.in_time, ran.said
    assert "3 ready" not in ran.said
    made = ran.state.candidates
    long = next(c for c in made.values() if c.reason == "idea 0")
    waited = [next(c for c in made.values() if c.reason == f"idea {n}") for n in (1, 2)]

    assert ran.state.incumbent == long.id, "it overtook those that waited"
    kinds = [
        (type(event).__name__, getattr(event, "id", getattr(event, "candidate", "")))
        for event in ran.events
        if isinstance(event, (CandidateProposed, Decided))
    ]
    decided = kinds.index(("Decided", long.id))
    for candidate in waited:
        assert kinds.index(("CandidateProposed", candidate.id)) > decided
        assert long.id not in candidate.parents, "it stays the child of what it was made from"
        assert candidate.measurement is not None
        assert candidate.measurement.against == long.id
    assert [c.island for c in (long, *waited)] == [1, 2, 1], "what waits has had its turn"

    told = [event for event in ran.events if isinstance(event, SteerDelivered)]
    assert [event.candidate for event in told] == [waited[0].id]
    heard = ["fewer barriers" in call.turns[0].text for call in ran.asked()]
    assert heard[:3] == [False, True, False], "a message is part of one question"
    assert fold(ran.events).canonical() == ran.state.canonical()


def test_one_proposal_waits_if_nothing_is_said(folder: Path) -> None:
    ran = tuned(folder, "", "1 ready", candidates=6)
    assert ran.evaluator.in_time, ran.said
    assert "2 ready" not in ran.said
    assert "thinking; 1 ready" not in ran.said


def test_no_more_wait_than_the_budget_has_candidates_left(folder: Path) -> None:
    ran = tuned(folder, "[search]\nahead = 4\n", "1 ready", candidates=4)
    assert ran.evaluator.in_time, ran.said
    assert len(ran.asked()) == 2, "the fast path's two, the long one and one that waits"


def test_no_more_wait_than_may_be_undecided(folder: Path) -> None:
    ran = tuned(folder, "[search]\nahead = 4\n", "2 ready", candidates=9, undecided=2)
    assert ran.evaluator.in_time, ran.said
    assert "3 ready" not in ran.said


def test_what_waits_is_built_while_another_one_is_evaluated(folder: Path) -> None:
    ran = tuned(folder, "[search]\nahead = 2\n", "2 ready", candidates=6)
    made = ran.state.candidates
    long = next(c for c in made.values() if c.reason == "idea 0")
    waited = [next(c for c in made.values() if c.reason == f"idea {n}") for n in (1, 2)]
    evaluated = ran.evaluator.calls
    marks = [evaluated[list(made).index(c.id) - 1] for c in (long, *waited)]
    assert set(marks[1:]) <= set(ran.evaluator.ahead)
    assert marks[0] not in ran.evaluator.ahead, "it was evaluated at once"
    assert len(set(ran.evaluator.ahead)) == len(ran.evaluator.ahead), "each is asked for once"
