"""Where sessions live, and which one a command means. Standard library only, so it starts fast.

A session is a folder `<root>/sessions/<id>`. Beside its repository the engine keeps `.git/kerneltui/`:
`about.json` (which workload, how far), `engine.sock` and `engine.log`; all of it can be deleted.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from kerneltui.engine.errors import OpeningFailed
from kerneltui.model.errors import DefinitionError, ModelError
from kerneltui.model.workload import Workload
from kerneltui.model.workload_file import load_workload

__all__ = [
    "About",
    "Place",
    "default_target",
    "find_place",
    "new_session_folder",
    "newest_session",
    "read_about",
    "write_about",
]


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a session without opening its repository."""

    workload: str
    target: str
    agents: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A session to open, or to make at `session` if `exists` is false."""

    session: Path
    workload: Path | None
    exists: bool

    @property
    def private(self) -> Path:
        """The folder of socket, log and cache."""
        return self.session / ".git" / "kerneltui"

    @property
    def socket(self) -> Path:
        """The engine's socket."""
        return self.private / "engine.sock"


def read_about(session: Path) -> About | None:
    """Returns what is known of a session; None if nothing is, which is no error."""
    try:
        plain = json.loads((session / ".git" / "kerneltui" / "about.json").read_bytes())
        return About(**plain)
    except (OSError, ValueError, TypeError):
        return None


def write_about(session: Path, about: About) -> None:
    """Writes what is known of a session, whole or not at all."""
    folder = session / ".git" / "kerneltui"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"about.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(about)), encoding="utf-8")
    temporary.replace(folder / "about.json")


def find_place(
    what: Path, *, session: Path | None = None, new: bool = False, target: str | None = None
) -> Place:
    """Finds the session that `open WORKLOAD|SESSION` means.

    A workload means its newest session that has not ended, else a new one.

    Args:
        what: A workload folder or a session folder.
        session: A session folder that was named; made if it does not exist.
        new: Start a new session even if one is unfinished.
        target: Only sessions on this target count.

    Raises:
        OpeningFailed: The path is neither a workload nor a session, or a session on another target.
        DefinitionError: The workload's definition is wrong.
    """
    if (what / ".git").exists() and not (what / "workload.toml").exists():
        _check_target(what, target)
        return Place(what.resolve(), _workload_of(what), exists=True)
    if not (what / "workload.toml").is_file():
        problem = "is neither a workload (a folder with workload.toml), a session nor a bundle"
        raise OpeningFailed(f"{what}: {problem}; see the folders in workloads/ and sessions/")
    workload = load_workload(what)
    folder = what.resolve()
    if session is not None:
        _check_target(session, target)
        return Place(session.resolve(), folder, exists=(session / ".git").exists())
    sessions = workload.root / "sessions"
    if not new:
        found = newest_session(workload, target, unfinished=True)
        if found is not None:
            return Place(found, folder, exists=True)
    return Place(new_session_folder(sessions, workload, target), folder, exists=False)


def _check_target(session: Path, target: str | None) -> None:
    about = read_about(session)
    if about is not None and target not in (None, about.target):
        raise OpeningFailed(
            f"{session}: this session tunes on {about.target}, which cannot be changed; "
            f"leave out --target, or begin another session for {target}"
        )


def default_target(place: Place) -> str:
    """Returns the target of a session, or the first one of its workload."""
    about = read_about(place.session)
    if about is not None:
        return about.target
    if place.workload is None:
        return "cpu"
    return next(iter(load_workload(place.workload).targets))


def new_session_folder(sessions: Path, workload: Workload, target: str | None) -> Path:
    """Returns a session folder that does not exist: workload, target and four hex digits."""
    on = target or next(iter(workload.targets))
    while True:
        folder = sessions / f"{workload.name}-{on}-{secrets.token_hex(2)}"
        if not folder.exists():
            return folder


def newest_session(
    workload: Workload, target: str | None = None, *, unfinished: bool = False
) -> Path | None:
    """Returns the session of a workload that was worked on last, if there is one."""
    sessions = workload.root / "sessions"
    found: list[tuple[float, Path]] = []
    if not sessions.is_dir():
        return None
    for folder in sessions.iterdir():
        about = read_about(folder)
        if about is None or (unfinished and about.ended) or (target and about.target != target):
            continue
        if Path(about.workload) == workload.folder.resolve():
            found.append(((folder / ".git").stat().st_mtime, folder))
    return max(found)[1] if found else None


def _workload_of(session: Path) -> Path | None:
    """Returns the workload of a session if it can be found on this machine."""
    about = read_about(session)
    candidates = [Path(about.workload)] if about else []
    name = session.resolve().name.rsplit("-", 2)[0]
    candidates += [parent / "workloads" / name for parent in session.resolve().parents]
    for folder in candidates:
        try:
            load_workload(folder)
        except (DefinitionError, ModelError):
            continue
        return folder
    return None
