"""The offline slow path: other kernels of the library, then a search over tunables and directive values.

Where the fast path has landed, the library kernels that it did not need are tried as they are; the choices
of the best are searched.

Every proposal is an ordinary change of the kernel text with a one-line reason. What the agent knows is
told to it again from the state, so a resumed session goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerneltui.agents.fast_path import from_library, landing_point, passed
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.model.candidate import (
    AgentName,
    Candidate,
    DecisionKind,
    Origin,
    Phase,
)
from kerneltui.model.errors import DefinitionError
from kerneltui.model.event import ConstraintKind
from kerneltui.model.expression import Value
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import FailureKind
from kerneltui.model.state import Constraint
from kerneltui.search.offline import OfflineStrategy
from kerneltui.search.parameter import Constraint as SpaceConstraint
from kerneltui.search.parameter import Parameter, SpaceError
from kerneltui.search.space import Space
from kerneltui.search.strategy import Move, Strategy

__all__ = ["OfflineSlowPath", "kernel_space"]

# A screened-out candidate was at least this much slower than the incumbent.
_SCREENED = math.log(1.5)


def kernel_space(kernel: Kernel, shapes: list[Mapping[str, int]]) -> Space:
    """Returns the space of a kernel's tunables, with its constraints held for every shape.

    Raises:
        SpaceError: No configuration is valid.
    """
    parameters = [Parameter(t.name, t.values, t.value) for t in kernel.tunables]
    names = {parameter.name for parameter in parameters}
    constraints = [
        SpaceConstraint(
            tuple(sorted(tunable.condition.names & names)),
            lambda values, condition=tunable.condition: all(
                condition.holds({**shape, **values}) for shape in shapes
            ),
        )
        for tunable in kernel.tunables
        if tunable.condition is not None
    ]
    return Space.of(parameters, constraints)


def _best_of_library(view: SearchView, landed: Candidate) -> Candidate:
    """The fastest kernel that stands as it does in the library, against the reference."""
    return max(_measured_transforms(view), key=_ratio, default=landed)


def _measured_transforms(view: SearchView) -> list[Candidate]:
    return [
        candidate
        for candidate in view.state.candidates.values()
        if candidate.origin is Origin.TRANSFORM and passed(candidate)
    ]


def _ratio(candidate: Candidate) -> float:
    return candidate.measurement.ratio if candidate.measurement else 0.0


def _texts() -> dict[tuple[Value, ...], str]:
    return {}


def _told() -> dict[str, tuple[Phase, int]]:
    return {}


@dataclass(slots=True)
class OfflineSlowPath:
    """Evolves the landing point of the fast path: by another kernel, and by declared choices.

    Args:
        seed: Of the search.
        budget: Candidates that it may take.
        library: Kernels of the workload.
    """

    seed: int
    budget: int
    library: Sequence[Kernel] = ()
    name: AgentName = AgentName.SLOW
    _kernel: Kernel | None = None
    _searched: str = ""
    _strategy: Strategy | None = None
    _ids: dict[tuple[Value, ...], str] = field(default_factory=_texts)
    _told: dict[str, tuple[Phase, int]] = field(default_factory=_told)
    _rejected: set[str] = field(default_factory=lambda: set[str]())
    _constraints: tuple[Constraint, ...] = ()
    _refused: tuple[str, ...] = ()

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns the next library kernel, then the strategy's next configuration as a kernel text."""
        other = self._from_library(view)
        if other is not None:
            return other
        strategy = self._prepare(view)
        kernel = self._kernel
        if strategy is None or kernel is None:
            return None
        self._catch_up(view, strategy, kernel)
        answers = strategy.ask(1)
        if not answers:
            return None
        answer = answers[0]
        configuration = dict(zip(self._names(), answer.configuration, strict=True))
        landed = landing_point(view)
        start = _best_of_library(view, landed) if landed else None
        parents = [
            self._ids[part]
            for part in (answer.parent, answer.second_parent)
            if part is not None and part in self._ids
        ]
        parent = parents[0] if parents else (start.id if start else view.state.incumbent)
        base = self._base_text(view, parent)
        generation = 1 + view.state.candidates[parent].generation
        changed = base.render(configuration)
        return Proposal(
            source=changed,
            reason=answer.reason,
            agent=self.name,
            origin=Origin.CROSSOVER if answer.move is Move.CROSSOVER else Origin.TUNABLES,
            parents=tuple(dict.fromkeys(parents)) or (parent,),
            directive=parse_kernel(changed, base.file).directive(view.shapes[0]),
            seed_file=kernel.file,
            generation=generation,
            configuration={key: str(value) for key, value in configuration.items()},
        )

    @property
    def busy(self) -> bool:
        """Never: a proposal is made at once."""
        return False

    @property
    def heard(self) -> frozenset[int]:
        """None: it does not think."""
        return frozenset()

    def think(self, view: SearchView) -> None:
        """Needs no time ahead."""

    def interrupt(self) -> None:
        """Has nothing under way."""

    def close(self) -> None:
        """Holds nothing."""

    @property
    def waiting(self) -> Sequence[Proposal]:
        """None: a proposal is made when it is asked for."""
        return ()

    def leftovers(self) -> Sequence[Proposal]:
        """Returns nothing: a proposal is made when it is asked for."""
        return ()

    def done(self, view: SearchView) -> str:
        """Never says so: it may have something again after every result."""
        return ""

    def rests_until(self, view: SearchView) -> float | None:
        """Never: it asks no server."""
        del view

    def status(self, view: SearchView) -> str:
        """Returns what the slow path does."""
        if landing_point(view) is None:
            return "waits for the fast path"
        if self._strategy is None:
            return "enumerating the space"
        return f"searching {len(self._names())} choices"

    def answer(self, text: str) -> str:
        """Says what the offline strategy can take."""
        return "the offline search cannot read prose; it follows /pin, /ban and /force"

    def refusals(self) -> tuple[str, ...]:
        """Returns the constraints that could not be followed and why, since the last call."""
        refused, self._refused = self._refused, ()
        return refused

    def _prepare(self, view: SearchView) -> Strategy | None:
        if self._strategy is not None:
            return self._strategy
        landed = landing_point(view)
        if landed is None:
            return None
        found = self._searchable(view, landed)
        if found is None:
            return None
        self._searched, kernel, space = found
        self._kernel = kernel
        first = tuple(kernel.configuration.values())
        self._strategy = OfflineStrategy(space, self.seed, [first], budget=self.budget)
        return self._strategy

    def _searchable(self, view: SearchView, landed: Candidate) -> tuple[str, Kernel, Space] | None:
        """The fastest whole kernel that has choices with a legal combination; a model's may have none."""
        ranked = sorted(_measured_transforms(view), key=_ratio, reverse=True)
        for candidate in ranked or [landed]:
            try:
                kernel = parse_kernel(view.source(candidate.id), candidate.seed_file)
                return candidate.id, kernel, kernel_space(kernel, list(view.shapes))
            except (DefinitionError, SpaceError):
                continue
        return None

    def _from_library(self, view: SearchView) -> Proposal | None:
        """Returns a library kernel that nobody has tried, once the fast path has landed."""
        landed = landing_point(view)
        if landed is None:
            return None
        tried = {candidate.seed_file for candidate in view.state.candidates.values()}
        for kernel in self.library:
            if kernel.file not in tried:
                best = _best_of_library(view, landed)
                return from_library(kernel, view, self.name, best.id)
        return None

    def _names(self) -> tuple[str, ...]:
        return tuple(self._kernel.configuration) if self._kernel else ()

    def _base_text(self, view: SearchView, parent: str) -> Kernel:
        """The parent's text if it has the same choices, else the landing point's."""
        kernel = self._kernel
        assert kernel is not None
        try:
            own = parse_kernel(view.source(parent), kernel.file)
        except DefinitionError:
            return kernel
        same = [(t.name, t.values) for t in own.tunables] == [
            (t.name, t.values) for t in kernel.tunables
        ]
        return own if same else kernel

    def _catch_up(self, view: SearchView, strategy: Strategy, kernel: Kernel) -> None:
        for candidate in view.state.candidates.values():
            configuration = self._configuration(candidate, kernel)
            if configuration is None:
                continue
            self._ids.setdefault(configuration, candidate.id)
            mark = (candidate.phase, candidate.attempt)
            if self._told.get(candidate.id) != mark:
                self._tell(view, strategy, candidate, configuration)
            if candidate.decision is DecisionKind.REJECTED and candidate.id not in self._rejected:
                self._rejected.add(candidate.id)
                # A rule rejects for the numbers, which the strategy has; a human for reasons of his own.
                if candidate.decided_by == "human":
                    strategy.reject(configuration)
        self._steer(view, strategy)

    def _tell(
        self,
        view: SearchView,
        strategy: Strategy,
        candidate: Candidate,
        configuration: tuple[Value, ...],
    ) -> None:
        mark = (candidate.phase, candidate.attempt)
        if candidate.phase is Phase.MEASURED and candidate.measurement is not None:
            value = -math.log(candidate.measurement.ratio)
            strategy.tell(configuration, value, label=candidate.id)
        elif candidate.phase is Phase.FAILED and candidate.failure is not None:
            if candidate.failure.kind is FailureKind.HARNESS_FAULT:
                return
            if candidate.failure.kind is FailureKind.TOO_SLOW:
                incumbent = view.state.candidates[view.state.incumbent].measurement
                anchor = -math.log(incumbent.ratio) if incumbent else 0.0
                strategy.tell(configuration, anchor + _SCREENED, screened=True, label=candidate.id)
            else:
                strategy.tell(configuration, None, label=candidate.id)
        else:
            return
        self._told[candidate.id] = mark

    def _configuration(self, candidate: Candidate, kernel: Kernel) -> tuple[Value, ...] | None:
        """The point of the space that a candidate is; None where a model has changed more than choices."""
        if candidate.calls and candidate.id != self._searched:
            return None
        if candidate.origin not in (Origin.TRANSFORM, Origin.TUNABLES, Origin.CROSSOVER):
            return None
        if candidate.seed_file != kernel.file:
            return None
        values: list[Value] = []
        for tunable in kernel.tunables:
            text = candidate.configuration.get(tunable.name)
            match = [value for value in tunable.values if str(value) == text]
            if not match:
                return None
            values.append(match[0])
        return tuple(values)

    def _steer(self, view: SearchView, strategy: Strategy) -> None:
        wanted = view.state.constraints
        if wanted == self._constraints:
            return
        kernel = self._kernel
        assert kernel is not None
        lifted = [c for c in self._constraints if c not in wanted and c.field]
        for name in {constraint.field for constraint in lifted}:
            strategy.release(name)
        again = {constraint.field for constraint in lifted}
        for constraint in wanted:
            if constraint in self._constraints and constraint.field not in again:
                continue
            try:
                self._apply(view, strategy, kernel, constraint)
            except (SpaceError, KeyError) as error:
                self._refused = (*self._refused, f"{constraint.kind}: {error}")
        self._constraints = wanted

    def _apply(
        self, view: SearchView, strategy: Strategy, kernel: Kernel, constraint: Constraint
    ) -> None:
        if constraint.kind is ConstraintKind.PIN:
            candidate = view.state.candidates[constraint.value]
            configuration = self._configuration(candidate, kernel)
            if configuration is None:
                raise SpaceError(f"{constraint.value} is no choice of values of {self._searched}")
            strategy.pin(configuration)
            return
        value = self._value(kernel, constraint)
        if constraint.kind is ConstraintKind.BAN:
            strategy.ban(constraint.field, value)
        else:
            strategy.force(constraint.field, value)

    @staticmethod
    def _value(kernel: Kernel, constraint: Constraint) -> Value:
        for tunable in kernel.tunables:
            if tunable.name == constraint.field:
                return Parameter(tunable.name, tunable.values).parse(constraint.value)
        names = ", ".join(tunable.name for tunable in kernel.tunables)
        raise SpaceError(f"'{constraint.field}' is not one of {names}")
