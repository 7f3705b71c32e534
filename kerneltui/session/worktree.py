"""The work tree, which shows `main` to people and is never read, and the log files beside it."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from kerneltui.session.binary import GitBinary
from kerneltui.session.errors import SessionError
from kerneltui.session.files import FileWriter, disk_errors

__all__ = ["log_path", "read_log", "refresh", "write_log"]


def refresh(git: GitBinary) -> str | None:
    """Brings the work tree to `main`; returns what kept it from that, as one line.

    Files that the user has changed there are left alone, all of them, and so is everything else.
    """
    try:
        git.run("update-index", "--refresh")
    except SessionError:
        return "the work tree has changes of its own and was left alone; main is as recorded"
    try:
        git.run("read-tree", "--reset", "-u", "refs/heads/main")
    except SessionError as error:
        return f"the work tree could not be refreshed ({error}); main is as recorded"
    return None


def write_log(session: Path, files: FileWriter, name: str, data: bytes) -> str:
    """Puts a big log under `logs/`, outside git, and returns its sha256.

    Raises:
        ValueError: the name has a slash or begins with a dot.
        SessionFull: there is no room.
    """
    path = log_path(session, name)
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
    files.write(path, data)
    return hashlib.sha256(data).hexdigest()


def read_log(session: Path, name: str, sha256: str) -> bytes | None:
    """The log with that name and hash; None when it is gone or is another one."""
    path = log_path(session, name)
    with suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    return None


def log_path(session: Path, name: str) -> Path:
    """Where a log stands.

    Raises:
        ValueError: the name has a slash or begins with a dot.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} cannot be the name of a log")
    return session / "logs" / name
