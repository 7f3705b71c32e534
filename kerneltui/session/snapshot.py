"""A cache of the folded state, so that opening need not fold the whole journal.

It may be deleted at any time. It counts only when everything fits: the caller's version of the
state, the position, the commit at that position, and the hash of the bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kerneltui.session.errors import SessionError
from kerneltui.session.files import FileWriter
from kerneltui.session.repository import Session

__all__ = ["Snapshot", "load", "save"]

_FILE = "kerneltui/snapshot"
_MAGIC = "kerneltui-snapshot-1"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the event at `position`, whose commit is `sha`, in the caller's bytes."""

    position: int
    sha: str
    payload: bytes


def save(session: Session, payload: bytes, *, position: int, version: int) -> None:
    """Puts a snapshot in the place of the last one.

    Args:
        session: open for writing.
        payload: the state in the caller's form.
        position: the last event that the state has seen.
        version: the caller's version of that form.

    Raises:
        SessionError: the journal has no such event, or the session is open read-only.
        SessionFull: there is no room; the session works without a snapshot.
    """
    sha = session.journal.sha_at(position)
    if not session.writable:
        raise SessionError(f"{session.path}: the session is open read-only")
    if sha is None:
        raise SessionError(f"the journal has no event {position} to take a snapshot of")
    digest = hashlib.sha256(payload).hexdigest()
    head = f"{_MAGIC} {version} {position} {sha} {digest}\n".encode()
    FileWriter().write(session.git_dir / _FILE, head + payload)


def load(session: Session, *, version: int) -> Snapshot | None:
    """The last snapshot, or None when there is none that fits this session and version."""
    try:
        data = (session.git_dir / _FILE).read_bytes()
    except OSError:
        return None
    head, _, payload = data.partition(b"\n")
    words = head.decode("utf-8", "replace").split(" ")
    if len(words) != 5 or words[:2] != [_MAGIC, str(version)] or not words[2].isdecimal():
        return None
    position, sha = int(words[2]), words[3]
    if hashlib.sha256(payload).hexdigest() != words[4]:
        return None
    if session.journal.sha_at(position) != sha:
        return None
    return Snapshot(position, sha, payload)
