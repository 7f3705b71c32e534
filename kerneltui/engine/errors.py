"""Errors of the engine.

EngineError
├── Refused          a command cannot be followed now; the text says why and what to do
├── OpeningFailed    a session cannot be opened or made
└── WorkloadUnfit    the workload refuses to be tuned: its own tests failed
"""

from __future__ import annotations

from kerneltui.model.errors import UserError

__all__ = ["EngineError", "OpeningFailed", "Refused", "WorkloadUnfit"]


class EngineError(UserError):
    """The engine cannot do what was asked; the text is one line for the user."""


class Refused(EngineError):
    """A command was refused and nothing has changed."""


class OpeningFailed(EngineError):
    """A session cannot be opened or made."""


class WorkloadUnfit(EngineError):
    """The workload cannot tell right from wrong, or is not defined for the target."""

    unfit = True
