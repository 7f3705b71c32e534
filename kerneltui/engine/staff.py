"""The agents of a session: offline ones, those with a language model, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kerneltui.agents.agent_config import IslandConfig
from kerneltui.agents.context import Material
from kerneltui.agents.fast_path import OfflineFastPath
from kerneltui.agents.model_fast import ModelFastPath
from kerneltui.agents.model_port import ModelPort, Role
from kerneltui.agents.model_slow import ModelSlowPath
from kerneltui.agents.port import Agent
from kerneltui.agents.rests import Rests
from kerneltui.agents.shared_slow import SharedSlowPath
from kerneltui.agents.slow_path import OfflineSlowPath
from kerneltui.agents.thinking import Thinker
from kerneltui.engine.lab_notes import lab_notes
from kerneltui.engine.opening import library_kernels
from kerneltui.engine.recorder import Recorder
from kerneltui.model.agent_event import CallRecord
from kerneltui.model.candidate import AgentName
from kerneltui.model.workload import TargetSpec, Workload

__all__ = ["MODES", "MakeModel", "Staff"]

MakeModel = Callable[[Iterable[CallRecord]], ModelPort]
"""Makes a language model, given the calls that the session has made so far."""

MODES = ("off", "offline", "claude")
"""Who proposes: nobody, the search without a model, a language model beside the search."""

_DEFAULT_BUDGET = 40


@dataclass(slots=True)
class Staff:
    """Makes the agents.

    Attributes:
        recorder: Of the session.
        workload: What is computed.
        spec: The workload on this target.
        folder: Of the workload.
        candidates: Budget of candidates, or None.
        tell: Takes news of agents that think to the engine; from any thread.
        make_model: Makes the language model.
        models_alone: Whether the search without a model does not propose beside it.
        islands: Of the slow path with models.
        model: The language model that was made, if any.
        rests: The models that their server wants to be left alone for a while.
    """

    recorder: Recorder
    workload: Workload
    spec: TargetSpec
    folder: Path
    candidates: int | None
    tell: Callable[[object], None]
    make_model: MakeModel
    models_alone: bool = False
    islands: IslandConfig = field(default_factory=IslandConfig)
    model: ModelPort | None = None
    rests: Rests = field(default_factory=Rests)

    def agents(self, mode: str) -> list[Agent]:
        """The agents of a mode, in the order in which they are asked.

        Raises:
            DefinitionError: A library kernel or the configuration of models is wrong.
        """
        if mode == "off":
            return []
        library = library_kernels(self.workload, self.spec)
        budget = self.candidates or _DEFAULT_BUDGET
        search = OfflineSlowPath(self.recorder.state.seed, budget, library)
        if mode == "offline":
            return [OfflineFastPath(library), search]
        return self._with_models(None if self.models_alone else search)

    def _with_models(self, search: OfflineSlowPath | None) -> list[Agent]:
        state = self.recorder.state
        model = self.make_model(state.calls.values())
        model.set_budget(state.budget_micro_usd)
        for role, name in state.models.items():
            model.set_model(Role(role), name)
        self.model = model
        seed_file = state.candidates[state.base].seed_file
        material = Material.of(self.folder, state.target, state.ranks, seed_file)
        fast = ModelFastPath(
            material, Thinker(AgentName.FAST, model, self.tell, self.rests), self._notes
        )
        slow = ModelSlowPath(
            material,
            Thinker(AgentName.SLOW, model, self.tell, self.rests),
            fast.gave_up,
            self._notes,
            state.seed,
            self.islands.count,
        )
        names = partial(model.models, Role.SLOW)
        shared = SharedSlowPath(slow, names, search, self.islands, state.seed, self.tell)
        return [fast, shared]

    def _notes(self) -> str:
        return lab_notes(self.recorder)
