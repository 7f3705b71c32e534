"""Commands and queries: what a client may ask of the engine; and progress, which is never journalled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from kerneltui.model.errors import RecordError
from kerneltui.model.event import AcceptRule, ConstraintKind
from kerneltui.model.record import from_plain, to_plain

__all__ = [
    "Accept",
    "CarryOver",
    "ChooseModel",
    "Command",
    "Constrain",
    "Edit",
    "First",
    "Interrupt",
    "Profile",
    "Progress",
    "ReadLabNotes",
    "ReadLog",
    "ReadMachineCode",
    "ReadNotes",
    "ReadSource",
    "Rebench",
    "Redo",
    "Reject",
    "SetBudget",
    "SetPaused",
    "SetRule",
    "Steer",
    "StopEngine",
    "TakeOver",
    "Undo",
    "WriteNotes",
    "decode_command",
    "encode_command",
]


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept a candidate as displayed.

    `sha` binds the decision to the commit on the screen. `hunks` are indices into the unified diff
    against the first parent; None is the whole. A strict subset becomes a new candidate.
    """

    candidate: str
    sha: str
    hunks: tuple[int, ...] | None = None
    note: str = ""
    by: str = "human"


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject a candidate as displayed, with an optional note to the agent."""

    candidate: str
    sha: str
    note: str = ""
    by: str = "human"


@dataclass(frozen=True, slots=True)
class Undo:
    """Take back the last decision."""


@dataclass(frozen=True, slots=True)
class Redo:
    """Make the last undone decision again."""


@dataclass(frozen=True, slots=True)
class Steer:
    """Send a message to an agent: `fast`, `slow` or `all`."""

    to: str
    text: str


@dataclass(frozen=True, slots=True)
class Constrain:
    """Pin a parent (`field` is empty, `value` a candidate), ban or force a value, or lift that."""

    kind: ConstraintKind
    field: str
    value: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class SetRule:
    """Change the rule for accepting."""

    rule: AcceptRule


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Pause after the current evaluation, or go on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Change the budget; None is no limit, and for money (millionths of a dollar) leaves it as it is.

    `no_money_limit` lifts the limit of money, which takes more than leaving it out.
    """

    candidates: int | None
    time_ns: int | None
    micro_usd: int | None = None
    no_money_limit: bool = False


@dataclass(frozen=True, slots=True)
class Rebench:
    """Benchmark a candidate again, against the incumbent of now."""

    candidate: str


@dataclass(frozen=True, slots=True)
class CarryOver:
    """Carry a candidate over to the incumbent, as a new candidate."""

    candidate: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Have the profiler of the GPU count a candidate; answered when that is done.

    It runs without the sandbox, so only what was verified is profiled.
    """

    candidate: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Propose the human's own version of a candidate's kernel."""

    candidate: str
    source: str
    reason: str = "edited by hand"


@dataclass(frozen=True, slots=True)
class WriteNotes:
    """Replace the lab notes of the session, `notes.md` in the tree of every later candidate."""

    text: str


@dataclass(frozen=True, slots=True)
class ChooseModel:
    """Ask another model from the next call on; `role` is fast, slow, judge or meta."""

    role: str
    model: str


class First(StrEnum):
    """What an interrupt ends, if both are under way: agents' thoughts and an evaluation."""

    UNHEARD = "unheard"
    """A thought that does not know a message for its agent, or else the evaluation."""
    THOUGHTS = "thoughts"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End thoughts of agents or the running evaluation now, one of the two."""

    first: First = First.UNHEARD


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Make this client the one that may decide."""


@dataclass(frozen=True, slots=True)
class StopEngine:
    """End the engine, keeping the best."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Query: the kernel of a candidate and of its first parent, as text."""

    candidate: str


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Query: the log with a hash."""

    log: str


@dataclass(frozen=True, slots=True)
class ReadNotes:
    """Query: the evaluation note of a candidate, as JSON text."""

    candidate: str


@dataclass(frozen=True, slots=True)
class ReadLabNotes:
    """Query: the lab notes of the session as they are now."""


@dataclass(frozen=True, slots=True)
class ReadMachineCode:
    """Query: how the machine code of a candidate differs from that of its first parent.

    The answer may take the time of two compiles.
    """

    candidate: str


Command = (
    Accept
    | Reject
    | Undo
    | Redo
    | Steer
    | Constrain
    | SetRule
    | SetPaused
    | SetBudget
    | Rebench
    | CarryOver
    | Profile
    | Edit
    | WriteNotes
    | ChooseModel
    | Interrupt
    | TakeOver
    | StopEngine
    | ReadSource
    | ReadLog
    | ReadNotes
    | ReadLabNotes
    | ReadMachineCode
)

_COMMANDS: dict[str, type[Any]] = {
    "accept": Accept,
    "reject": Reject,
    "undo": Undo,
    "redo": Redo,
    "steer": Steer,
    "constrain": Constrain,
    "set_rule": SetRule,
    "set_paused": SetPaused,
    "set_budget": SetBudget,
    "rebench": Rebench,
    "carry_over": CarryOver,
    "profile": Profile,
    "edit": Edit,
    "write_notes": WriteNotes,
    "choose_model": ChooseModel,
    "interrupt": Interrupt,
    "take_over": TakeOver,
    "stop_engine": StopEngine,
    "read_source": ReadSource,
    "read_log": ReadLog,
    "read_notes": ReadNotes,
    "read_lab_notes": ReadLabNotes,
    "read_machine_code": ReadMachineCode,
}
_NAME_OF = {kind: name for name, kind in _COMMANDS.items()}


def encode_command(command: Command) -> dict[str, Any]:
    """Returns a command as plain data for the socket."""
    return {"command": _NAME_OF[type(command)], **to_plain(command)}


def decode_command(plain: Any) -> Command:
    """Builds a command from plain data.

    Raises:
        RecordError: The command is unknown or malformed.
    """
    if not isinstance(plain, dict):
        raise RecordError("a command is an object")
    fields = dict(cast("dict[str, Any]", plain))
    name: Any = fields.pop("command", None)
    kind = _COMMANDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown command '{name}'")
    return from_plain(kind, fields)


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that is going on now; broadcast to clients and forgotten.

    Attributes:
        kind: `phase` (an agent or evaluation changed what it does), `round` (benchmark rounds),
            `job` (a line for the job log), `calibration`, `stream` (agent text as it comes), `gpu` (readings
            of the GPUs, in `extra`).
        about: A candidate id, an agent's name, or empty.
        text: One line for the user.
        done: Steps done, when the total is known.
        total: Number of steps, or 0.
        at: Time in nanoseconds since the epoch.
    """

    kind: str
    about: str
    text: str
    done: int = 0
    total: int = 0
    at: int = 0
    extra: Mapping[str, str] = field(default_factory=_nothing)
