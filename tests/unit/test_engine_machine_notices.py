"""What the machine has to tell reaches the session, the terminal's log and the text of commands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_fakes import FakeEvaluator

from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.evaluation.outcome import Interrupted
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.headless import bench
from kerneltui.headless.bench_file import BenchFile
from kerneltui.headless.tune import _Narrator  # pyright: ignore[reportPrivateUsage]
from kerneltui.model.command import Progress
from kerneltui.model.event import AcceptRule, AgentMessage, Event
from kerneltui.model.state import State
from kerneltui.targets.notices import Notice, Notices

WORKLOAD = Path(__file__).parents[2] / "workloads" / "gemm_allgather"
STRANGER = Notice("process 4242, which is not ours, is on GPU 0: times may be wrong")
WAIT = Notice("waits for the lock /var/lock/gpu.lock", passing=True)
HELD = Notice("GPU 1 is quarantined, nothing runs on it any more: processes 8 are still on it")


@dataclass(slots=True)
class Told(FakeEvaluator):
    """Says something at the start, and something when everything ends."""

    hear: Callable[[Notice], None] | None = None

    def listen(self, hear: Callable[[Notice], None]) -> None:
        self.hear = hear
        for notice in self.notices:
            hear(notice)

    def close(self) -> None:
        assert self.hear is not None
        self.hear(HELD)


def run(folder: Path) -> tuple[State, list[Event], list[Progress], EngineSetup]:
    events: list[Event] = []
    said: list[Progress] = []
    setup = EngineSetup(
        Place(folder, WORKLOAD, exists=False),
        Start("cpu", "offline", 1, AcceptRule.AUTO, 1, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: Told(notices=(STRANGER, WAIT)),
        take_signals=False,
        on_event=lambda event, state: events.append(event),
        on_progress=said.append,
    )
    state, _, failure = run_engine(setup)
    assert failure is None
    return state, events, said, setup


def test_who_else_is_there_stands_in_the_session_and_a_wait_is_only_shown(folder: Path) -> None:
    state, events, said, _ = run(folder)
    texts = [event.text for event in events if isinstance(event, AgentMessage)]
    assert STRANGER.text in texts and WAIT.text not in texts
    assert WAIT.text in [progress.text for progress in said]
    assert any(m.agent == "engine" and m.text == STRANGER.text for m in state.messages)


def test_a_gpu_that_is_not_free_at_the_end_is_told_too(folder: Path) -> None:
    state, _, _, _ = run(folder)
    assert state.messages[-1].text == HELD.text


def test_tune_tells_all_of_it_in_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrator = _Narrator(as_json=False, first="session x")
    setup = run(folder)[3]
    again = replace(setup, place=replace(setup.place, exists=True), on_event=narrator.event)
    run_engine(replace(again, on_progress=narrator.progress))
    lines = capsys.readouterr().err.splitlines()
    assert f"engine: {STRANGER.text}" in lines
    assert f"engine: {HELD.text}" in lines
    assert f"  {WAIT.text}" in lines


class _Benched:
    """An evaluator for `bench` that tells of company, and then is stopped."""

    def __init__(self) -> None:
        self.notices = Notices()
        self.stand = self

    def listen(self, hear: Callable[[Notice], None]) -> None:
        self.notices.listen(hear)

    def start(self) -> None:
        self.notices.say(STRANGER.text)
        self.notices.say(WAIT.text, passing=True)

    def ready(self) -> None:
        raise Interrupted("on request")

    def close(self) -> None:
        self.notices.say(HELD.text)


def test_bench_tells_it_and_keeps_it_in_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = BenchFile(None, {})
    plan = cast(Any, SimpleNamespace(shapes=()))
    with pytest.raises(Interrupted):
        bench._measure(cast(Evaluator, _Benched()), {}, plan, file, lambda result: None)
    assert capsys.readouterr().err.splitlines() == [STRANGER.text, WAIT.text, HELD.text]
    assert file.parts[0]["notices"] == [STRANGER.text, HELD.text]


def test_notices_wait_for_the_first_who_listens_and_go_to_the_last() -> None:
    notices = Notices()
    first: list[Notice] = []
    last: list[Notice] = []
    notices.say("one")
    notices.listen(first.append)
    thread = threading.Thread(target=notices.say, args=("two",))
    thread.start()
    thread.join()
    notices.listen(last.append)
    notices.say("three", passing=True)
    assert first == [Notice("one"), Notice("two")]
    assert last == [Notice("three", passing=True)]
