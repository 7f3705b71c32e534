"""The fast path with a language model: from a host-driven kernel to the first verified device-initiated one.

The state tells how far it is, so a resumed session goes on where it was: no attempt yet, a stage A that is
verified, failures to repair, a landing point. Each gate is the ordinary evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kerneltui.agents.context import PYTHON, Material, Standing, body, human_text, standing
from kerneltui.agents.evidence import candidate_evidence, history_text
from kerneltui.agents.fast_path import ONE_RANK, landing_point, passed, under_way
from kerneltui.agents.gate import Gate
from kerneltui.agents.hand_over import (
    GRAPH,
    MOST_FRUITLESS,
    MOST_REPAIRS,
    failures,
    gave_up,
    graph_of,
    hand_over,
)
from kerneltui.agents.measured import log_text, record_text
from kerneltui.agents.model_port import (
    Block,
    FailureKind,
    ModelCall,
    ModelFailure,
    Role,
    Turn,
)
from kerneltui.agents.news import HandOver
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.agents.rests import rest_text
from kerneltui.agents.thinking import Talk, Thinker
from kerneltui.agents.tools import DESCRIBE, DIAGNOSE, PATHS, directive_of
from kerneltui.agents.writing import Request, question, write
from kerneltui.model.candidate import AgentName, Candidate, Origin, Phase
from kerneltui.model.directive import Backend
from kerneltui.model.errors import DefinitionError, RecordError
from kerneltui.model.kernel import Kernel, parse_kernel

__all__ = ["MOST_FRUITLESS", "MOST_REPAIRS", "ModelFastPath"]


class _Stage(StrEnum):
    """What is asked for: what the ranks will need, then that they move the data."""

    A = "stage A"
    B = "stage B"


@dataclass(frozen=True, slots=True)
class _Plan:
    """One thought: what is asked first, then the kernel. All text, no state.

    `body` says all of the parent, or of a kernel that failed only what the human says; `base` is the last
    kernel that passed, which the stage began with.
    """

    stage: _Stage
    parent: str
    source: str
    base: str
    base_source: str
    request: Request
    standing: Standing
    stated: Backend | None
    body: str
    seed_file: str
    generation: int
    steers: tuple[int, ...]
    failure: str = ""
    log: str = ""
    history: str = ""


def _graph() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class ModelFastPath:
    """Transforms the seed in two gated stages, and repairs what fails.

    Attributes:
        material: What does not change in the session.
        thinker: Thinks.
        notes: The lab notes now.
    """

    material: Material
    thinker: Thinker
    notes: Callable[[], str]
    name: AgentName = AgentName.FAST
    _handed: HandOver | None = None
    _heard: tuple[int, ...] = ()
    _described: dict[str, str] = field(default_factory=_graph)

    @property
    def busy(self) -> bool:
        """Whether a thought is under way, or a proposal waits."""
        return self.thinker.busy or bool(self.thinker.waiting)

    @property
    def heard(self) -> frozenset[int]:
        """The messages that are part of the thought under way."""
        return frozenset(self._heard)

    def gave_up(self, view: SearchView) -> bool:
        """Whether all repairs are used, nothing comes of the attempts, or one rank has nothing to move."""
        return view.state.ranks == 1 or gave_up(view)

    def think(self, view: SearchView) -> None:
        """Begins with the next step, if the one before it has a verdict; hands over after the last."""
        told = hand_over(view)
        if told is not None and told != self._handed:
            self._handed = told
            self.thinker.tell(told)
        if self.busy or not self._wanted(view) or self.rests_until(view) is not None:
            return
        plan = self._plan(view)
        self._heard = plan.steers
        self.thinker.start(plan.parent, lambda talk: self._propose(talk, plan))

    def rests_until(self, view: SearchView) -> float | None:
        """When the server lets its model be asked again, if that is all that it waits for."""
        return self.thinker.rests_until(view, Role.FAST) if self._wanted(view) else None

    def _wanted(self, view: SearchView) -> bool:
        """Whether the next step is due: the one before it has a verdict, and it is not the last."""
        return landing_point(view) is None and not self.gave_up(view) and not _running(view)

    def preview(self, view: SearchView) -> ModelCall:
        """What a model would be asked first now."""
        plan = self._plan(view)
        if not self._described:
            return _analysis_call(plan)
        if plan.failure:
            return self._diagnosis_call(plan)
        return question(self._request(plan, self._stage_question(plan)))

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns a proposal that is ready."""
        return self.thinker.take()

    @property
    def waiting(self) -> Sequence[Proposal]:
        """What is ready."""
        return self.thinker.waiting

    def leftovers(self) -> list[Proposal]:
        """Takes out what is ready."""
        return self.thinker.leftovers()

    def done(self, view: SearchView) -> str:
        """Says where it landed, or that it gave up."""
        if self.busy or (landing_point(view) is None and not self.gave_up(view)):
            return ""
        return self.status(view)

    def status(self, view: SearchView) -> str:
        """Returns what the fast path does."""
        landed = landing_point(view)
        if view.state.ranks == 1:
            return ONE_RANK
        if landed is not None:
            return f"landed at {landed.id}"
        if self.thinker.busy:
            return f"thinking ({_stage(view)})"
        if self.gave_up(view):
            return f"gave up after {len(failures(view))} repairs; the slow path goes on"
        until = self.rests_until(view)
        return rest_text(until, view.now) if until else "waits for the evaluation of its kernel"

    def answer(self, text: str) -> str:
        """Says what becomes of a message."""
        return "taken into the next proposal"

    def refusals(self) -> tuple[str, ...]:
        """Returns nothing: constraints are part of the question."""
        return ()

    def interrupt(self) -> None:
        """Ends the thought."""
        self.thinker.interrupt()

    def close(self) -> None:
        """Ends the agent."""
        self.thinker.close()

    def _plan(self, view: SearchView) -> _Plan:
        state = view.state
        if not self._described:
            graph, directive = graph_of(state)  # of an earlier engine
            if graph:
                self._described.update(graph=graph, directive=directive)
        last = _last(view)
        failed = last if last is not None and last.phase is Phase.FAILED else None
        base = _passed(view) or state.candidates[state.base]
        about = failed or base
        if failed:
            text, steers = human_text(view, self.name)
        else:
            text, steers = body(self.material, view, about.id, self.name)
        stage = _stage(view)
        kernel = parse_kernel(view.source(about.id), view.kernel_file)
        began = parse_kernel(view.source(base.id), view.kernel_file)
        request = Request(
            role=Role.FAST,
            system=(),
            prompt="",
            purpose=f"{stage} from {about.id}",
            parent=kernel,
            free=True,
            marked=began,
            gate=_gate(stage, began, view),
            dimensions=view.shapes[0],
            constraints=state.constraints,
            known={
                parse_kernel(view.source(c), view.kernel_file).token_hash(): c
                for c in state.candidates
            },
        )
        return _Plan(
            stage=stage,
            parent=about.id,
            source=view.source(about.id),
            base=base.id,
            base_source=began.source,
            request=request,
            standing=standing(self.material, view, self.notes()),
            stated=about.directive.backend if about.directive is not None else None,
            body=text,
            seed_file=state.candidates[state.base].seed_file,
            generation=about.generation + 1,
            steers=steers,
            failure=_told(failed, view) if failed else "",
            log=log_text(failed, view) if failed else "",
            history=history_text(failures(view)),
        )

    def _propose(self, talk: Talk, plan: _Plan) -> Proposal:
        self._describe(talk, plan)
        if plan.failure:
            asked = self._repair_question(plan, self._diagnosis(talk, plan))
        else:
            asked = self._stage_question(plan)
        written = write(talk, self._request(plan, asked))
        kernel = parse_kernel(written.source, plan.request.parent.file)
        return Proposal(
            source=written.source,
            reason=f"{plan.stage}: {written.reason}",
            agent=AgentName.FAST,
            origin=Origin.TRANSFORM,
            parents=(plan.parent,),
            directive=written.directive,
            seed_file=plan.seed_file,
            generation=plan.generation,
            configuration={key: str(value) for key, value in kernel.configuration.items()},
            calls=tuple(talk.calls),
            steers=plan.steers,
            answer=written.answer,
        )

    def _request(self, plan: _Plan, asked: str) -> Request:
        return replace(plan.request, prompt=asked, system=self._system(plan))

    def _system(self, plan: _Plan) -> tuple[Block, ...]:
        """With the digest of the backend that the kernel has, or that it is on the way to."""
        named = self._described.get("directive", "").partition(" ")[0]
        return plan.standing.blocks(plan.stated, Backend(named) if named in set(Backend) else None)

    def _stage_question(self, plan: _Plan) -> str:
        return f"{self._rules(plan)}\n\n{plan.body}"

    def _repair_question(self, plan: _Plan, diagnosis: str) -> str:
        return prompt(
            "repair",
            failed=plan.parent,
            failure=plan.failure + (f"\n\n{plan.log}" if plan.log else ""),
            diagnosis=diagnosis,
            history=plan.history,
            rules=self._rules(plan),
            human=plan.body,
            file=plan.request.parent.file,
            source=plan.source,
        )

    def _rules(self, plan: _Plan) -> str:
        """What a kernel of the stage has to be, however often it is repaired."""
        if plan.stage is _Stage.A:
            python = self.material.language == PYTHON
            name = "requirements" if python else "kerneltui_requirements"
            return prompt("fast_stage_a", requirements=name, base=plan.base, **self._described)
        return prompt("fast_stage_b", **self._described)

    def _describe(self, talk: Talk, plan: _Plan) -> None:
        """Asks for the communication graph of the kernel, once, and tells the human."""
        if not self._described:
            found = talk.ask(_analysis_call(plan)).tools[0].input
            graph = "; ".join(
                f"{c['name']} ({c['reads']} → {c['writes']}, made by {c['producer']}, "
                f"used by {c['consumer']})"
                for c in found["collectives"]
            )
            try:
                directive = directive_of(found["directive"]).summary()
            except RecordError:
                directive = json.dumps(found["directive"])
            self._described.update(graph=graph, directive=directive)
            talk.say(f"{GRAPH}{graph}; first directive: {directive}")

    def _diagnosis(self, talk: Talk, plan: _Plan) -> str:
        """What the judge model says is wrong; it cannot write code. Without it the repair goes on."""
        try:
            text = str(talk.ask(self._diagnosis_call(plan)).tools[0].input["diagnosis"])
        except ModelFailure as failure:
            if talk.stopped() or failure.kind is FailureKind.BUDGET:
                raise
            return f"No diagnosis: {failure.reason}"
        talk.say(f"{plan.parent}: {text}")
        return f"Diagnosis: {text}"

    def _diagnosis_call(self, plan: _Plan) -> ModelCall:
        text = prompt("judge", failure=plan.failure, log=plan.log or "none", source=plan.source)
        turns = [Turn("user", text)]
        return ModelCall(
            Role.JUDGE, self._system(plan), turns, [DIAGNOSE], True, f"diagnose {plan.parent}"
        )


