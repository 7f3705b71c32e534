"""What each command of a client does; every refusal is one line and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerneltui.engine import decisions
from kerneltui.engine.errors import Refused
from kerneltui.engine.machine_code import difference, question
from kerneltui.engine.profiling import ask_profile
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.model.command import (
    Accept,
    Command,
    Constrain,
    Edit,
    Interrupt,
    Profile,
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
)
from kerneltui.model.event import (
    BudgetSet,
    ConstraintKind,
    ConstraintSet,
    PauseSet,
    RuleSet,
    SteerDelivered,
    Steered,
)
from kerneltui.model.kernel import Tunable
from kerneltui.session.errors import SessionError

if TYPE_CHECKING:
    from kerneltui.engine.tuner import Tuner

__all__ = ["READ_COMMANDS", "Request", "answer_machine_code", "handle_command", "read"]

READ_COMMANDS = (ReadSource, ReadLog, ReadNotes, ReadMachineCode)


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
        case Rebench():
            _rebench(tuner, command)
        case Steer():
            _steer(tuner, command)
        case Constrain():
            _constrain(tuner, command)
        case SetRule():
            recorder.record(RuleSet(at=now_ns(), rule=command.rule))
        case SetPaused():
            recorder.record(PauseSet(at=now_ns(), paused=command.paused))
        case SetBudget():
            recorder.record(
                BudgetSet(
                    at=now_ns(),
                    candidates=command.candidates,
                    time_ns=command.time_ns,
                    micro_usd=command.micro_usd or recorder.state.budget_micro_usd,
                )
            )
            tuner.forget_refusals()
        case Interrupt():
            tuner.interrupt()
        case StopEngine():
            tuner.stop("stopped by the user")
        case TakeOver() | ReadMachineCode() | Profile():
            raise Refused("this is answered elsewhere")
        case ReadSource() | ReadLog() | ReadNotes():
            return read(recorder, command)
    return {}


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


def _steer(tuner: Tuner, command: Steer) -> None:
    if command.to not in ("fast", "slow", "all"):
        raise Refused(f"'{command.to}' is no agent; write to @fast, @slow or @all")
    if not command.text.strip():
        raise Refused("the message is empty")
    recorder = tuner.recorder
    number = len(recorder.state.steers) + 1
    recorder.record(Steered(at=now_ns(), number=number, to=command.to, text=command.text.strip()))
    if not tuner.agents:
        answer = "agents are off; the note is kept in the session"
        recorder.record(SteerDelivered(at=now_ns(), number=number, agent="notebook", answer=answer))


def _constrain(tuner: Tuner, command: Constrain) -> None:
    recorder = tuner.recorder
    name, value = command.field, command.value
    if command.kind is ConstraintKind.PIN:
        if command.active and value not in recorder.state.candidates:
            raise Refused(f"there is no candidate {value}")
        name = ""
    else:
        tunable = _tunable(tuner, name)
        name = tunable.name
        if command.active or value:
            legal = [str(item) for item in tunable.values]
            if value not in legal:
                raise Refused(f"{name} has no value '{value}'; it has {' '.join(legal)}")
    if not command.active:
        _lift(tuner, command.kind, name, value)
        return
    recorder.record(ConstraintSet(at=now_ns(), kind=command.kind, field=name, value=value))


def _lift(tuner: Tuner, kind: ConstraintKind, name: str, value: str) -> None:
    standing = [
        constraint
        for constraint in tuner.recorder.state.constraints
        if constraint.kind is kind
        and constraint.field == name
        and (not value or constraint.value == value)
    ]
    if not standing:
        raise Refused(f"there is no {kind} of {name or 'a candidate'} to lift")
    for constraint in standing:
        tuner.recorder.record(
            ConstraintSet(at=now_ns(), kind=kind, field=name, value=constraint.value, active=False)
        )


def _tunable(tuner: Tuner, name: str) -> Tunable:
    """Finds a choice by its name, in any case, in the kernels that were proposed, newest first."""
    state = tuner.recorder.state
    for identifier in reversed(state.candidates):
        tunables = tuner.kernel(identifier).tunables
        for tunable in tunables:
            if tunable.name.lower() == name.lower():
                return tunable
        if tunables:
            known = ", ".join(tunable.name for tunable in tunables)
            raise Refused(f"'{name}' is not a choice of this kernel; it has {known}")
    raise Refused(f"'{name}' is not known: no kernel with choices was proposed yet")


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


def read(recorder: Recorder, command: ReadSource | ReadLog | ReadNotes) -> dict[str, Any]:
    """Answers a query.

    Raises:
        Refused: There is no such candidate or log.
    """
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
