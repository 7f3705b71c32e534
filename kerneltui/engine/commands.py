"""What each command of a client does; every refusal is one line and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerneltui.engine import decisions, steering
from kerneltui.engine.carrying import carried
from kerneltui.engine.errors import Refused
from kerneltui.engine.lab_notes import lab_notes
from kerneltui.engine.machine_code import difference, question
from kerneltui.engine.profiling import ask_profile
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.model.command import (
    Accept,
    CarryOver,
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
    SetPaused,
    SetRule,
    Steer,
    StopEngine,
    TakeOver,
    Undo,
    WriteNotes,
)
from kerneltui.model.event import (
    AgentMessage,
    BudgetSet,
    PauseSet,
    RuleSet,
)
from kerneltui.session.errors import SessionError

if TYPE_CHECKING:
    from kerneltui.engine.tuner import Tuner

__all__ = ["READ_COMMANDS", "Request", "answer_machine_code", "handle_command", "read"]

READ_COMMANDS = (ReadSource, ReadLog, ReadNotes, ReadLabNotes, ReadMachineCode)


@dataclass(frozen=True, slots=True)
class Request:
    """A command with the way to answer it: (ok, data or error text)."""

    command: Command
    reply: Callable[[bool, Any], None]


def handle_command(tuner: Tuner, request: Request) -> None:
    """Follows a command and answers it."""
    if isinstance(request.command, ReadMachineCode):
        answer_machine_code(tuner.recorder, request.command, request.reply)
        return
    try:
        if isinstance(request.command, Profile):
            ask_profile(tuner, request.command.candidate, request.reply)
            return
        data = _follow(tuner, request.command)
    except (Refused, SessionError) as error:
        request.reply(False, str(error))
    else:
        request.reply(True, data)


def _follow(tuner: Tuner, command: Command) -> dict[str, Any]:
    recorder = tuner.recorder
    match command:
        case Accept():
            return _accept(tuner, command)
        case Reject():
            decisions.reject(recorder, command)
        case Undo() | Redo():
            before = recorder.state.incumbent
            act = decisions.undo if isinstance(command, Undo) else decisions.redo
            candidate = act(recorder)
            if recorder.state.incumbent != before:
                tuner.incumbent_changed()
            return {"candidate": candidate}
        case Edit():
            made = tuner.add(decisions.edited(recorder, command), first=True)
            return {"candidate": made, "text": f"your version is {made}"}
        case CarryOver():
            made = tuner.add(carried(recorder, command.candidate), first=True)
            text = f"{made} is {command.candidate} carried over; it is checked and measured first"
            return {"candidate": made, "text": text}
        case Rebench():
            _rebench(tuner, command)
        case Steer() | Constrain() | WriteNotes() | ChooseModel():
            steering.follow(tuner, command)
        case SetRule():
            recorder.record(RuleSet(at=now_ns(), rule=command.rule))
        case SetPaused():
            recorder.record(PauseSet(at=now_ns(), paused=command.paused))
            tuner.go_on()
        case SetBudget():
            return _set_budget(tuner, command)
        case Interrupt():
            text, left = tuner.interrupt(command.first)
            return {"text": text, "left": left}
        case StopEngine():
            tuner.stop("stopped by the user")
        case TakeOver() | ReadMachineCode() | Profile():
            raise Refused("this is answered elsewhere")
        case ReadSource() | ReadLog() | ReadNotes() | ReadLabNotes():
            return read(recorder, command)
    return {}


def _set_budget(tuner: Tuner, command: SetBudget) -> dict[str, Any]:
    recorder = tuner.recorder
    before = recorder.state.budget_micro_usd
    money = None if command.no_money_limit else command.micro_usd or before
    event = BudgetSet(
        at=now_ns(),
        candidates=command.candidates,
        time_ns=command.time_ns,
        micro_usd=money,
    )
    recorder.record(event)
    tuner.go_on()
    if before is not None and money is None:
        text = f"the limit of ${before / 1e6:.2f} is lifted: what models cost has no limit now"
        recorder.record(AgentMessage(at=now_ns(), agent="engine", text=text))
    return {"text": f"the budget is {event.text}"}


def _accept(tuner: Tuner, command: Accept) -> dict[str, Any]:
    proposal = decisions.selected_hunks(tuner.recorder, command)
    if proposal is not None:
        made = tuner.add(proposal, first=True)
        text = f"{made} is a new candidate with {proposal.reason}; it is checked and measured first"
        return {"candidate": made, "partial": True, "text": text}
    tuner.accepted(command)
    return {"candidate": command.candidate, "partial": False}


def _rebench(tuner: Tuner, command: Rebench) -> None:
    state = tuner.recorder.state
    candidate = state.candidates.get(command.candidate)
    if candidate is None:
        raise Refused(f"there is no candidate {command.candidate}")
    if candidate.id in (state.base, state.incumbent):
        raise Refused(f"{candidate.id} is on main: every candidate is measured against it")
    if tuner.executor is None:
        raise Refused("nothing can be measured here")
    tuner.want(candidate.id, rebench=True, first=True)


def answer_machine_code(
    recorder: Recorder, command: ReadMachineCode, reply: Callable[[bool, Any], None]
) -> None:
    """Answers from a thread of its own, since compilers may have to run."""
    try:
        asked = question(recorder, command.candidate)
    except (Refused, SessionError) as error:
        reply(False, str(error))
        return

    def compare() -> None:
        try:
            found = difference(asked)
        except Refused as error:
            reply(False, str(error))
        except Exception as error:  # whoever asked must not wait for ever
            reply(False, f"no machine code: {type(error).__name__}: {error}")
        else:
            reply(True, found)

    threading.Thread(target=compare, name="machine code", daemon=True).start()


def read(
    recorder: Recorder, command: ReadSource | ReadLog | ReadNotes | ReadLabNotes
) -> dict[str, Any]:
    """Answers a query.

    Raises:
        Refused: There is no such candidate or log.
    """
    if isinstance(command, ReadLabNotes):
        return {"text": lab_notes(recorder)}
    if isinstance(command, ReadLog):
        name, _, digest = command.log.partition("@")
        text = recorder.session.read_log(name, digest)
        if text is None:
            raise Refused(f"there is no log {command.log} on this machine")
        return {"text": text.decode("utf-8", "replace")}
    candidate = recorder.state.candidates.get(command.candidate)
    if candidate is None:
        raise Refused(f"there is no candidate {command.candidate}")
    if isinstance(command, ReadNotes):
        note = recorder.session.read_note(candidate.sha)
        return {"text": note.decode("utf-8", "replace") if note else ""}
    parent = candidate.parents[0] if candidate.parents else ""
    return {
        "candidate": candidate.id,
        "sha": candidate.sha,
        "file": recorder.kernel_path,
        "source": recorder.source(candidate.id),
        "parent": parent,
        "parent_source": recorder.source(parent) if parent else "",
    }