def _analysis_call(plan: _Plan) -> ModelCall:
    text = prompt("fast_analyse", source=plan.base_source)
    return ModelCall(
        Role.FAST,
        plan.standing.blocks(),
        [Turn("user", text)],
        [DESCRIBE],
        True,
        "analyse the seed",
        shown=PATHS,
    )


def _told(failed: Candidate, view: SearchView) -> str:
    """What is known of a kernel that failed."""
    parts = (candidate_evidence(failed, view.state), record_text(failed, view))
    return "\n\n".join(part for part in parts if part)


def _mine(view: SearchView) -> list[Candidate]:
    return [c for c in view.state.candidates.values() if c.agent is AgentName.FAST]


def _last(view: SearchView) -> Candidate | None:
    """The newest step; not one that has no verdict by a fault of the harness, which is nothing to repair."""
    mine = [candidate for candidate in _mine(view) if not candidate.harness_fault]
    return mine[-1] if mine else None


def _passed(view: SearchView) -> Candidate | None:
    """The newest stage that passed its gate."""
    found = [c for c in _mine(view) if passed(c)]
    return found[-1] if found else None


def _stage(view: SearchView) -> _Stage:
    return _Stage.B if _passed(view) is not None else _Stage.A


def _gate(stage: _Stage, began: Kernel, view: SearchView) -> Gate | None:
    """What the stage asks of the host; nothing where the seed says that its ranks move the data already."""
    if stage is _Stage.B:
        return Gate.LEAVES_HOST
    try:
        driven = began.directive(view.shapes[0]).backend is Backend.HOST
    except DefinitionError:
        driven = True  # it says nothing
    return Gate.KEEPS_HOST if driven else None


def _running(view: SearchView) -> bool:
    return any(under_way(candidate, view) for candidate in _mine(view))
