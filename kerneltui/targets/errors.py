"""What can go wrong between the engine and the machine that runs kernels.

    TargetError
    ├── MemoryFailure      the buffers of a group do not fit
    ├── CompileFailure     a kernel does not build
    ├── ServerFailure      the fork server is gone or cannot start
    └── RankFailure        a group of ranks died, hung or reported an error

The text of every one of them is one readable line; `detail`, where there is one, holds the rest.
"""

from __future__ import annotations

from enum import StrEnum

from kerneltui.model.errors import UserError

__all__ = [
    "CompileFailure",
    "FailureKind",
    "MemoryFailure",
    "RankFailure",
    "ServerFailure",
    "TargetError",
]


class FailureKind(StrEnum):
    """Why a group of ranks failed."""

    HANG = "hang"
    CRASH = "crash"
    ERROR = "error"
    DEVICE = "device"
    """A launch was refused, or broke off on the device."""
    OUT_OF_MEMORY = "out_of_memory"
    START = "start"
    KILLED = "killed"


class TargetError(UserError):
    """Anything that stops a target from building or running a kernel."""


class MemoryFailure(TargetError):
    """The buffers of a group cannot be allocated on this machine."""


class ServerFailure(TargetError):
    """The fork server cannot start, or has gone away."""


class CompileFailure(TargetError):
    """A kernel does not build.

    Attributes:
        reason: One line: the first error of the compiler, and how many there were.
        log: The kept part of the compiler's output.
        timed_out: True when the limit ended the compiler.
        refused: True when it was not the compiler that found fault, but a rule of this machine.
    """

    refused = False

    def __init__(self, reason: str, log: str = "", *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
        self.timed_out = timed_out


class RankFailure(TargetError):
    """A group of ranks cannot go on.

    Attributes:
        kind: What happened.
        rank: The rank to blame, or None if no single one is.
        reason: One line that names rank, request and cause.
        detail: More for a log: what the other ranks did last.
    """

    def __init__(self, kind: FailureKind, rank: int | None, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.rank = rank
        self.reason = reason
        self.detail = detail
