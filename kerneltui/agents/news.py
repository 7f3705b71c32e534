"""What an agent that thinks in a thread of its own tells the engine, which alone writes the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kerneltui.agents.model_port import Chunk, FailureKind, Usage
from kerneltui.model.agent_event import Move
from kerneltui.model.candidate import AgentName

__all__ = [
    "CallBegins",
    "CallEnds",
    "CallGrows",
    "HandOver",
    "Heard",
    "Migrates",
    "News",
    "NoProposal",
    "Noted",
    "Said",
    "Thought",
    "Withdrawn",
]


@dataclass(slots=True)
class CallBegins:
    """A call is about to be made, and waits for `answered`.

    The engine writes the event, sets `number`, or `refused` (a reason) and `kind`, or `again` where it is to
    be asked anew since it has waited, then `answered`. While the search is paused it leaves it waiting.
    """

    agent: AgentName
    role: str
    model: str
    purpose: str
    reserved_micro_usd: int | None
    answered: threading.Event = field(default_factory=threading.Event)
    number: int = 0
    refused: str = ""
    kind: FailureKind = FailureKind.BUDGET
    again: bool = False


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A call is not made after all; it may have been granted meanwhile, and then nothing was sent."""

    agent: AgentName
    begins: CallBegins


@dataclass(slots=True)
class CallGrows:
    """A call is asked again and may cost more than was reserved; the agent waits for `answered`."""

    agent: AgentName
    number: int
    reserved_micro_usd: int
    answered: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class CallEnds:
    """A call has ended, well or not."""

    agent: AgentName
    number: int
    outcome: str
    model: str
    usage: Usage
    micro_usd: int | None
    attempts: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """A piece of a reply."""

    agent: AgentName
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Said:
    """Something that is worth keeping in the session."""

    agent: AgentName
    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """New lab notes, made from `notes`: if the human has changed those meanwhile, the human's stay.

    `results` are the candidates whose results were told for them.
    """

    agent: AgentName
    text: str
    notes: str
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoProposal:
    """An attempt came to nothing; `arm` is whose fault it was, empty if nobody's or the agent has none.

    `blameless` says that it was cut short: by the human, or for want of budget.
    """

    agent: AgentName
    parent: str
    reason: str
    detail: str
    calls: tuple[int, ...]
    arm: str = ""
    blameless: bool = False


@dataclass(frozen=True, slots=True)
class Migrates:
    """Islands take over each other's best, after so many results of theirs."""

    results: int
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """An agent has done what it is there for, or gives up, and tells what it learned.

    `candidate` is where it landed; empty if it gave up.
    """

    agent: AgentName
    candidate: str
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """An agent has ended a thought: there may be a proposal.

    `settled` is called once everything that the thought told was handled; until then the agent is busy.
    """

    agent: AgentName
    settled: Callable[[], None]


News = (
    CallBegins
    | CallGrows
    | CallEnds
    | Heard
    | Said
    | Noted
    | NoProposal
    | Migrates
    | HandOver
    | Thought
    | Withdrawn
)
