"""`kerneltui context`: what an agent's language model would be told, word by word."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kerneltui.agents.bounded import estimate_tokens
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
from kerneltui.engine.notes import failure_log, read_note
from kerneltui.engine.opening import Start, create_session, workload_on
from kerneltui.engine.reader import Recording, opened_recording
from kerneltui.engine.staff import Staff
from kerneltui.headless.output import Exit
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
    workload, spec = workload_on(folder, target)
    if session is not None:
        with opened_recording(session) as recording:
            call = _call(recording, workload, spec, agent)
    else:
        with tempfile.TemporaryDirectory(prefix="kerneltui-context-") as place:
            words = nccl_words(installed_nccl()) if spec.name == "cuda" else {}
            start = Start(spec.name, "claude", 0, AcceptRule.NONE, None, None, environment=words)
            with create_session(Path(place) / "session", workload, start) as made:
                call = _call(Recording(made), workload, spec, agent)
    _print(call)
    return Exit.FINISHED


def _call(recording: Recording, workload: Workload, spec: TargetSpec, agent: str) -> ModelCall:
    recorder = recording.recorder
    staff = Staff(
        recorder=recorder,
        workload=workload,
        spec=spec,
        folder=workload.folder,
        candidates=None,
        tell=lambda news: None,
        make_model=lambda calls: _Nobody(),
        models_alone=True,
    )
    shapes = [shape.dimensions for shape in recorder.state.shapes]
    view = SearchView(
        recorder.state,
        recorder.source,
        shapes,
        Path(recorder.kernel_path).name,
        record=partial(read_note, recorder),
        log=partial(failure_log, recorder),
    )
    found = [one for one in staff.agents("claude") if str(one.name) == agent]
    speaker = found[0]
    assert isinstance(speaker, ModelFastPath | SharedSlowPath)
    return speaker.preview(view)


def _print(call: ModelCall) -> None:
    total = 0
    for number, block in enumerate(call.system, 1):
        cached = ", cached" if block.cached else ""
        total += _section(f"system {number}{cached}", block.text)
    for turn in call.turns:
        total += _section(f"{call.role}: {call.purpose}", turn.text)
    for tool in call.in_request:
        aside = "" if tool in call.tools else ", not to be called here"
        schema = json.dumps(tool.schema, indent=1)
        total += _section(f"tool {tool.name}{aside}", f"{tool.description}\n\n{schema}")
    print(
        f"about {total:,} tokens in all, by the length of the text; a call's record has what was counted"
    )


def _section(title: str, text: str) -> int:
    tokens = estimate_tokens(text)
    print(f"──── {title}, about {tokens:,} tokens\n\n{text}\n")
    return tokens
