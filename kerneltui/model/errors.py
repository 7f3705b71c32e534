"""Errors of the model, and the root of every error that is meant for the user.

UserError                 one line: what, where, what to do; each layer has its own tree below it
└── ModelError
    ├── DefinitionError   a workload or kernel file says something it must not
    ├── ExpressionError   an expression cannot be parsed or evaluated
    ├── RecordError       a record from git or from the socket has the wrong form
    │   └── NewerSchema   it was written by a newer kerneltui
    └── PatchError        a set of hunks does not apply
"""

from __future__ import annotations

__all__ = [
    "DefinitionError",
    "ExpressionError",
    "ModelError",
    "NewerSchema",
    "PatchError",
    "RecordError",
    "UserError",
]


class UserError(Exception):
    """Something that the user can act on; the text is one line."""


class ModelError(UserError):
    """Something in the domain is not as it must be."""


class DefinitionError(ModelError):
    """A file that the user wrote is wrong; names the file, the key and what was expected."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        super().__init__(" ".join(f"{file}: {key}: {problem}".splitlines()))
        self.file = file
        self.key = key
        self.problem = problem


class ExpressionError(ModelError):
    """An expression has a form or a name that is not allowed."""


class RecordError(ModelError):
    """A stored or received record does not have the form of its type."""


class NewerSchema(RecordError):
    """A record was written by a newer kerneltui; the session can be read but not written."""


class PatchError(ModelError):
    """The chosen hunks cannot be applied to the text."""
