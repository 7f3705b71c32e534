"""Commands that steer the search: messages, constraints, lab notes, the choice of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerneltui.agents.model_port import ModelCall, Role, Turn
from kerneltui.engine.errors import Refused
from kerneltui.engine.lab_notes import write_notes
from kerneltui.engine.recorder import now_ns
from kerneltui.model.command import ChooseModel, Constrain, Steer, WriteNotes
from kerneltui.model.directive import FIELDS
from kerneltui.model.event import (
    AgentMessage,
    ConstraintKind,
    ConstraintSet,
    ModelChosen,
    SteerDelivered,
    Steered,
)
from kerneltui.model.kernel import Tunable
from kerneltui.search.arms import OFFLINE
from kerneltui.search.constraints import directive_problem

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
    for one in names:
        _warn_without_price(tuner, Role(command.role), one)


def _warn_without_price(tuner: Tuner, role: Role, name: str) -> None:
    """Says so if it is not known what a model costs, since no limit in money can hold for it."""
    assert tuner.model is not None
    _, price = tuner.model.quote(ModelCall(role, (), [Turn("user", "?")], model=name))
    if price is not None:
        return
    text = (
        f"no price of {name} is known: what it costs is unknown, and a budget in money cannot limit it; "
        f"[prices.{name}] in agents.toml names one, tokens in [budget] is a limit without one"
    )
    tuner.recorder.record(AgentMessage(at=now_ns(), agent="engine", text=text))


def _constrain(tuner: Tuner, command: Constrain) -> None:
    recorder = tuner.recorder
    name, value = command.field, command.value
    if command.kind is ConstraintKind.PIN:
        name = ""
    if not command.active:
        _lift(tuner, command.kind, name, value)
        return
    if command.kind is not ConstraintKind.PIN:
        name = _choice(tuner, name, value)
    elif value not in recorder.state.candidates:
        raise Refused(f"there is no candidate {value}")
    recorder.record(ConstraintSet(at=now_ns(), kind=command.kind, field=name, value=value))


def _lift(tuner: Tuner, kind: ConstraintKind, name: str, value: str) -> None:
    standing = [
        constraint
        for constraint in tuner.recorder.state.constraints
        if constraint.kind is kind
        and constraint.field.lower() == name.lower()
        and (not value or constraint.value == value)
    ]
    if not standing:
        raise Refused(f"there is no {kind} of {name or 'a candidate'} to lift")
    for constraint in standing:
        tuner.recorder.record(
            ConstraintSet(
                at=now_ns(),
                kind=kind,
                field=constraint.field,
                value=constraint.value,
                active=False,
            )
        )


def _choice(tuner: Tuner, name: str, value: str) -> str:
    """The tunable or the field of the directive that is meant, which has the value.

    A tunable of the newest kernel comes first, in any case, since the search without a model follows it,
    too; where it has not the value, the field of the same name may.

    Raises:
        Refused: There is none, or it has no such value.
    """
    tunables = _tunables(tuner)
    field = name.lower()
    found = next((tunable for tunable in tunables if tunable.name.lower() == field), None)
    legal = [str(item) for item in found.values] if found else []
    if found is not None and value in legal:
        return found.name
    if field in FIELDS:
        problem = directive_problem(field, value)
        if problem:
            raise Refused(problem)
        return field
    if found is not None:
        raise Refused(f"{found.name} has no value '{value}'; it has {' '.join(legal)}")
    known = ", ".join([*(tunable.name for tunable in tunables), *FIELDS])
    raise Refused(f"'{name}' is no choice of this kernel or of the directive; there are {known}")


def _tunables(tuner: Tuner) -> tuple[Tunable, ...]:
    """The choices of the newest kernel that has any."""
    for identifier in reversed(tuner.recorder.state.candidates):
        tunables = tuner.kernel(identifier).tunables
        if tunables:
            return tunables
    return ()
