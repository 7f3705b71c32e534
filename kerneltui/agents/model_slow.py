"""The slow path with a language model: diffs, rewrites and crossovers of good kernels.

Everything that a thought needs is read from the state before it begins, in the engine's thread.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kerneltui.agents.context import Material, body, standing
from kerneltui.agents.evidence import candidate_evidence
from kerneltui.agents.fast_path import landing_point
from kerneltui.agents.model_fast import MOST_FRUITLESS
from kerneltui.agents.model_notes import notes_plan, write_notes
from kerneltui.agents.model_port import Role
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.agents.thinking import Talk, Thinker
from kerneltui.agents.writing import Request, Written, write
from kerneltui.model.candidate import AgentName, Candidate, DecisionKind, Origin, Phase
from kerneltui.model.event import ConstraintKind
from kerneltui.model.kernel import parse_kernel
from kerneltui.search.selection import choose_parent, parent_weights

__all__ = ["STYLES", "ModelSlowPath"]

STYLES = (
    "Think about the memory traffic first: fewer bytes, wider accesses, what stays in cache.",
    "Think about the order of work: what could begin earlier, what waits for nothing.",
    "Think about the communication: when pieces leave, how large they are, who brings them.",
    "Think about the inner loop: instructions per result, registers, what the compiler cannot see.",
    "Do the simplest thing that could work, with less code than there is now.",
)
"""Ways to rewrite, in turn."""

_EXPLORE = ((Origin.DIFF, 0.15), (Origin.REWRITE, 0.70), (Origin.CROSSOVER, 0.15))
_EXPLOIT = ((Origin.DIFF, 0.60), (Origin.REWRITE, 0.25), (Origin.CROSSOVER, 0.15))
_EXPLORED = 0.4  # of the budget
_PLANNED = 40  # candidates, where there is no budget of candidates


@dataclass(frozen=True, slots=True)
class _Plan:
    origin: Origin
    parents: tuple[str, ...]
    request: Request
    steers: tuple[int, ...]
    seed_file: str
    generation: int


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
    """

    material: Material
    thinker: Thinker
    gave_up: Callable[[SearchView], bool]
    notes: Callable[[], str]
    seed: int
    name: AgentName = AgentName.SLOW
    _marks: dict[str, str] = field(default_factory=_no_marks)
    _turn: int = 0
    _noted: int = 0

    @property
    def busy(self) -> bool:
        """Whether a thought is under way, or a proposal waits."""
        return self.thinker.busy or self.thinker.ready > 0

    def think(self, view: SearchView) -> None:
        """Begins with the next proposal."""
        if self.busy or not self._may_begin(view) or self._despairs(view):
            return
        if self._begin_notes(view):
            return
        plan = self._plan(view)
        self.thinker.start(plan.parents[0], lambda talk: _propose(talk, plan))

    def _begin_notes(self, view: SearchView) -> bool:
        """Begins with lab notes if there is enough to write down."""
        notes = self.notes()
        plan = notes_plan(view, standing(self.material, view), notes, self._noted)
        if plan is None:
            return False
        self._noted = plan.results
        self.thinker.start(view.state.incumbent, lambda talk: write_notes(talk, plan))
        return True

    def preview(self, view: SearchView) -> Request:
        """What the model would be asked now."""
        return self._plan(view).request

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns a proposal that is ready."""
        return self.thinker.take()

    def status(self, view: SearchView) -> str:
        """Returns what the slow path does."""
        if self.thinker.busy:
            return "thinking"
        if self._despairs(view):
            return f"rests after {MOST_FRUITLESS} attempts without a proposal; pause and go on to retry"
        return "ready" if self._may_begin(view) else "waits for the fast path"

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

    def _despairs(self, view: SearchView) -> bool:
        return view.state.fruitless.get(str(self.name), 0) >= MOST_FRUITLESS

    def _may_begin(self, view: SearchView) -> bool:
        return landing_point(view) is not None or self.gave_up(view)

    def _plan(self, view: SearchView) -> _Plan:
        state = view.state
        mine = sum(c.agent is self.name for c in state.candidates.values())
        self._turn += 1
        source = random.Random(f"{self.seed} {mine} {self._turn}")
        scores = _scores(view)
        pinned = [c.value for c in state.constraints if c.kind is ConstraintKind.PIN]
        children = Counter(p for c in state.candidates.values() for p in c.parents)
        weights = parent_weights(scores, children, noise=state.delta)
        parent = pinned[0] if pinned else choose_parent(weights, source)
        origin = self._origin(mine, view, source)
        others = [name for name in scores if name != parent]
        if origin is Origin.CROSSOVER and not others:
            origin = Origin.DIFF
        other = ""
        if origin is Origin.CROSSOVER:
            other = choose_parent({n: weights[n] for n in others}, source)
        return self._planned(view, origin, parent, other)

    def _origin(self, mine: int, view: SearchView, source: random.Random) -> Origin:
        planned = view.state.budget_candidates or _PLANNED
        shares = _EXPLORE if mine < _EXPLORED * planned else _EXPLOIT
        kinds = [kind for kind, _ in shares]
        return source.choices(kinds, [share for _, share in shares])[0]

    def _planned(self, view: SearchView, origin: Origin, parent: str, other: str) -> _Plan:
        known = view.state.candidates[parent]
        kernel = parse_kernel(view.source(parent), view.kernel_file)
        text, steers = body(self.material, view, parent, self.name)
        fields: dict[str, object] = {"parent": parent, "body": text}
        if origin is Origin.REWRITE:
            fields["style"] = STYLES[self._turn % len(STYLES)]
        if origin is Origin.CROSSOVER:
            fields |= {
                "other": other,
                "other_evidence": candidate_evidence(view.state.candidates[other], view.state),
                "other_source": view.source(other),
            }
        request = Request(
            role=Role.SLOW,
            system=standing(self.material, view, self.notes()),
            prompt=prompt(f"slow_{origin}", **fields),
            purpose=f"{origin} of {parent}" + (f" with {other}" if other else ""),
            parent=kernel,
            free=False,
            dimensions=view.shapes[0],
            known=self._known(view),
        )
        return _Plan(
            origin=origin,
            parents=(parent, other) if other else (parent,),
            request=request,
            steers=steers,
            seed_file=known.seed_file,
            generation=known.generation + 1,
        )

    def _known(self, view: SearchView) -> dict[str, str]:
        for name in view.state.candidates:
            if name not in self._marks.values():
                mark = parse_kernel(view.source(name), view.kernel_file).token_hash()
                self._marks.setdefault(mark, name)
        return dict(self._marks)


def _scores(view: SearchView) -> dict[str, float]:
    """Log-ratios to the reference of what can be a parent; the incumbent always can."""
    found: dict[str, float] = {}
    for candidate in view.state.candidates.values():
        if _fit(candidate) and candidate.measurement is not None:
            found[candidate.id] = math.log(candidate.measurement.ratio)
    incumbent = view.state.incumbent
    found.setdefault(incumbent, min(found.values(), default=0.0))
    return found


def _fit(candidate: Candidate) -> bool:
    if candidate.phase is not Phase.MEASURED or candidate.measurement is None:
        return False
    human = candidate.decided_by == "human"
    rejected = candidate.decision is DecisionKind.REJECTED and human
    return not rejected and not candidate.measurement.quarantine


def _propose(talk: Talk, plan: _Plan) -> Proposal:
    written: Written = write(talk, plan.request)
    return Proposal(
        source=written.source,
        reason=written.reason,
        agent=AgentName.SLOW,
        origin=plan.origin,
        parents=plan.parents,
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
    )
