"""Events of agents that ask a language model: calls, what they cost, and proposals that came to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerneltui.model.record import LATER

__all__ = [
    "CallRecord",
    "HandedOver",
    "Migrated",
    "ModelCallEnded",
    "ModelCallGrew",
    "ModelCallStarted",
    "Move",
    "ProposalFailed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted:
    """A model is asked; written before anything is sent, so that no call is ever free.

    `reserved_micro_usd` is what it may cost at most, in millionths of a dollar; None if the model has no
    known price.
    """

    at: int
    number: int
    agent: str
    role: str
    model: str
    purpose: str
    reserved_micro_usd: int | None

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"call {self.number} of {self.agent}: {self.purpose}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallGrew:
    """A call is asked again after an attempt that cost something; written before that is sent.

    `reserved_micro_usd` is what all its attempts may have cost at most when this one is over.
    """

    at: int
    number: int
    reserved_micro_usd: int

    @property
    def subject(self) -> str:
        """One readable line."""
        return (
            f"call {self.number} is asked again: it may cost ${self.reserved_micro_usd / 1e6:.2f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallEnded:
    """What came of a call: `ok`, the kind of its failure, or `lost` if the engine or the agent broke in it.

    A lost call counts with what was reserved for it.
    """

    at: int
    number: int
    model: str
    outcome: str
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    micro_usd: int | None = 0
    attempts: int = 1
    reason: str = ""

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"call {self.number} ended: {self.outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalFailed:
    """An agent's attempt at a proposal came to nothing; there is no kernel text to evaluate.

    `arm` is the arm of the slow path that was at fault; empty if none was, as after a stop. `blameless` says
    that it was cut short, by the human or for want of budget, so that it does not count against the agent.
    """

    at: int
    agent: str
    parent: str
    reason: str
    detail: str = ""
    calls: tuple[int, ...] = ()
    arm: str = field(default="", metadata=LATER)
    blameless: bool = field(default=False, metadata=LATER)

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"{self.agent} has no proposal: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """An agent has landed at `candidate`, or gives up if that is empty, and says what it learned."""

    at: int
    agent: str
    candidate: str
    text: str

    @property
    def subject(self) -> str:
        """One readable line."""
        return f"{self.agent} hands over: {self.text.partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class Move:
    """A candidate that is a possible parent on other islands, too, from now on."""

    candidate: str
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """Islands of the slow path took over each other's best, after so many results of theirs."""

    at: int
    results: int
    moves: tuple[Move, ...]

    @property
    def subject(self) -> str:
        """One readable line."""
        moves = (f"{m.candidate} to {', '.join(map(str, m.to))}" for m in self.moves)
        return f"islands took over: {'; '.join(moves)}"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call as far as the events have told of it; `outcome` is empty while it runs."""

    agent: str
    role: str
    model: str
    purpose: str
    reserved_micro_usd: int | None
    at: int
    outcome: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    micro_usd: int | None = 0
    attempts: int = 0
    reason: str = ""

    @property
    def tokens(self) -> int:
        """All tokens."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
        )
