"""What the holder of the lock mends on open: leavings of a killed process and of lost power."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from kerneltui.session.errors import SessionDamaged
from kerneltui.session.files import TEMPORARY_PREFIX
from kerneltui.session.journal import Journal
from kerneltui.session.lock import LOCK_NAME
from kerneltui.session.objects import ObjectStore
from kerneltui.session.records import Person
from kerneltui.session.refs import CANDIDATES, JOURNAL, MAIN, NOTES, RefStore

__all__ = ["mend_refs", "sweep"]


def sweep(git_dir: Path) -> None:
    """Removes stale lock files, temporary files and empty objects.

    Only the holder of the session's lock may call it: our own git commands hold that lock too.
    """
    for folder, names in _folders(git_dir):
        in_objects = folder == git_dir / "objects" or (git_dir / "objects") in folder.parents
        in_refs = (git_dir / "refs") in folder.parents
        for name in names:
            path = folder / name
            stale = name.startswith((TEMPORARY_PREFIX, "tmp_pack_", "tmp_idx_", ".tmp-"))
            if not in_objects:
                stale = stale or (name.endswith(".lock") and name != LOCK_NAME)
                stale = stale or path == git_dir / "packed-refs.new"
            if not stale and ((in_objects and len(name) == 38) or in_refs):
                # After lost power a file can be there without its bytes.
                with suppress(FileNotFoundError):
                    stale = path.stat().st_size == 0
            if stale:
                with suppress(FileNotFoundError):
                    path.unlink()


def mend_refs(
    git_dir: Path,
    objects: ObjectStore,
    refs: RefStore,
    journal: Journal,
    person: Person,
) -> list[str]:
    """Puts refs whose commits cannot be read back to the last good one in their reflog.

    Returns:
        One line for each ref that was moved.

    Raises:
        SessionDamaged: no good commit is left.
    """
    notices: list[str] = []
    for name in (MAIN, NOTES, JOURNAL):
        refs.mend_reflog(name)
        history = refs.reflog(name)
        try:
            now = refs.read(name)
        except SessionDamaged:
            now = None
        if now is None and not history:
            continue
        known = [*history, now] if now is not None else history
        if name == JOURNAL:
            good = journal.last_good(known)
        else:
            good = next((sha for sha in reversed(known) if _is_whole(objects, sha)), None)
        if good == now:
            continue
        if good is None:
            raise SessionDamaged(
                f"{git_dir}: no commit of {name} can be read; restore the session from a bundle"
            )
        refs.update(name, good, old=now, message="recovery", person=person, at_ns=time.time_ns())
        notices.append(
            f"{name} was put back to {good[:12]}: later commits were lost with the power"
        )
    for name in _loose_candidates(git_dir):
        sha = refs.read(name)
        if sha is not None and not _is_whole(objects, sha):
            (git_dir / name).unlink()
            notices.append(f"{name} was dropped: its commit was lost with the power")
    return notices


def _folders(git_dir: Path) -> list[tuple[Path, list[str]]]:
    found: list[tuple[Path, list[str]]] = []
    for folder, below, names in os.walk(git_dir):
        if Path(folder) == git_dir:
            below[:] = [name for name in below if name != "logs"]
        found.append((Path(folder), names))
    return found


def _is_whole(objects: ObjectStore, sha: str) -> bool:
    try:
        objects.read_files(objects.commit(sha).tree)
    except SessionDamaged:
        return False
    return True


def _loose_candidates(git_dir: Path) -> list[str]:
    folder = git_dir / CANDIDATES
    return [CANDIDATES + path.name for path in folder.iterdir()] if folder.is_dir() else []
