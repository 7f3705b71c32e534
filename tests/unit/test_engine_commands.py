"""What a terminal asks of a running engine: decisions, edits, steering, notes, counters, budgets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_fakes import FakeEvaluator
from live_engine import WORKLOAD, Terminal, git, live_engine

from kerneltui.engine.place import Place
from kerneltui.model.candidate import CandidateState, Phase
from kerneltui.model.command import (
    Accept,
    ChooseModel,
    Constrain,
    Edit,
    Profile,
    ReadLabNotes,
    ReadLog,
    ReadNotes,
    ReadSource,
    Rebench,
    Redo,
    Reject,
    SetBudget,
    Steer,
    TakeOver,
    Undo,
    WriteNotes,
)
from kerneltui.model.event import AcceptRule, ConstraintKind
from kerneltui.model.frames import encode_frame
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.reading import GpuReading


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "gemm_allgather-cpu-0001"


@pytest.fixture
def live(session: Path) -> Iterator[Callable[..., Terminal]]:
    """A running engine with a terminal; the evaluation answers at once."""
    with live_engine(session) as start:
        yield start


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
