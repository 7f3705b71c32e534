"""A whole session over real HTTP: both paths with a scripted model, on a rough day, steered in the middle."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine_fakes import FakeEvaluator
from live_engine import Terminal
from loopback.asked import added_line, crossed, parent_in, region_of, stated_of
from loopback.script import Say, Step
from loopback.server import Loopback
from scripted_model import (
    DESCRIBED,
    HOST,
    SEED,
    STAGE_A,
    STAGE_B,
    WINDOW,
    WORKLOAD,
    events_of,
    marked,
    stated,
)

from kerneltui.agents.agent_config import AgentConfig, CallLimits, RoleModel
from kerneltui.agents.claude import ClaudeModel
from kerneltui.agents.model_port import Role
from kerneltui.agents.retry import Waiting
from kerneltui.agents.spend import Spend
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import ModelCallEnded, ProposalFailed
from kerneltui.model.candidate import AgentName, Failure, Origin, Phase
from kerneltui.model.command import Progress, Steer
from kerneltui.model.event import AcceptRule, CandidateProposed, Event, SteerDelivered
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.state import State, fold

_BEGIN, _END = "// kerneltui: evolve begin schedule\n", "// kerneltui: evolve end"
SCHEDULE = WINDOW.split(_BEGIN, 1)[1].split(_END, 1)[0]
ANCHOR = next(line for line in SCHEDULE.splitlines() if line.startswith("/* Tells all peers"))
KINDS = {
    Origin.DIFF: "by a focused change",
    Origin.REWRITE: "by writing one of its evolve regions anew",
    Origin.CROSSOVER: "Two kernels are good in different ways",
}


def unproven(seed: str) -> str:
    """A kernel with a change outside of all evolve regions."""
    return seed.replace("struct State {", "struct State { int more;")


def propose(**fields: Any) -> Say:
    return Say("tool", json.dumps(fields), "propose")


def idea(kind: Origin, word: str, number: int, question: str) -> dict[str, Any]:
    """Fields of an answer to a question of a kind: the parent with a line that no other kernel has."""
    parent = parent_in(question)
    line = f"static const int {word} = {number};"
    fields: dict[str, Any] = {"directive": stated_of(parent)}
    if kind is Origin.DIFF:
        return {**fields, "edits": [added_line(parent, line)]}
    text = region_of(parent, "schedule")
    if kind is Origin.CROSSOVER:
        text = crossed(question, "schedule")
    return {**fields, "region": "schedule", "rewrite": f"{line}\n{text}"}


def slow_steps(count: int) -> list[Step]:
    """Answers to every kind of question, each another program."""

    def answer(kind: Origin, number: int, question: str) -> list[Say]:
        fields = idea(kind, f"{kind}_{number}", number, question)
        if kind is Origin.DIFF:
            fields |= {"reason": f"idea {number}", "answer": "with fewer barriers"}
            return [Say("thinking", "Fewer barriers."), propose(**fields)]
        return [propose(reason=f"{kind} {number}", answer="heard", **fields)]

    steps = [
        Step(f"{kind} {number}", expect=(asked,), say=partial(answer, kind, number))
        for number in range(count)
        for kind, asked in KINDS.items()
    ]
    notes = Say("tool", json.dumps({"notes": "Fewer barriers are no help (c0006)."}), "write_notes")
    steps.append(Step("notes", expect=("^tool write_notes$",), times=0, say=(notes,)))
    return steps


def endless_steps(pace_ms: int) -> list[Step]:
    """Answers to whatever both paths ask, however often they begin anew; the stream takes its time."""
    described = Say("tool", json.dumps(DESCRIBED), "describe")
    fast = [
        Step("describe", expect=("Describe it with the tool",), times=0, say=(described,)),
        Step("stage A", expect=("Stage A\\.",), times=0, say=(propose(**STAGE_A),)),
        Step("stage B", expect=("Stage B\\.",), times=0, say=(propose(**STAGE_B),)),
    ]
    steps = [*fast, *slow_steps(400)]
    for step in steps:
        step.pace_ms, step.pieces = pace_ms, 200
    return steps


BAD = tuple(marked(WINDOW, f"bad_{number}") for number in range(3))
"""Kernels that the stand-in for the evaluation finds wrong."""


def fast_steps(
    bad: Sequence[str] = BAD,
    found: Sequence[str] = ("rank 1 is wrong",) * 3,
    seed: str = SEED,
    good: str = WINDOW,
) -> list[Step]:
    """Stage A on a rough day, stage B wrong at first, two repairs that fail, and one that does not.

    Args:
        bad: The three that fail.
        found: What the judge is told of each.
        seed: The kernel that the fast path begins with.
        good: The kernel that it ends with.
    """
    described = {
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

    def whole(reason: str, source: str, directive: dict[str, Any]) -> Say:
        return propose(reason=reason, directive=directive, rewrite=source)

    repair = "Repair it. Change what is wrong"
    diagnose = Say("tool", json.dumps({"diagnosis": "the flag comes before the data"}), "diagnose")
    return [
        Step("busy", expect=("Describe it with the tool",), times=3, status=529,
             error={"type": "overloaded_error", "message": "Overloaded"}),
        Step("describe", expect=("Describe it with the tool",),
             say=(Say("tool", json.dumps(described), "describe"),)),
        Step("cut", expect=("Stage A\\.",), cut="close", cut_after=5,
             say=(whole("asks for flags", marked(seed, "stage_a"), HOST),)),
        Step("unproven", expect=("Stage A\\.",), say=(whole("asks", unproven(seed), HOST),)),
        Step("stage A", expect=("Stage A\\.", "int more.* outside of every evolve region"),
             say=(whole("asks for flags", marked(seed, "stage_a"), HOST),)),
        Step("stage B", expect=("Stage B\\.",), say=(whole("stores to peers", bad[0], stated(WINDOW)),)),
        *(Step(f"judge {number}", expect=("^tool diagnose$", text), say=(diagnose,))
          for number, text in enumerate(found)),
        Step("repair 1", expect=(repair, "the flag comes before the data"),
             say=(whole("fences", bad[1], stated(WINDOW)),)),
        Step("repair 2", expect=(repair, "- c0003"), say=(whole("fences more", bad[2], stated(WINDOW)),)),
        Step("repair 3", expect=(repair, "- c0004"), say=(whole("release order", good, stated(good)),)),
        Step("refusal", expect=("evolve regions",), stop_reason="refusal",
             refusal={"category": "cyber", "explanation": "not this one"}, times=2),
    ]  # fmt: skip


def fails_when_bad(kernel: Kernel) -> Failure | None:
    if re.search(r"\bbad_\d\b", kernel.source):
        return Failure(Stage.VERIFY, FailureKind.MISMATCH, "C[0, 0] on rank 1 is wrong")
    return None


class Session:
    """An engine with Claude behind the loopback server, and what was heard of it."""

    def __init__(
        self,
        folder: Path,
        server: Loopback,
        candidates: int,
        *,
        roles: Mapping[Role, RoleModel] | None = None,
        evaluator: FakeEvaluator | None = None,
        alone: bool = True,
        ahead: int = 2,
        seed: int = 3,
        tokens: int | None = None,
    ) -> None:
        self.place = Place(folder, WORKLOAD, exists=(folder / ".git").exists())
        limits = CallLimits(first_wait_ms=1, longest_wait_ms=10, attempts=6, reasks=1)
        config = AgentConfig(base_url=server.url, limits=limits)
        config = replace(config, roles={**config.roles, **(roles or {})})
        keys = {"ANTHROPIC_API_KEY": "sk-ant-loopback"}
        waiting = Waiting(lambda seconds: None, lambda: 0.0)
        self.heard: list[Progress] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.setup = EngineSetup(
            self.place,
            Start("cpu", "claude", seed, AcceptRule.AUTO, candidates, None, micro_usd=10**9),
            Options(undecided=None, ahead=ahead, leave_when_done=True),
            lambda workload, spec: evaluator or FakeEvaluator(fail=fails_when_bad),
            take_signals=False,
            make_model=lambda calls: ClaudeModel(config, Spend(None, tokens), keys, waiting),
            models_alone=alone,
            on_event=lambda event, state: self.on_event(event),
            on_progress=self.heard.append,
        )

    def run(self) -> State:
        state, _, failure = run_engine(self.setup)
        assert failure is None
        return state


def test_a_whole_session_on_a_rough_day(folder: Path) -> None:
    with Loopback([*fast_steps(), *slow_steps(16)]) as server:
        session = Session(folder, server, candidates=18, seed=1)
        steered = threading.Event()

        def steer(event: Event) -> None:
            slow = isinstance(event, CandidateProposed) and event.agent is AgentName.SLOW
            if slow and not steered.is_set():
                steered.set()
                threading.Thread(target=say_it).start()

        def say_it() -> None:
            terminal = Terminal(session.place)
            terminal.ask(Steer("slow", "fewer barriers, please"))
            terminal.socket.close()

        session.on_event = steer
        state = session.run()
        assert not server.problems

    made = [c for c in state.candidates.values() if c.id != state.base]
    fast = [c for c in made if c.agent is AgentName.FAST]
    assert [c.phase for c in fast] == [Phase.MEASURED, *[Phase.FAILED] * 3, Phase.MEASURED]
    assert fast[-1].reason.startswith("stage B: release order")
    assert {c.origin for c in made if c.agent is AgentName.SLOW} == set(KINDS)
    crossed = next(c for c in made if c.origin is Origin.CROSSOVER)
    assert len(crossed.parents) == 2

    events = events_of(folder)
    assert fold(events).canonical() == state.canonical()
    failed = [event for event in events if isinstance(event, ProposalFailed)]
    assert [event.reason.split(":")[0] for event in failed] == ["refused"]
    ends = [event for event in events if isinstance(event, ModelCallEnded)]
    assert {event.outcome for event in ends} == {"ok", "refused"}
    assert max(event.attempts for event in ends) == 4, "three times overloaded, then an answer"
    told = [event for event in events if isinstance(event, SteerDelivered)]
    assert [event.agent for event in told] == ["slow"]
    assert told[0].answer in ("heard", "with fewer barriers")
    asked = [
        request.text for request in server.requests if "fewer barriers, please" in request.text
    ]
    assert len(asked) == 1, "a message is part of one question"
    streamed = "".join(p.text for p in session.heard if p.kind == "stream")
    assert "the flag comes before the data" in streamed
    assert state.notes == "Fewer barriers are no help (c0006).\n"
    assert state.spent().micro_usd > 0
    assert all(call.outcome for call in state.calls.values())


def test_the_limit_of_tokens_ends_the_search_at_the_first_call_that_is_refused(
    folder: Path,
) -> None:
    refused: list[ModelCallEnded] = []

    def count(event: Event) -> None:
        if isinstance(event, ModelCallEnded) and event.outcome == "budget":
            refused.append(event)
            assert len(refused) < 9, "it is asked again and again"

    with Loopback([*fast_steps(), *slow_steps(1)]) as server:
        session = Session(folder, server, candidates=18, tokens=1_000)
        session.on_event = count
        state = session.run()
        assert not server.requests
    assert len(refused) == 1
    assert "could pass the limit of 1,000" in state.ended
