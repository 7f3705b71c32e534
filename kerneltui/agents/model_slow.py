"""The slow path with a language model: diffs, rewrites and crossovers of good kernels.

Everything that a thought needs is read from the state before it begins, in the engine's thread. What is asked
follows from the state and the seed alone (and from the clock, where time is limited), so a resumed session
asks what it would have asked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kerneltui.agents.context import Material, body, standing
from kerneltui.agents.evidence import candidate_evidence
from kerneltui.agents.fast_path import landing_point
from kerneltui.agents.inspiration import inspirations_text
from kerneltui.agents.model_fast import MOST_FRUITLESS
from kerneltui.agents.model_notes import notes_plan, write_notes
from kerneltui.agents.model_port import ModelCall, Role
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.agents.thinking import Talk, Thinker
from kerneltui.agents.unknown_model import unknown_model
from kerneltui.agents.writing import Request, Written, question, write
from kerneltui.model.attempts import speaker
from kerneltui.model.candidate import AgentName, Candidate, Origin
from kerneltui.model.directive import Backend
from kerneltui.model.errors import DefinitionError
from kerneltui.model.event import ConstraintKind
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.state import State
from kerneltui.search.arms import PLANNED
from kerneltui.search.islands import home_of, next_island, possible_parents
from kerneltui.search.schedule import Mix, mix_at, used_share
from kerneltui.search.selection import choose_inspirations, choose_parent, parent_weights

__all__ = ["ModelSlowPath"]


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is made of which kernels, on which island."""

    origin: Origin
    parents: tuple[str, ...]
    inspirations: tuple[str, ...]
    island: int


@dataclass(frozen=True, slots=True)
class _Plan:
    choice: _Choice
    request: Request
    steers: tuple[int, ...]
    seed_file: str
    generation: int
    arm: str


def _no_marks() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class ModelSlowPath:
    """Evolves the landing point of the fast path, or the seed if the fast path has given up.

    Attributes:
        material: What does not change in the session.
        thinker: Thinks.
        gave_up: Whether the fast path has.
        notes: The lab notes now.
        seed: Of the choices.
        islands: How many; 1 is none.
    """

    material: Material
    thinker: Thinker
    gave_up: Callable[[SearchView], bool]
    notes: Callable[[], str]
    seed: int
    islands: int = 1
    name: AgentName = AgentName.SLOW
    _marks: dict[str, str] = field(default_factory=_no_marks)
    _asked: tuple[str, ...] = ()
    _heard: tuple[int, ...] = ()
    _noting: bool = False

    @property
    def busy(self) -> bool:
        """Whether a thought is under way."""
        return self.thinker.busy

    @property
    def heard(self) -> frozenset[int]:
        """The messages that are part of the thought under way; lab notes have none."""
        return frozenset(() if self._noting else self._heard)

    @property
    def waiting(self) -> tuple[Proposal, ...]:
        """Proposals that the evaluator has had no time for: each of the parent that it was made from."""
        return self.thinker.waiting

    @property
    def noting(self) -> bool:
        """Whether what is under way are lab notes, of which no proposal comes."""
        return self.thinker.busy and self._noting

    def begin(self, view: SearchView, arm: str) -> None:
        """Begins with lab notes if there is enough to write down, or else with a proposal.

        Notes never follow notes: where results come faster than they are written, nothing else would be done.

        Args:
            view: The state now.
            arm: The model that is asked for a proposal.
        """
        if self.busy or (not self._noting and self._begin_notes(view)):
            return
        plan = self._plan(view, arm)
        self._noting = False
        self.thinker.start(plan.choice.parents[0], lambda talk: _propose(talk, plan), arm)

    def _begin_notes(self, view: SearchView) -> bool:
        if self.thinker.rests_until(view, Role.META) is not None:
            return False
        notes = self.notes()
        plan = notes_plan(view, standing(self.material, view).blocks(), notes, self._asked)
        if plan is None:
            return False
        self._asked = plan.results
        self._noting = True
        self.thinker.start(view.state.incumbent, lambda talk: write_notes(talk, plan))
        return True

    def preview(self, view: SearchView) -> ModelCall:
        """What the model would be asked now."""
        return question(self._plan(view, "").request)

    def propose(self) -> Proposal | None:
        """Returns a proposal that is ready."""
        return self.thinker.take()

    def rests(self, view: SearchView, arm: str) -> bool:
        """Whether a model has come to nothing too often in a row, or the server does not know it."""
        if unknown_model(view.state, self.name, arm):
            return True
        return view.state.fruitless.get(speaker(str(self.name), arm), 0) >= MOST_FRUITLESS

    def rests_until(self, view: SearchView, arm: str) -> float | None:
        """When the server lets a model be asked again; None if it may be now."""
        return self.thinker.rests_until(view, Role.SLOW, arm)

    def may_begin(self, view: SearchView) -> bool:
        """Whether there is a kernel to evolve."""
        return landing_point(view) is not None or self.gave_up(view)

    def _plan(self, view: SearchView, arm: str) -> _Plan:
        state = view.state
        turn = _turns(state) + len(self.waiting)
        choice = self._choice(view, random.Random(f"{self.seed} {turn}"))
        parent, other = (*choice.parents, "")[:2]
        known = state.candidates[parent]
        kernel = parse_kernel(view.source(parent), view.kernel_file)
        others = inspirations_text(view, choice.inspirations, parent, self.material.language)
        answered = frozenset(number for one in self.waiting for number in one.steers or ())
        seen = replace(view, answered=answered)
        text, steers = body(self.material, seen, parent, self.name, others)
        self._heard = steers
        fields: dict[str, object] = {"parent": parent, "body": text}
        if choice.origin is Origin.REWRITE:
            styles = prompt("slow_styles").splitlines()
            fields["style"] = styles[turn % len(styles)]
        if choice.origin is Origin.CROSSOVER:
            fields |= {
                "other": other,
                "other_evidence": candidate_evidence(state.candidates[other], state),
                "other_source": view.source(other),
            }
        request = Request(
            role=Role.SLOW,
            system=standing(self.material, view, self.notes()).blocks(_backend(known)),
            prompt=prompt(f"slow_{choice.origin}", **fields),
            purpose=f"{choice.origin} of {parent}" + (f" with {other}" if other else ""),
            parent=kernel,
            free=False,
            dimensions=view.shapes[0],
            constraints=state.constraints,
            known=self._known(view),
            model=arm,
        )
        return _Plan(choice, request, steers, known.seed_file, known.generation + 1, arm)

    def _choice(self, view: SearchView, source: random.Random) -> _Choice:
        """Chooses island, parents, the kind of change and inspirations."""
        state = view.state
        pinned = [c.value for c in state.constraints if c.kind is ConstraintKind.PIN]
        island = next_island(state, self.islands, (one.island for one in self.waiting))
        if pinned:
            island = home_of(state.candidates[pinned[0]], self.islands) or island
        mix = mix_at(_used(view))
        host_seed = _host_drives_seed(view)
        scores = possible_parents(state, island, self.islands, host_seed=host_seed)
        children = Counter(p for c in state.candidates.values() for p in c.parents)
        children.update(parent for one in self.waiting for parent in one.parents)
        weights = parent_weights(scores, children, noise=state.delta)
        if pinned:
            parent = pinned[0]
        elif source.random() < mix.even:
            parent = source.choice(sorted(scores))
        else:
            parent = choose_parent(weights, source)
        origin = _origin(mix, source)
        partners: Mapping[str, float] = {}
        if origin is Origin.CROSSOVER:
            everywhere = possible_parents(state, 0, self.islands, host_seed=host_seed)
            partners = self._partners(state, everywhere, island, parent)
            origin = origin if partners else Origin.DIFF
        parents = (parent, choose_parent(partners, source)) if partners else (parent,)
        shown = choose_inspirations(scores, parents, mix.inspirations, source)
        return _Choice(origin, parents, shown, island)

    def _partners(
        self, state: State, scores: dict[str, float], island: int, parent: str
    ) -> dict[str, float]:
        """The weights of second parents: from other islands, where ideas differ, if there are any."""
        scores.pop(parent, None)
        abroad = {
            name: score
            for name, score in scores.items()
            if home_of(state.candidates[name], self.islands) not in (0, island)
        }
        return parent_weights(abroad or scores, {}, noise=state.delta)

    def _known(self, view: SearchView) -> dict[str, str]:
        """Programs that there are already, by their mark, each with the first candidate that was it."""
        for name in view.state.candidates:
            if name not in self._marks:
                self._marks[name] = parse_kernel(view.source(name), view.kernel_file).token_hash()
        waiting = {
            parse_kernel(one.source, view.kernel_file).token_hash(): "a proposal that waits"
            for one in self.waiting
        }
        return {**waiting, **{mark: name for name, mark in reversed(self._marks.items())}}


