"""Errors of the session store.

SessionError
├── NotASession       the folder holds no session, or one that this version must not write
├── SessionLocked     another engine writes this session
├── SessionDamaged    an object or a ref cannot be read
├── SessionConflict   another program moved a ref, or a name is taken
├── SessionFull       the disk, the quota or the file-size limit is exhausted
└── BundleError       a file is no bundle, is cut short, or holds no session
"""

from __future__ import annotations

from kerneltui.model.errors import UserError

__all__ = [
    "BundleError",
    "NotASession",
    "SessionConflict",
    "SessionDamaged",
    "SessionError",
    "SessionFull",
    "SessionLocked",
]


class SessionError(UserError):
    """The session cannot do what was asked; the text is one line for the user."""


class NotASession(SessionError):
    """The folder holds no session that this version can open."""


class SessionLocked(SessionError):
    """Another engine holds the session; `pid` is its process, 0 when it is not known."""

    def __init__(self, path: str, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{path}: {holder} is writing this session; see it with: kerneltui open {path}"
        )
        self.pid = pid


class SessionDamaged(SessionError):
    """An object or ref of the session is missing or cannot be read."""


class SessionConflict(SessionError):
    """A ref is not where it must be, or a name is already taken; nothing was changed."""


class SessionFull(SessionError):
    """There is no room to write; nothing that was acknowledged is lost."""


class BundleError(SessionError):
    """A file cannot be read as the bundle of a session."""
