"""The slow path that models and the search without one share: who is asked next, and where.

A bandit chooses an arm for each proposal (`kerneltui.search.bandit`). While a model thinks and the evaluator
has nothing to do, the search fills in, unless the number of candidates is limited: there each of its
proposals would be taken from the arm that was chosen. All of it follows from the state, so nothing is lost
with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kerneltui.agents.agent_config import IslandConfig
from kerneltui.agents.fast_path import landing_point
from kerneltui.agents.model_fast import MOST_FRUITLESS
from kerneltui.agents.model_port import ModelCall
from kerneltui.agents.model_slow import ModelSlowPath
from kerneltui.agents.news import Migrates
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.agents.rests import rest_text
from kerneltui.agents.slow_path import OfflineSlowPath
from kerneltui.agents.unknown_model import unknown_model
from kerneltui.model.candidate import AgentName
from kerneltui.search.arms import OFFLINE, pulls_of, slot_micro_usd
from kerneltui.search.bandit import choose_arm
from kerneltui.search.islands import home_of, migration, next_island, results_of

__all__ = ["SharedSlowPath"]


@dataclass(slots=True)
class SharedSlowPath:
    """Gives each proposal to an arm.

    Attributes:
        models: Proposes with a language model.
        names: The models that may be asked now.
        search: Proposes without one, if it may.
        islands: How many, and how often they take over each other's best.
        seed: Of the choices.
        tell: Takes news to the engine.
    """

    models: ModelSlowPath
    names: Callable[[], Sequence[str]]
    search: OfflineSlowPath | None
    islands: IslandConfig
    seed: int
    tell: Callable[[Migrates], None]
    name: AgentName = AgentName.SLOW
    _looked_at: int = -1
    _chosen: tuple[tuple[int, int], tuple[str, ...], str] = ((-1, 0), (), "")
    _dry: tuple[int, int] = (-1, -1)

    @property
    def busy(self) -> bool:
        """Whether a model thinks."""
        return self.models.busy

    @property
    def heard(self) -> frozenset[int]:
        """The messages that are part of what a model thinks about."""
        return self.models.heard

    def think(self, view: SearchView) -> None:
        """Begins with the next proposal if it is a model's turn."""
        self._migrate(view)
        if self.models.busy or len(self.models.waiting) >= view.room:
            return
        arm = self._choice(view)
        if arm not in ("", OFFLINE):
            self.models.begin(view, arm)

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns what a model has ready, or a proposal of the search if it is its turn."""
        ready = self.models.propose()
        if ready is not None:
            return ready
        busy = self.models.busy
        fills = busy and view.state.budget_candidates is None
        turn = (not busy or self.models.noting) and self._choice(view) == OFFLINE
        if fills or turn:
            found = self._from_search(view)
            if found is not None:
                return found
        if not busy:
            self.think(view)
        return None

    def preview(self, view: SearchView) -> ModelCall:
        """What a model would be asked now."""
        return self.models.preview(view)

    @property
    def waiting(self) -> Sequence[Proposal]:
        """What models have ready."""
        return self.models.waiting

    def leftovers(self) -> Sequence[Proposal]:
        """Takes out what models have ready."""
        return self.models.thinker.leftovers()

    def done(self, view: SearchView) -> str:
        """Never says so: where all models rest, the search answers."""
        return ""

    def status(self, view: SearchView) -> str:
        """Returns what the slow path does."""
        waiting = len(self.models.waiting)
        if self.models.busy:
            return "thinking" + (f"; {waiting} ready" if waiting else "")
        if waiting:
            return f"{waiting} ready"
        arm = self._choice(view)
        until = self.rests_until(view)
        if until is not None and arm in ("", OFFLINE):
            return rest_text(until, view.now) + ("; the search goes on" if arm else "")
        if arm == OFFLINE:
            return "leaves the next proposal to the search"
        if arm:
            return "ready"
        if not self.models.may_begin(view):
            return "waits for the fast path"
        for name in self.names():
            if unknown_model(view.state, self.name, name):
                return f"rests: no such model {name}, /model slow NAME to change"
        return f"rests after {MOST_FRUITLESS} attempts without a proposal; pause and go on to retry"

    def rests_until(self, view: SearchView) -> float | None:
        """When the first model may be asked again, if all of them are to be left alone."""
        if not self.models.may_begin(view):
            return None
        names = [name for name in self.names() if not self.models.rests(view, name)]
        times = [self.models.rests_until(view, name) for name in names]
        known = [until for until in times if until is not None]
        return min(known) if known and len(known) == len(times) else None

    def answer(self, text: str) -> str:
        """Says what becomes of a message."""
        return "taken into the next proposal"

    def refusals(self) -> tuple[str, ...]:
        """Returns the constraints that the search cannot follow; for models they are part of the question."""
        return self.search.refusals() if self.search else ()

    def interrupt(self) -> None:
        """Ends the thought."""
        self.models.thinker.interrupt()

    def close(self) -> None:
        """Ends the agent."""
        self.models.thinker.close()

    def _choice(self, view: SearchView) -> str:
        """The arm of the next proposal; empty if none can propose now."""
        arms = self._arms(view)
        waiting = [(proposal.arm, proposal.calls) for proposal in self.models.waiting]
        when = (view.state.position, len(waiting))
        then, offered, chosen = self._chosen
        if then != when or offered != arms:
            pulls, slot = pulls_of(view.state, waiting), slot_micro_usd(view.state)
            chosen = choose_arm(arms, pulls, self.seed, slot) if arms else ""
            self._chosen = (when, arms, chosen)
        return chosen

    def _arms(self, view: SearchView) -> tuple[str, ...]:
        arms: list[str] = []
        if self.models.may_begin(view):
            arms += [
                name
                for name in self.names()
                if not self.models.rests(view, name) and self.models.rests_until(view, name) is None
            ]
        if self.search is not None and landing_point(view) and self._dry != _mark(view):
            arms.append(OFFLINE)
        return tuple(arms)

    def _from_search(self, view: SearchView) -> Proposal | None:
        """The search's next proposal, at home where its parent is.

        Messages are left to models; where all of them rest, the search says that it cannot read them.
        """
        if self.search is None or self._dry == _mark(view):
            return None
        found = self.search.propose(view)
        if found is None:
            self._dry = _mark(view)
            return None
        count = self.islands.count
        home = home_of(view.state.candidates[found.parents[0]], count)
        island = home or next_island(view.state, count)
        steers, answer = (), ""
        if self._all_rest(view):
            steers, answer = None, f"the models rest; {self.search.answer('')}"
        return replace(found, arm=OFFLINE, island=island, steers=steers, answer=answer)

    def _all_rest(self, view: SearchView) -> bool:
        """Whether no model of the slow path is asked until the human does something about it."""
        return self.models.may_begin(view) and all(
            self.models.rests(view, name) for name in self.names()
        )

    def _migrate(self, view: SearchView) -> None:
        """Tells the engine when it is time for islands to take over each other's best."""
        state, count = view.state, self.islands.count
        if self._looked_at == state.position:
            return
        self._looked_at = state.position
        moves = migration(state, count, self.islands.migrate_every)
        if moves:
            self.tell(Migrates(results_of(state), tuple(moves)))


def _mark(view: SearchView) -> tuple[int, int]:
    """Changes when a search that has nothing to propose may have something again."""
    return len(view.state.candidates), len(view.state.constraints)
