"""`kerneltui context`: what an agent's language model would be told, word by word."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kerneltui.agents.agent_config import load_agent_config
from kerneltui.agents.bounded import estimate_tokens
from kerneltui.agents.fast_path import landing_point
from kerneltui.agents.model_fast import ModelFastPath
from kerneltui.agents.model_port import (
    Chunk,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
)
from kerneltui.agents.port import SearchView
from kerneltui.agents.shared_slow import SharedSlowPath
from kerneltui.agents.tool_schema import wire_schema
from kerneltui.config import config_folder
from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.notes import failure_log, read_note
from kerneltui.engine.opening import Start, create_session, workload_on
from kerneltui.engine.reader import Recording, opened_recording
from kerneltui.engine.search_clock import sittings
from kerneltui.engine.staff import Staff
from kerneltui.headless.output import Exit
from kerneltui.model.candidate import Phase
from kerneltui.model.event import AcceptRule
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.targets.cuda.network import nccl_words
from kerneltui.targets.cuda.packages import installed_nccl

__all__ = ["context"]


class _Nobody:
    """The model of a preview: it is never asked."""

    def quote(self, call: ModelCall) -> tuple[str, int | None]:
        """Has no price."""
        return "nobody", None

    def ask(
        self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
    ) -> ModelReply:
        """Answers nothing."""
        raise ModelFailure(FailureKind.REQUEST, "nobody is asked in a preview")

    def set_model(self, role: Role, model: str) -> None:
        """Is none."""

    def models(self, role: Role) -> Sequence[str]:
        """Is one that is never asked."""
        return ("nobody",)

    def set_budget(self, micro_usd: int | None) -> None:
        """Spends nothing."""

    def close(self) -> None:
        """Holds nothing."""


def context(folder: Path, *, session: Path | None, target: str | None, agent: str) -> int:
    """Prints the context of the fast or the slow path, in a session or in a new one."""
    if session is not None:
        with opened_recording(session) as recording:
            state = recording.recorder.state
            if target not in (None, state.target):
                raise WorkloadUnfit(f"{session}: is of target {state.target}, not {target}")
            workload, spec = workload_on(folder, state.target)
            _show(recording, workload, spec, agent)
        return Exit.FINISHED
    workload, spec = workload_on(folder, target)
    machine, unseen = _machine(workload, spec)
    start = Start(spec.name, "claude", 0, AcceptRule.NONE, None, None, environment=machine)
    with (
        tempfile.TemporaryDirectory(prefix="kerneltui-context-") as place,
        create_session(Path(place) / "session", workload, start) as made,
    ):
        _show(Recording(made), workload, spec, agent, unseen)
    return Exit.FINISHED


def _machine(workload: Workload, spec: TargetSpec) -> tuple[Mapping[str, str], str]:
    """What a session's record would say of this machine, and what only a session can know."""
    measured = "rates, bounds and baselines of the machine, torch, sandbox and load"
    try:
        evaluator = make_evaluator(workload, spec)
    except WorkloadUnfit as error:
        words = nccl_words(installed_nccl()) if spec.name == "cuda" else {}
        return words, f"{measured}, and the machine, so no row that depends on it ({error})"
    try:
        return evaluator.machine(), measured
    finally:
        evaluator.close()


def _show(
    recording: Recording, workload: Workload, spec: TargetSpec, agent: str, unseen: str = ""
) -> None:
    recorder = recording.recorder
    config = load_agent_config(config_folder())
    staff = Staff(
        recorder=recorder,
        workload=workload,
        spec=spec,
        folder=workload.folder,
        candidates=None,
        tell=lambda news: None,
        make_model=lambda calls: _Nobody(),
        models_alone=True,
        islands=config.islands,
    )
    view = _view(recording)
    found = [one for one in staff.agents("claude") if str(one.name) == agent]
    speaker = found[0]
    assert isinstance(speaker, ModelFastPath | SharedSlowPath)
    call = speaker.preview(view)
    _print(call, strict=config.asked(call.role).strict_tools)
    if unseen:
        print(f"without --session nobody knows, and it is not in there: {unseen}")
    aside = _not_asked(speaker, view)
    if aside:
        print(aside)


def _view(recording: Recording) -> SearchView:
    """What the agents of an engine that goes on with the session would look at."""
    recorder = recording.recorder
    state = recorder.state
    waiting = (Phase.PROPOSED, Phase.INTERRUPTED)
    return SearchView(
        state,
        recorder.source,
        [shape.dimensions for shape in state.shapes],
        Path(recorder.kernel_path).name,
        record=partial(read_note, recorder),
        log=partial(failure_log, recorder),
        elapsed_ns=sum(sittings(recording.events)) if state.budget_ns is not None else 0,
        queued=[c.id for c in state.candidates.values() if c.phase in waiting],
    )


def _not_asked(speaker: ModelFastPath | SharedSlowPath, view: SearchView) -> str:
    """Why a session as it stands would not ask this now; empty if it would."""
    if isinstance(speaker, SharedSlowPath):
        if speaker.models.may_begin(view):
            return ""
        return "not asked now: the slow path begins once the fast path has landed or given up"
    if landing_point(view) is None and not speaker.gave_up(view):
        return ""
    return f"not asked now: {speaker.status(view)}"


def _print(call: ModelCall, *, strict: bool) -> None:
    total = 0
    for number, block in enumerate(call.system, 1):
        cached = ", cached" if block.cached else ""
        total += _section(f"system {number}{cached}", block.text)
    for turn in call.turns:
        total += _section(f"{call.role}: {call.purpose}", turn.text)
    for tool in call.in_request:
        aside = "" if tool in call.tools else ", not to be called here"
        schema = json.dumps(wire_schema(tool.schema) if strict else tool.schema, indent=1)
        total += _section(f"tool {tool.name}{aside}", f"{tool.description}\n\n{schema}")
    print(
        f"about {total:,} tokens in all, by the length of the text; a call's record has what was counted"
    )


def _section(title: str, text: str) -> int:
    tokens = estimate_tokens(text)
    print(f"──── {title}, about {tokens:,} tokens\n\n{text}\n")
    return tokens
