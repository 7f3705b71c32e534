"""The engine's loop over a real session repository, with the evaluation replaced by a fake."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from engine_fakes import FakeEvaluator

from kerneltui.engine.connection import connect
from kerneltui.engine.opening import Start, load_state, read_events
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.candidate import (
    AgentName,
    CandidateState,
    DecisionKind,
    Failure,
    Origin,
    Phase,
)
from kerneltui.model.command import (
    Accept,
    ChooseModel,
    Command,
    Constrain,
    Edit,
    Interrupt,
    Profile,
    ReadLabNotes,
    ReadLog,
    ReadMachineCode,
    ReadNotes,
    ReadSource,
    Rebench,
    Redo,
    Reject,
    SetBudget,
    Steer,
    StopEngine,
    TakeOver,
    Undo,
    WriteNotes,
    encode_command,
)
from kerneltui.model.event import AcceptRule, ConstraintKind, decode_event
from kerneltui.model.frames import PROTOCOL, FrameReader, encode_frame
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.reading import GpuReading, decode_readings
from kerneltui.model.record import canonical_json, from_plain
from kerneltui.model.state import State, fold
from kerneltui.session.bundle import open_bundle, write_bundle
from kerneltui.session.repository import Session

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "workloads" / "gemm_allgather"


def setup_of(
    session: Path,
    evaluator: FakeEvaluator,
    *,
    candidates: int = 8,
    rule: AcceptRule = AcceptRule.AUTO,
    agents: str = "offline",
    leave: bool = True,
    undecided: int | None = None,
) -> EngineSetup:
    place = Place(session, WORKLOAD, exists=(session / ".git").exists())
    start = Start("cpu", agents, 1, rule, candidates, None)
    options = Options(undecided=undecided, leave_when_done=leave)
    return EngineSetup(place, start, options, lambda workload, spec: evaluator, take_signals=False)


def git(session: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(session), *arguments], check=True, capture_output=True, text=True
    )
    return result.stdout


class Terminal:
    """A client as the terminal is one: folds events, sends commands, waits for what it needs."""

    def __init__(self, place: Place, readonly: bool = False) -> None:
        self.socket = connect(place.socket)
        self.socket.settimeout(20)
        self.reader = FrameReader()
        self.frames: list[dict] = []
        self.state = State()
        self.writer = False
        self.number = 0
        hello = {"frame": "hello", "protocol": PROTOCOL, "readonly": readonly}
        self.socket.sendall(encode_frame(hello))
        self.until(lambda frame: frame["frame"] == "welcome")

    def until(self, holds) -> dict:
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                self.take(frame)
                if holds(frame):
                    return frame
            data = self.socket.recv(65536)
            assert data, "the engine hung up"
            self.frames += self.reader.feed(data)

    def take(self, frame: dict) -> None:
        if frame["frame"] == "welcome":
            self.state = from_plain(State, frame["state"])
            self.writer = frame["writer"]
        elif frame["frame"] == "event":
            assert frame["position"] == self.state.position + 1
            self.state.apply(decode_event(canonical_json(frame["event"])))
        elif frame["frame"] == "writer":
            self.writer = frame["writer"]

    def ask(self, command: Command) -> dict:
        self.number += 1
        number = self.number
        frame = {"frame": "command", "id": number, "command": encode_command(command)}
        self.socket.sendall(encode_frame(frame))
        return self.until(lambda f: f["frame"] == "reply" and f["id"] == number)

    def wait(self, holds) -> None:
        if not holds(self.state):
            self.until(lambda frame: holds(self.state))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "gemm_allgather-cpu-0001"


@pytest.fixture
def live(session: Path):
    """A running engine with a terminal; the evaluation answers at once."""
    started: list[threading.Thread] = []
    terminals: list[Terminal] = []

    def start(evaluator: FakeEvaluator, **options) -> Terminal:
        setup = setup_of(session, evaluator, leave=False, **options)
        thread = threading.Thread(target=run_engine, args=(setup,), daemon=True)
        thread.start()
        started.append(thread)
        for _ in range(500):
            try:
                terminals.append(Terminal(setup.place))
                return terminals[-1]
            except OSError:
                threading.Event().wait(0.02)
        raise AssertionError("no engine")

    yield start
    place = Place(session, WORKLOAD, exists=True)
    for thread in started:
        if thread.is_alive():
            terminal = Terminal(place)
            terminal.ask(TakeOver())
            terminal.ask(StopEngine())
            thread.join(20)
            assert not thread.is_alive()
            terminal.socket.close()
    for terminal in terminals:
        terminal.socket.close()


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


def test_the_human_decides(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=40, undecided=3)
    assert terminal.writer
    terminal.wait(lambda s: len(list(s.pending())) >= 3)
    first = next(terminal.state.pending())
    stale = terminal.ask(Accept(first.id, "0" * 40))
    assert not stale["ok"] and "another commit" in stale["error"]
    faster = next(c for c in terminal.state.pending() if c.measurement.verdict == "FASTER")
    assert terminal.ask(Accept(faster.id, faster.sha))["ok"]
    assert terminal.state.incumbent == faster.id
    main = terminal.state.main
    assert terminal.ask(Undo())["ok"]
    assert terminal.state.incumbent == terminal.state.base
    assert terminal.state.state_of(faster.id) is CandidateState.PEND
    assert terminal.ask(Redo())["ok"]
    assert terminal.state.incumbent == faster.id
    assert terminal.state.main != main
    other = next(iter(terminal.state.pending()))
    assert terminal.ask(Reject(other.id, other.sha, note="too complicated"))["ok"]
    assert terminal.state.candidates[other.id].note == "too complicated"
    again = terminal.ask(Reject(other.id, other.sha))
    assert not again["ok"] and "undo first" in again["error"]


def test_hunks_and_edits_make_new_candidates(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=1)
    terminal.wait(lambda s: bool(list(s.pending())))
    landed = next(terminal.state.pending())
    answer = terminal.ask(ReadSource(landed.id))["data"]
    assert answer["parent"] == "c0000" and "host.cpp" in answer["parent_source"]
    kernel = parse_kernel(answer["source"])
    assert kernel.configuration["CHUNK_ROWS"] != 96 and kernel.configuration["NR"] != 24
    text = kernel.render({"CHUNK_ROWS": 96, "NR": 24})
    made = terminal.ask(Edit(landed.id, text, "larger chunks"))
    assert made["ok"]
    mine = made["data"]["candidate"]
    terminal.wait(lambda s: s.candidates[mine].measurement is not None)
    part = terminal.ask(Accept(mine, terminal.state.candidates[mine].sha, hunks=(0,)))
    assert part["data"]["partial"] is True
    new = part["data"]["candidate"]
    terminal.wait(lambda s: s.candidates[new].measurement is not None)
    source = terminal.ask(ReadSource(new))["data"]["source"]
    assert ("#define CHUNK_ROWS 96" in source) != ("#define NR 24" in source)
    nothing = terminal.ask(Edit(landed.id, answer["source"]))
    assert not nothing["ok"] and "nothing was changed" in nothing["error"]


def test_steering_binds_the_search(live):
    evaluator = FakeEvaluator()
    terminal = live(evaluator, rule=AcceptRule.AUTO, candidates=30)
    unknown = terminal.ask(Constrain(ConstraintKind.BAN, "NOTHING", "1"))
    assert not unknown["ok"]
    assert "no choice of this kernel or of the directive" in unknown["error"]
    terminal.wait(lambda s: len(s.candidates) > 1)
    wrong = terminal.ask(Constrain(ConstraintKind.FORCE, "backend", "fused"))
    assert not wrong["ok"] and "it has host lsa gin copy_engine" in wrong["error"]
    assert terminal.ask(Constrain(ConstraintKind.FORCE, "Backend", "lsa"))["ok"]
    assert terminal.ask(Constrain(ConstraintKind.BAN, "chunk_bytes", "4096"))["ok"]
    known = len(terminal.state.candidates)
    terminal.wait(lambda s: len(s.candidates) > known + 1)
    assert terminal.ask(Constrain(ConstraintKind.FORCE, "BACKEND", "lsa", active=False))["ok"]
    assert [c.field for c in terminal.state.constraints] == ["chunk_bytes"]
    known = len(terminal.state.candidates)
    terminal.wait(lambda s: len(s.candidates) > known + 1)
    assert terminal.ask(Steer("slow", "try larger tiles"))["ok"]
    assert terminal.ask(Constrain(ConstraintKind.BAN, "copy_kind", "COPY_MOVSB"))["ok"]
    assert terminal.ask(Constrain(ConstraintKind.FORCE, "TRANSFER", "push"))["ok"]
    known = set(terminal.state.candidates)
    terminal.wait(lambda s: bool(s.ended))
    later = [c for name, c in terminal.state.candidates.items() if name not in known]
    # one proposal may have been on its way
    for candidate in later[1:]:
        assert candidate.configuration["COPY_KIND"] != "COPY_MOVSB"
        assert candidate.configuration["TRANSFER"] == "push"
    assert terminal.state.steers[0].delivered_to == "slow"


def test_lab_notes_are_an_event_and_stand_in_every_later_candidate(live, session: Path):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=1)
    terminal.wait(lambda s: bool(list(s.pending())))
    landed = next(terminal.state.pending())
    before = terminal.ask(ReadLabNotes())["data"]["text"]
    assert before.startswith("# Notes")
    text = "# Notes\n\nLarger chunks win on tall shapes.\n"
    assert terminal.ask(WriteNotes(text))["ok"]
    assert terminal.state.notes == text
    assert terminal.ask(ReadLabNotes())["data"]["text"] == text
    again = terminal.ask(WriteNotes(text))
    assert not again["ok"] and "nothing was changed" in again["error"]
    assert not terminal.ask(WriteNotes("x" * 70_000))["ok"]
    source = parse_kernel(terminal.ask(ReadSource(landed.id))["data"]["source"])
    values = {"CHUNK_ROWS": 96, "NR": 24}
    mine = terminal.ask(Edit(landed.id, source.render(values)))["data"]["candidate"]
    place = "refs/kerneltui/candidates/{}:notes.md"
    assert git(session, "show", place.format(mine)) == text
    assert git(session, "show", place.format(landed.id)) == before
    subject = git(session, "log", "--format=%s", "refs/kerneltui/journal", "--grep=lab notes")
    assert subject.strip() == "human wrote the lab notes, 3 lines"


def test_a_model_can_only_be_chosen_where_one_is_asked(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=1)
    answer = terminal.ask(ChooseModel("slow", "model-y"))
    assert not answer["ok"] and "ask no model" in answer["error"]


def test_a_second_terminal_reads_only_until_it_takes_over(live, session):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=2)
    place = Place(session, WORKLOAD, exists=True)
    second = Terminal(place)
    assert not second.writer
    refused = second.ask(Undo())
    assert not refused["ok"] and "read-only" in refused["error"]
    assert second.ask(TakeOver())["ok"]
    terminal.until(lambda frame: frame["frame"] == "writer" and not frame["writer"])
    assert second.ask(Steer("all", "mine now"))["ok"]
    second.socket.close()


def test_a_malformed_command_is_one_line(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, candidates=1)
    frame = {"frame": "command", "id": 99, "command": {"command": "accept"}}
    terminal.socket.sendall(encode_frame(frame))
    answer = terminal.until(lambda f: f["frame"] == "reply")
    assert not answer["ok"] and "Accept.candidate is missing" in answer["error"]


def test_agents_off_judges_the_humans_edits(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, agents="off")
    seed = terminal.ask(ReadSource("c0000"))["data"]["source"]
    made = terminal.ask(Edit("c0000", seed.replace("(void)epoch;", "(void)epoch; ")))
    assert not terminal.state.candidates["c0000"].measurement
    assert made["ok"] and made["data"]["candidate"] == "c0001"
    log = terminal.ask(ReadLog("c0001.log@00"))
    assert not log["ok"]


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


def test_counters_of_a_candidate_are_kept_in_its_note(live, session: Path):
    evaluator = FakeEvaluator(gpus=(GpuReading(0, 1),))
    terminal = live(evaluator, candidates=3, rule=AcceptRule.NONE)
    terminal.wait(lambda state: bool(state.ended))
    answer = terminal.ask(Profile("c0001"))
    assert answer["ok"], answer
    note = json.loads(terminal.ask(ReadNotes("c0001"))["data"]["text"])
    assert note["counters"]["alone"] and note["rounds"] == 11
    # another measurement keeps what was counted: it is the same commit
    terminal.ask(Rebench("c0001"))
    terminal.wait(lambda state: state.candidates["c0001"].attempt == 2)
    terminal.wait(lambda state: state.candidates["c0001"].phase is Phase.MEASURED)
    assert json.loads(terminal.ask(ReadNotes("c0001"))["data"]["text"])["counters"]["alone"]
    evaluator.gpus = ()
    answer = terminal.ask(Profile("c0001"))
    assert not answer["ok"] and answer["error"] == "no ncu: install Nsight Compute"
    assert "there is no candidate c0077" in terminal.ask(Profile("c0077"))["error"]


def test_nothing_is_profiled_while_something_runs_or_unverified(live):
    evaluator = FakeEvaluator(block=threading.Event())
    terminal = live(evaluator, candidates=2, rule=AcceptRule.NONE)
    terminal.wait(lambda state: "c0001" in state.candidates)
    assert "was not verified" in terminal.ask(Profile("c0001"))["error"]
    terminal.wait(lambda state: state.candidates["c0001"].phase is Phase.CHECKING)
    assert "an evaluation is running" in terminal.ask(Profile("c0000"))["error"]
    evaluator.block.set()


def test_a_limit_in_money_is_lifted_only_by_name_and_that_is_said(live):
    terminal = live(FakeEvaluator(), rule=AcceptRule.NONE, agents="off")
    told = terminal.ask(SetBudget(5, None, 5_000_000))
    assert told["data"]["text"] == "the budget is 5 candidates, any time, $5.00"
    told = terminal.ask(SetBudget(6, 60 * 10**9))
    assert told["data"]["text"] == "the budget is 6 candidates, 1 min, $5.00"
    assert terminal.state.budget_micro_usd == 5_000_000
    told = terminal.ask(SetBudget(6, None, no_money_limit=True))
    assert told["data"]["text"] == "the budget is 6 candidates, any time, no limit in money"
    assert terminal.state.budget_micro_usd is None
    said = [message.text for message in terminal.state.messages if message.agent == "engine"]
    assert said[-1] == "the limit of $5.00 is lifted: what models cost has no limit now"
