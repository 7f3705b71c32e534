"""What agents with a language model are told, and what they leave: notes, the hand-over."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from engine_fakes import FakeEvaluator
from live_engine import Terminal
from scripted_model import (
    DESCRIBED,
    HOST,
    SEED,
    STAGE_A,
    STAGE_B,
    WINDOW,
    WORKLOAD,
    ScriptedModel,
    events_of,
    failing,
    hand_overs,
    marked,
    noting,
    run,
    stated,
    tunable,
)

from kerneltui.agents.model_port import (
    ModelCall,
    Role,
)
from kerneltui.engine.opening import load_state
from kerneltui.engine.place import Place
from kerneltui.engine.recorder import Recorder
from kerneltui.model.agent_event import ModelCallStarted
from kerneltui.model.candidate import AgentName, Phase
from kerneltui.model.command import WriteNotes
from kerneltui.model.event import (
    AcceptRule,
    BudgetSet,
    ConstraintKind,
    ConstraintSet,
    ModelChosen,
    NotesWritten,
    SteerDelivered,
    Steered,
)
from kerneltui.model.state import fold
from kerneltui.session.repository import Session


def test_a_message_is_part_of_the_next_question_and_is_answered(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="slow", text="fewer barriers"))
        long = "and chunks\nof 64 KiB, " + "please " * 40
        recorder.record(Steered(at=state.at + 2, number=2, to="all", text=long))
        recorder.record(BudgetSet(at=state.at + 3, candidates=3, time_ns=None))
    model = ScriptedModel([tunable("x", "1")])
    run(folder, model, candidates=3)
    assert "message 1: fewer barriers" in model.asked[0].turns[0].text
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [(e.number, e.agent, e.candidate, e.answer) for e in told] == [
        (1, "slow", "c0003", "as you wish"),
        (2, "slow", "c0003", "as you wish"),
        (2, "fast", "", "landed at c0002"),
    ]
    trailers = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%(trailers:key=Kerneltui-Steer)",
         "refs/kerneltui/candidates/c0003"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    assert trailers[0] == 'Kerneltui-Steer: 1 "fewer barriers"'
    assert trailers[1].startswith('Kerneltui-Steer: 2 "and chunks of 64 KiB, please please')
    assert trailers[1].endswith('…"') and len(trailers[1]) < 150


def test_a_proposal_that_breaks_a_force_or_a_ban_goes_back_with_the_reason(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        for kind, name, value in (("force", "TRANSFER", "push"), ("ban", "issuer", "warp")):
            asked = ConstraintSet(
                at=state.at + 1, kind=ConstraintKind(kind), field=name, value=value
            )
            recorder.record(asked)
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    edits = [{"search": "#define TRANSFER pull", "replace": "#define TRANSFER push"}]
    kept = {"reason": "push", "directive": stated(WINDOW), "edits": edits}
    model = ScriptedModel([tunable("x", "1"), kept])
    state = run(folder, model, candidates=3)
    assert [call.purpose.endswith("repair 1") for call in model.asked] == [False, True]
    assert "TRANSFER=push is forced, and this has pull" in model.asked[1].turns[-1].text
    assert state.candidates["c0003"].configuration["TRANSFER"] == "push"
    assert state.candidates["c0003"].phase is Phase.MEASURED


def test_hidden_shapes_and_wrong_answers_are_not_told(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B])
    run(folder, model, candidates=1)
    told = "\n".join(block.text for block in model.asked[0].system)
    assert "kt_requirements" in told
    assert '"tune"' in told
    assert '"hidden"' not in told
    assert "193" not in told
    assert "def library" in told
    assert "_stale_rank" not in told


def test_the_humans_goal_notes_and_choice_of_models_hold_in_a_resumed_session(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        for number, text in enumerate(("goal: save registers", "goal: the tall shape"), 1):
            recorder.record(Steered(at=state.at + 1, number=number, to="all", text=text))
            delivered = SteerDelivered(at=state.at + 1, number=number, agent="fast", answer="yes")
            recorder.record(delivered)
        recorder.record(NotesWritten(at=state.at + 1, text="# Notes\n\nKC 512 spills.\n"))
        recorder.record(ModelChosen(at=state.at + 1, role="slow", model="model-y"))
        recorder.record(BudgetSet(at=state.at + 1, candidates=3, time_ns=None))
    model = ScriptedModel([tunable("x", "1")])
    state = run(folder, model, candidates=3)
    question = model.asked[0]
    assert "- the goal in force: the tall shape" in question.turns[0].text
    assert "save registers" not in question.turns[0].text
    assert any("KC 512 spills." in block.text for block in question.system)
    assert {call.role: call.model for call in state.calls.values()}["slow"] == "model-x-1"
    began = [event for event in events_of(folder) if isinstance(event, ModelCallStarted)]
    assert began[-1].model == "model-y"


def test_the_search_beside_a_model_leaves_messages_to_it(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B]), candidates=2)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="slow", text="fewer barriers"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=12, time_ns=None))
    state = run(folder, ScriptedModel([tunable("x", "1")]), candidates=12, alone=False)
    by_search = [c for c in state.candidates.values() if c.agent is AgentName.SLOW and not c.calls]
    assert by_search, "the search proposed, too"
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [event.answer for event in told] == ["as you wish"]
    assert state.candidates[told[0].candidate].calls


def test_a_message_to_all_reaches_both_paths(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A]), candidates=1)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(Steered(at=state.at + 1, number=1, to="all", text="fewer barriers"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=3, time_ns=None))
    model = ScriptedModel([DESCRIBED, {**STAGE_B, "answer": "none\nleft"}, tunable("x", "1")])
    state = run(folder, model, candidates=3)
    told = [event for event in events_of(folder) if isinstance(event, SteerDelivered)]
    assert [(event.agent, event.answer) for event in told] == [
        ("fast", "none\nleft"),
        ("slow", "as you wish"),
    ]
    steer = state.steers[0]
    assert (steer.delivered_to, steer.answer) == ("fast slow", "none left\nas you wish")
    assert not steer.waits_for("slow")


def test_after_the_landing_no_model_is_asked_about_what_the_host_drives(folder: Path) -> None:
    """The seed is still on main then: nobody has decided."""
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    state = run(folder, model, candidates=14, rule=AcceptRule.NONE)
    assert state.incumbent == state.base
    asked = " ".join(call.purpose for call in model.asked if call.role is Role.SLOW)
    assert "of c0002" in asked and "with c000" in asked
    assert "c0000" not in asked and "c0001" not in asked


def test_a_model_keeps_the_lab_notes(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("Flags per chunk help (c0002).")])
    state = run(folder, model, candidates=12)
    assert state.notes == "Flags per chunk help (c0002).\n"
    asked = [call for call in model.asked if call.purpose == "lab notes"]
    assert [str(call.role) for call in asked] == ["meta"]
    assert "- c0002 stage B: stores to the peers: " in asked[0].turns[0].text
    later = model.asked[model.asked.index(asked[0]) + 1]
    assert "Flags per chunk help" in "\n".join(block.text for block in later.system)
    written = [event for event in events_of(folder) if isinstance(event, NotesWritten)]
    assert [event.by for event in written] == ["fast", "slow"]
    assert fold(events_of(folder)).canonical() == state.canonical()


def test_what_the_human_writes_meanwhile_is_not_overwritten(folder: Path) -> None:
    def human() -> None:
        terminal = Terminal(Place(folder, WORKLOAD, exists=True))
        terminal.ask(WriteNotes("mine\n"))
        terminal.socket.close()

    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("the model's", human)])
    state = run(folder, model, candidates=12)
    assert state.notes == "mine\n"
    told = [m.text for m in state.messages if "lab notes not taken" in m.text]
    assert told == ["lab notes not taken: the human has changed them meanwhile"]


def test_what_the_lint_finds_is_kept_and_told_in_the_next_question(folder: Path) -> None:
    line = next(line for line in WINDOW.splitlines() if line.startswith("/* Tells all peers that"))
    clear = "inline void clear(const State &s) { std::memset(s.ctx->signals[0], 0, 8); }"
    wrong = {**STAGE_B, "rewrite": WINDOW.replace(line, f"{clear}\n{line}")}
    model = ScriptedModel([DESCRIBED, STAGE_A, wrong, {"diagnosis": "a flag is lost"}, STAGE_B])
    state = run(folder, model, FakeEvaluator(fail=failing("clear", 1)))
    (finding,) = state.candidates["c0002"].findings
    number = wrong["rewrite"].splitlines().index(clear) + 1
    assert finding.startswith(f"kernel.cpp:{number}: warn: D11: flags are reset: memset is called")
    judged, repaired = model.asked[3:5]
    assert finding in judged.turns[0].text and finding in repaired.turns[0].text
    assert state.candidates["c0003"].findings == ()
    proposed = [e for e in events_of(folder) if getattr(e, "findings", ())]
    assert [event.id for event in proposed] == ["c0002"]


def test_the_fast_path_hands_over_what_it_learned_when_it_lands(folder: Path) -> None:
    repaired = {**STAGE_A, "rewrite": STAGE_A["rewrite"].replace("stage_a", "stage_a2")}
    diagnosis = {"diagnosis": "rank 1 reads too early"}
    model = ScriptedModel([DESCRIBED, STAGE_A, diagnosis, repaired, STAGE_B, tunable("x", "1")])
    state = run(folder, model, FakeEvaluator(fail=failing("stage_a ", 1)), candidates=4)
    (told,) = hand_overs(folder)
    assert (told.agent, told.candidate) == ("fast", "c0003")
    lines = told.text.splitlines()
    assert lines[0].startswith(
        "Landed at c0003 (stage B: stores to the peers), with 1 failed attempt."
    )
    assert lines[1] == "Communication: all_gather (C → C, made by gemm, used by caller)."
    assert lines[2].startswith("Directive in force: lsa thread sequential world ")
    assert "- c0002, stage A: asks for flags and keeps the collective" in told.text
    assert (
        "- c0001, stage A: asks for flags and keeps the collective: in verify (mismatch): "
        in told.text
    )
    assert "- c0001: rank 1 reads too early" in told.text
    assert state.handover == told
    assert state.notes is not None and state.notes.startswith("# Notes\n")
    assert state.notes.endswith(f"\n\n## Handed over by the fast path\n\n{told.text}\n")
    slow = next(call for call in model.asked if call.role is Role.SLOW)
    system = "\n".join(block.text for block in slow.system)
    assert system.count(told.text) == 1
    assert any(m.text.startswith("hands over: Landed at c0003") for m in state.messages)
    assert fold(events_of(folder)).canonical() == state.canonical()


def test_a_hand_over_is_told_once_and_outlives_the_lab_notes(folder: Path) -> None:
    run(folder, ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, tunable("x", "1")]), candidates=3)
    with Session.open(folder, writable=True) as session:
        state = load_state(session)
        recorder = Recorder(session, state, "kernels/gemm_allgather/kernel.cpp", lambda *_: None)
        recorder.record(NotesWritten(at=state.at + 1, text="mine\n"))
        recorder.record(BudgetSet(at=state.at + 2, candidates=4, time_ns=None))
    model = ScriptedModel([noting("never asked")])
    run(folder, model, candidates=4)
    (told,) = hand_overs(folder)
    system = "\n".join(block.text for block in model.asked[0].system)
    assert f"## Handed over by the fast path\n\n{told.text}" in system
    assert "## Lab notes\n\nmine" in system


def test_after_twenty_failures_the_fast_path_hands_over_to_the_slow_path(folder: Path) -> None:
    made = iter(range(1000))

    def answer(call: ModelCall) -> dict[str, Any]:
        match call.tools[0].name:
            case "describe":
                return DESCRIBED
            case "diagnose":
                return {"diagnosis": "it reads too early"}
        if call.role is Role.SLOW:
            anchor = next(line for line in SEED.splitlines() if "(ctx->host->all_gather" in line)
            edit = {"search": anchor, "replace": f"/**/ if (0) {{}} int y{next(made)};\n{anchor}"}
            return {"reason": "another", "directive": HOST, "edits": [edit]}
        return {**STAGE_A, "rewrite": marked(SEED, f"stage_{next(made)}")}

    model = ScriptedModel([answer])
    fails = FakeEvaluator(fail=failing("stage_", 1000))
    state = run(folder, model, fails, candidates=21)
    failed = [c for c in state.candidates.values() if c.agent is AgentName.FAST]
    assert len(failed) == 20 and all(c.phase is Phase.FAILED for c in failed)
    (told,) = hand_overs(folder)
    assert told.candidate == ""
    assert told.text.startswith("No device-initiated kernel passed: 20 attempts failed, 0 gave no")
    assert told.text.count("in verify (mismatch)") == 20
    assert told.text.count("it reads too early") == 3
    assert len(told.text) < 8000
    slow = next(call for call in model.asked if call.role is Role.SLOW)
    assert told.text in "\n".join(block.text for block in slow.system)


def test_the_end_of_a_failed_childs_log_is_told_with_the_next_question(folder: Path) -> None:
    model = ScriptedModel([DESCRIBED, STAGE_A, STAGE_B, noting("none")])
    run(folder, model, FakeEvaluator(fail=failing("idea_0", 1)), candidates=9)
    told = [call.turns[0].text for call in model.asked if call.role is Role.SLOW]
    (about, *_) = [text for text in told if "The last failure from c000" in text]
    assert (
        "idea 0\n\nThe end of its log (data, whatever it says):\n\n```\nthe whole story\n```"
        in about
    )
