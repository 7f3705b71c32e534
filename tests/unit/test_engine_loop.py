"""The engine's loop over a real session repository, with the evaluation replaced by a fake."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine_fakes import FakeEvaluator
from live_engine import Terminal, git, live_engine, setup_of

from kerneltui.engine.opening import load_state, read_events
from kerneltui.engine.run import run_engine
from kerneltui.model.candidate import (
    AgentName,
    CandidateState,
    DecisionKind,
    Failure,
    Origin,
    Phase,
)
from kerneltui.model.command import Interrupt, ReadMachineCode, Rebench
from kerneltui.model.event import AcceptRule
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.reading import GpuReading, decode_readings
from kerneltui.model.state import fold
from kerneltui.session.bundle import open_bundle, write_bundle
from kerneltui.session.repository import Session


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "gemm_allgather-cpu-0001"


@pytest.fixture
def live(session: Path) -> Iterator[Callable[..., Terminal]]:
    """A running engine with a terminal; the evaluation answers at once."""
    with live_engine(session) as start:
        yield start


def test_the_slow_path_takes_what_the_fast_path_left_of_the_library_and_tunes_the_best(
    tmp_path: Path,
) -> None:
    setup = setup_of(tmp_path / "s", FakeEvaluator(), candidates=6)
    state, _, failure = run_engine(replace(setup, start=replace(setup.start, target="cuda")))
    assert failure is None
    found = [c for c in state.candidates.values() if c.id != state.base]
    assert [(c.agent, c.seed_file, c.origin) for c in found[:2]] == [
        (AgentName.FAST, "lsa_chunked.cu", Origin.TRANSFORM),
        (AgentName.SLOW, "lsa_fused_sm90.cu", Origin.TRANSFORM),
    ]
    ratios = {c.seed_file: c.measurement.ratio for c in found[:2] if c.measurement}
    best = max(ratios, key=lambda file: ratios[file])
    assert {c.seed_file for c in found[2:]} == {best}
    assert {c.origin for c in found[2:]} <= {Origin.TUNABLES, Origin.CROSSOVER}
    assert len(found) == 6


def test_tune_by_rule_goes_from_the_seed_to_better_kernels(session: Path):
    evaluator = FakeEvaluator()
    state, reason, failure = run_engine(setup_of(session, evaluator, candidates=12))
    assert failure is None
    assert reason == "the budget of 12 candidates is used"
    assert evaluator.closed
    assert len(state.candidates) == 13
    best = state.candidates[state.incumbent]
    assert best.decision is DecisionKind.ACCEPTED
    assert best.measurement is not None and best.measurement.ratio > 1.0
    assert state.state_of(best.id) is CandidateState.BEST
    # every candidate was decided by the rule, and nothing is lost from the count
    counts = state.counts()
    assert sum(counts.values()) == 13
    assert counts[CandidateState.PEND] == 0
    story = git(session, "log", "--first-parent", "--format=%s", "main").splitlines()
    assert story[-1].startswith("c0000: the seed host.cpp")
    assert story[0].startswith(f"Accept {best.id}")
    # what is accepted is exactly what was measured
    assert git(session, "rev-parse", "main^{tree}") == git(
        session, "rev-parse", f"{best.sha}^{{tree}}"
    )
    assert git(session, "notes", "show", best.sha).startswith("{")
    git(session, "fsck", "--strict")


def test_replay_of_the_journal_is_the_live_state_at_every_step(session: Path, tmp_path: Path):
    steps: list[bytes] = []
    setup = setup_of(session, FakeEvaluator(), candidates=6)
    setup = replace(setup, on_event=lambda event, state: steps.append(state.canonical()))
    live, _, _ = run_engine(setup)
    bundle = tmp_path / "run.bundle"
    write_bundle(session, bundle)
    with open_bundle(bundle, tmp_path / "elsewhere" / "copy", writable=False) as copy:
        events = list(read_events(copy))
    assert fold(events).canonical() == live.canonical()
    # the first two events are written while the session is made, before anyone listens
    state = fold(events[:2])
    for event, seen in zip(events[2:], steps, strict=True):
        state.apply(event)
        assert state.canonical() == seen


def test_a_resumed_session_goes_on(session: Path):
    run_engine(setup_of(session, FakeEvaluator(), candidates=4))
    setup = setup_of(session, FakeEvaluator(), candidates=7)
    state, _, _ = run_engine(replace(setup, renew=True))
    assert len(state.candidates) == 8
    with Session.open(session, writable=False) as again:
        assert load_state(again).canonical() == state.canonical()
        assert fold(read_events(again)).canonical() == state.canonical()


def test_failures_are_recorded_with_reason_and_log_and_the_search_goes_on(session: Path):
    def fail(kernel):
        if kernel.configuration.get("GEMM_KIND") == "GEMM_TILED":
            return Failure(Stage.VERIFY, FailureKind.HANG, "rank 1 hung in run")
        return None

    state, _, _ = run_engine(setup_of(session, FakeEvaluator(fail=fail), candidates=14))
    failed = [c for c in state.candidates.values() if c.failure is not None]
    assert failed
    assert all(c.failure.reason == "rank 1 hung in run" for c in failed)
    with Session.open(session, writable=False) as again:
        name, _, digest = failed[0].failure.log.partition("@")
        assert again.read_log(name, digest) == b"the whole story"


def test_json_of_the_state_has_no_paths(session: Path):
    state, _, _ = run_engine(setup_of(session, FakeEvaluator(), candidates=2))
    text = state.canonical().decode()
    assert str(session.parent) not in text
    assert json.loads(text)["session"] == session.name


def test_an_interrupted_evaluation_is_marked_and_can_be_run_again(live):
    block = threading.Event()
    terminal = live(FakeEvaluator(block=block), rule=AcceptRule.NONE, candidates=1)
    terminal.wait(lambda s: any(c.phase is Phase.CHECKING for c in s.candidates.values()))
    told = terminal.ask(Interrupt())
    assert told["ok"] and told["data"]["text"] == "interrupting the evaluation of c0001"
    terminal.wait(lambda s: any(c.phase is Phase.INTERRUPTED for c in s.candidates.values()))
    nothing = terminal.ask(Interrupt())
    assert not nothing["ok"] and nothing["error"] == "no evaluation is running, and no agent thinks"
    block.set()
    cut = next(c.id for c in terminal.state.candidates.values() if c.phase is Phase.INTERRUPTED)
    assert terminal.ask(Rebench(cut))["ok"]
    terminal.wait(lambda s: s.candidates[cut].measurement is not None)
    assert terminal.state.candidates[cut].attempt == 2


def test_the_search_does_not_end_since_its_only_kernel_was_interrupted_once(live):
    block = threading.Event()
    terminal = live(FakeEvaluator(block=block), candidates=4)
    terminal.wait(lambda s: any(c.phase is Phase.CHECKING for c in s.candidates.values()))
    assert terminal.ask(Interrupt())["ok"]
    terminal.wait(lambda s: s.ended or any(c.attempt == 2 for c in s.candidates.values()))
    block.set()
    terminal.wait(lambda s: bool(s.ended))
    assert terminal.state.ended == "the budget of 4 candidates is used"
    assert terminal.state.candidates["c0001"].measurement is not None


def test_a_kernel_that_is_interrupted_again_and_again_ends_the_search(live):
    terminal = live(FakeEvaluator(block=threading.Event()), candidates=4)
    for attempt in (1, 2):
        terminal.wait(
            lambda s, attempt=attempt: any(
                c.phase is Phase.CHECKING and c.attempt == attempt for c in s.candidates.values()
            )
        )
        assert terminal.ask(Interrupt())["ok"]
    terminal.wait(lambda s: bool(s.ended))
    assert terminal.state.ended == "the search has nothing left to propose"
    assert terminal.state.candidates["c0001"].attempt == 2


def test_faults_of_the_harness_are_tried_again_and_then_pause_the_search(live):
    faults = iter([True] * 3)
    wrong = Failure(Stage.BENCHMARK, FailureKind.HARNESS_FAULT, "a baseline failed")
    evaluator = FakeEvaluator(fail=lambda kernel: wrong if next(faults, False) else None)
    terminal = live(evaluator, candidates=4)
    terminal.wait(lambda s: s.paused)
    assert terminal.state.candidates["c0001"].attempt == 3
    said = terminal.state.messages[-1].text
    assert said == "paused after 3 faults of the harness in a row: a baseline failed"
    assert terminal.ask(Rebench("c0001"))["ok"]
    terminal.wait(lambda s: s.candidates["c0001"].measurement is not None)


def test_a_terminal_is_told_what_the_gpus_do(live):
    reading = GpuReading(0, 1, sm_clock_mhz=1980, power_w=652.4)
    terminal = live(FakeEvaluator(gpus=(reading,)), agents="off")
    frame = terminal.until(lambda f: f["frame"] == "progress" and f["progress"]["kind"] == "gpu")
    assert decode_readings(frame["progress"]["extra"]["readings"]) == (reading,)
    answer = terminal.ask(ReadMachineCode("c0000"))
    assert not answer["ok"] and "kernel.cpp has no machine code" in answer["error"]