def _host_drives_seed(view: SearchView) -> bool:
    """Whether the seed's comments say so; without any it is not known."""
    seed = parse_kernel(view.source(view.state.base), view.kernel_file)
    try:
        return seed.directive(view.shapes[0]).backend is Backend.HOST
    except DefinitionError:
        return False


def _backend(parent: Candidate) -> Backend | None:
    return parent.directive.backend if parent.directive is not None else None


def _turns(state: State) -> int:
    """Counts what the slow path has tried, so that each question has its own draws."""
    made = sum(candidate.agent is AgentName.SLOW for candidate in state.candidates.values())
    return made + len(state.barren)


def _used(view: SearchView) -> float:
    """The share of the budget that is used: of candidates, money or time, whichever is furthest along."""
    state = view.state
    made = sum(candidate.agent is not AgentName.HUMAN for candidate in state.candidates.values())
    limits = (state.budget_candidates, state.budget_micro_usd, state.budget_ns)
    planned = PLANNED if all(limit is None for limit in limits) else state.budget_candidates
    return used_share(
        [
            (made, planned),
            (state.spent().micro_usd, state.budget_micro_usd),
            (view.elapsed_ns, state.budget_ns),
        ]
    )


def _origin(mix: Mix, source: random.Random) -> Origin:
    kinds = (Origin.DIFF, Origin.REWRITE, Origin.CROSSOVER)
    return source.choices(kinds, [mix.diff, mix.rewrite, mix.crossover])[0]


def _propose(talk: Talk, plan: _Plan) -> Proposal:
    written: Written = write(talk, plan.request)
    return Proposal(
        source=written.source,
        reason=written.reason,
        agent=AgentName.SLOW,
        origin=plan.choice.origin,
        parents=plan.choice.parents,
        directive=written.directive,
        seed_file=plan.seed_file,
        generation=plan.generation,
        configuration={
            key: str(value)
            for key, value in parse_kernel(
                written.source, plan.request.parent.file
            ).configuration.items()
        },
        calls=tuple(talk.calls),
        steers=plan.steers,
        answer=written.answer,
        island=plan.choice.island,
        arm=plan.arm,
        inspirations=plan.choice.inspirations,
    )
