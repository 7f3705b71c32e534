"""What agents ask of a language model, and what they get: the port between prompts and a provider.

A call blocks; agents make it from a thread of their own. Whatever goes wrong on the way is retried inside
the provider, as far as the budget allows, or becomes a `ModelFailure` with one readable line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

__all__ = [
    "Block",
    "Chunk",
    "ChunkKind",
    "FailureKind",
    "ModelCall",
    "ModelFailure",
    "ModelPort",
    "ModelReply",
    "Role",
    "Tool",
    "ToolUse",
    "Turn",
    "Usage",
]


class Role(StrEnum):
    """What a model is asked to do; the configuration names a model for each."""

    FAST = "fast"
    SLOW = "slow"
    JUDGE = "judge"
    META = "meta"


class FailureKind(StrEnum):
    """Why a call gave nothing to work with."""

    REFUSED = "refused"
    """The model declined."""
    CUT = "cut"
    """The reply ended at its limit of tokens before it was complete."""
    MALFORMED = "malformed"
    """A tool was called with input that does not fit its schema."""
    OVERLOADED = "overloaded"
    """Rate limits or overload outlasted all retries."""
    CONNECTION = "connection"
    """The connection could not be made or broke, and outlasted all retries."""
    REQUEST = "request"
    """The server does not accept the request; retrying would not help."""
    UNKNOWN_MODEL = "unknown_model"
    """The server does not know the model."""
    BUDGET = "budget"
    """The call would go over the budget."""
    STOPPED = "stopped"
    """Somebody asked for the end."""
    RESTING = "resting"
    """The server wants the model not to be asked yet, so it was not."""


class ChunkKind(StrEnum):
    """What a piece of a stream belongs to."""

    THINKING = "thinking"
    TEXT = "text"
    TOOL = "tool"
    STATUS = "status"
    """A word of the provider: a retry, a wait."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply as it comes.

    Attributes:
        kind: What it belongs to.
        text: What it says.
        reserved_micro_usd: Of a status before a further attempt: what the call may have cost at most when
            that one is over. The attempt begins when the hearer returns.
    """

    kind: ChunkKind
    text: str
    reserved_micro_usd: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of text in a prompt. `cached` marks the end of what stays the same from call to call."""

    text: str
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the conversation: `user` or `assistant`."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call; `schema` is the JSON schema of its input, held strictly."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool, whose input fits its schema."""

    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, all attempts together."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )

    @property
    def total(self) -> int:
        """All tokens."""
        return self.input + self.output + self.cache_read + self.cache_write


def _no_tools() -> Sequence[Tool]:
    return ()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question.

    Attributes:
        role: Which model answers.
        system: The standing instructions, longest-lived first.
        turns: The conversation, the last turn the user's.
        tools: What may be called; with exactly one and `must_use`, it is called.
        must_use: Whether the reply has to be a call of a tool.
        purpose: In a few words, for the log and the meter: "propose c0012", "repair c0012".
        model: Which of the role's models; empty is its first.
        shown: All tools that stand in the request, those that may be called among them; none is `tools`. They
            stand before the cached text, so calls that show the same ones share what the server has cached.
    """

    role: Role
    system: Sequence[Block]
    turns: Sequence[Turn]
    tools: Sequence[Tool] = field(default_factory=_no_tools)
    must_use: bool = False
    purpose: str = ""
    model: str = ""
    shown: Sequence[Tool] = field(default_factory=_no_tools)

    @property
    def in_request(self) -> Sequence[Tool]:
        """The tools as they stand in the request, in this order."""
        return self.shown or self.tools


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What came back.

    Attributes:
        text: All text, without thinking.
        tools: Calls of tools, in order.
        model: Who answered, by the server's word.
        usage: Tokens, failed attempts among them.
        micro_usd: Price in millionths of a dollar; None if the model has no known price.
        attempts: How often it was asked.
    """

    text: str
    tools: tuple[ToolUse, ...]
    model: str
    usage: Usage
    micro_usd: int | None
    attempts: int = 1


class ModelFailure(Exception):
    """A call gave nothing to work with; the text is one readable line. What it cost counts all the same.

    `wait_ms` is what the server asks to wait before anything is asked again.
    """

    def __init__(
        self,
        kind: FailureKind,
        reason: str,
        *,
        model: str = "",
        usage: Usage | None = None,
        micro_usd: int | None = 0,
        attempts: int = 1,
        wait_ms: int = 0,
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.model = model
        self.usage = usage or Usage()
        self.micro_usd = micro_usd
        self.attempts = attempts
        self.wait_ms = wait_ms


class ModelPort(Protocol):
    """A language model behind whatever server."""

    def quote(self, call: ModelCall) -> tuple[str, int | None]:
        """The model that would be asked, and what it may cost at most, in millionths of a dollar.

        None stands for a model without a known price.
        """
        ...

    def set_model(self, role: Role, model: str) -> None:
        """Names another model for a role, or several with blanks between, from the next question on."""
        ...

    def models(self, role: Role) -> Sequence[str]:
        """The models that may be asked in a role, the first being asked where a call names none."""
        ...

    def ask(
        self,
        call: ModelCall,
        hear: Callable[[Chunk], None],
        stop: Callable[[], bool],
    ) -> ModelReply:
        """Asks and waits.

        Args:
            call: What.
            hear: Told every piece of the reply as it comes; from this thread.
            stop: Asked often; True ends the call soon.

        Raises:
            ModelFailure: Nothing usable came.
        """
        ...

    def set_budget(self, micro_usd: int | None) -> None:
        """Told what all calls together may cost, at the begin and when that changes; None is no limit."""
        ...

    def close(self) -> None:
        """Ends connections."""
        ...
