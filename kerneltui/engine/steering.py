"""Commands that steer the search: messages, constraints, lab notes, the choice of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerneltui.agents.model_port import Role
from kerneltui.engine.errors import Refused
from kerneltui.engine.lab_notes import write_notes
from kerneltui.engine.recorder import now_ns
from kerneltui.model.command import ChooseModel, Constrain, Steer, WriteNotes
from kerneltui.model.event import (
    ConstraintKind,
    ConstraintSet,
    ModelChosen,
    SteerDelivered,
    Steered,
)
from kerneltui.model.kernel import Tunable
from kerneltui.search.arms import OFFLINE

if TYPE_CHECKING:
    from kerneltui.engine.tuner import Tuner

__all__ = ["follow"]


def follow(tuner: Tuner, command: Steer | Constrain | WriteNotes | ChooseModel) -> None:
    """Follows a command.

    Raises:
        Refused: It names what does not exist, or changes nothing.
    """
    match command:
        case Steer():
            _steer(tuner, command)
        case Constrain():
            _constrain(tuner, command)
        case WriteNotes():
            write_notes(tuner.recorder, command.text)
        case ChooseModel():
            _choose_model(tuner, command)


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


def _choose_model(tuner: Tuner, command: ChooseModel) -> None:
    name = command.model.strip()
    if tuner.model is None:
        raise Refused("the agents of this session ask no model")
    if command.role not in set(Role):
        raise Refused(f"'{command.role}' is no role; there are {', '.join(Role)}")
    names = name.split()
    several = command.role == Role.SLOW and len(set(names)) == len(names)
    if not names or (len(names) > 1 and not several) or OFFLINE in names:
        raise Refused(f"'{name}' is no name of a model")
    name = " ".join(names)
    tuner.recorder.record(ModelChosen(at=now_ns(), role=command.role, model=name))
    tuner.model.set_model(Role(command.role), name)


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
