"""What the engine asks of an agent, and what an agent hands out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.directive import Directive
from kerneltui.model.state import State

__all__ = ["Agent", "Proposal", "SearchView"]


def _no_record(candidate: str) -> Mapping[str, Any]:
    return {}


def _no_log(candidate: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SearchView:
    """What an agent may look at: the folded state, kernel sources, the shapes to be fast on.

    Attributes:
        state: The state now; read-only by agreement.
        source: Returns the kernel text of a candidate by its id.
        shapes: Dimensions and RANKS of every tune shape.
        kernel_file: The name of kernel files on this target, such as `kernel.cpp`.
        record: Returns what was noted of a candidate's evaluation; empty if nothing was.
        log: Returns the log of a failed candidate, if it is on this machine.
        elapsed_ns: How much of the budget of time is used.
        queued: Candidates that wait for their evaluation, those among them that were interrupted.
        room: How many proposals may wait until the evaluator takes them.
        answered: Messages that are part of another question already.
        now: The moment that all agents are asked about, in seconds since the epoch.
    """

    state: State
    source: Callable[[str], str]
    shapes: Sequence[Mapping[str, int]]
    kernel_file: str
    record: Callable[[str], Mapping[str, Any]] = _no_record
    log: Callable[[str], str] = _no_log
    elapsed_ns: int = 0
    queued: Collection[str] = ()
    room: int = 1
    answered: frozenset[int] = frozenset()
    now: float = field(default_factory=time.time)


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A whole kernel text that is worth an evaluation, with its directive and its reason.

    `calls` are the numbers of the model calls that it took, `steers` those of the messages that were seen
    (None: all that wait for the agent), `answer` is what is said to them. `island` and `arm` are those of the
    slow path, `inspirations` the candidates that a model was shown beside the parents.
    """

    source: str
    reason: str
    agent: AgentName
    origin: Origin
    parents: tuple[str, ...]
    directive: Directive | None
    seed_file: str
    generation: int
    configuration: Mapping[str, str] = field(default_factory=_nothing)
    calls: tuple[int, ...] = ()
    steers: tuple[int, ...] | None = None
    answer: str = ""
    island: int = 0
    arm: str = ""
    inspirations: tuple[str, ...] = ()


class Agent(Protocol):
    """Proposes candidates. Called from one thread; must not block for longer than a second."""

    name: AgentName

    @property
    def busy(self) -> bool:
        """Whether a proposal may come of what the agent does in the background."""
        ...

    @property
    def heard(self) -> frozenset[int]:
        """The messages that are part of what the agent thinks about, by their numbers."""
        ...

    def think(self, view: SearchView) -> None:
        """Begins with the next proposal in the background, if that takes long and none is under way."""
        ...

    def interrupt(self) -> None:
        """Ends what the agent does in the background."""
        ...

    def close(self) -> None:
        """Ends the agent."""
        ...

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns the next proposal, or None if there is nothing to propose now."""
        ...

    @property
    def waiting(self) -> Sequence[Proposal]:
        """The proposals that are ready and that nobody has asked for yet; they stay."""
        ...

    def leftovers(self) -> Sequence[Proposal]:
        """Takes out the proposals that are ready and that nobody asked for."""
        ...

    def done(self, view: SearchView) -> str:
        """Why nothing more is proposed as things are, so that no message is heard; empty while it is."""
        ...

    def rests_until(self, view: SearchView) -> float | None:
        """When it goes on, in seconds since the epoch, if a server's wish is all that keeps it from that."""
        ...

    def status(self, view: SearchView) -> str:
        """Returns one line on what the agent does or waits for."""
        ...

    def answer(self, text: str) -> str:
        """Answers a steering message in one line."""
        ...

    def refusals(self) -> tuple[str, ...]:
        """Returns the constraints that it cannot follow and why, once each."""
        ...
