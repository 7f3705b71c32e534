"""Refs: own reader and writer, by git's rules, so that git's tools may work beside us.

A change takes `<ref>.lock`, compares the old value, adds the line to the reflog, and renames the
lock over the ref. Readers see the old value or the new one.
Formats: git's "gitrepository-layout" and `git pack-refs`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from kerneltui.session.errors import SessionConflict, SessionDamaged, SessionError
from kerneltui.session.files import FileWriter, disk_errors, sync_path, write_all
from kerneltui.session.records import Person, one_line

__all__ = ["CANDIDATES", "JOURNAL", "MAIN", "NOTES", "RefStore", "candidate_ref"]

MAIN = "refs/heads/main"
JOURNAL = "refs/kerneltui/journal"
NOTES = "refs/notes/evaluations"
CANDIDATES = "refs/kerneltui/candidates/"

_SHA = re.compile(r"[0-9a-f]{40}")
_ZERO = "0" * 40
_LOCK_WAIT_S = 20.0
"""How long another program may hold the lock of a ref; packing holds it for an instant."""


def candidate_ref(identifier: str) -> str:
    """The ref of a candidate.

    Raises:
        ValueError: the id cannot stand in a ref.
    """
    good = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", identifier)
    if not good or ".." in identifier or identifier.endswith((".", ".lock")):
        raise ValueError(f"{identifier!r} cannot be the id of a candidate")
    return CANDIDATES + identifier


class RefStore:
    """The refs of one repository."""

    def __init__(self, git_dir: Path, files: FileWriter) -> None:
        self._git_dir = git_dir
        self._files = files
        self._packed: tuple[tuple[int, int, int], dict[str, str]] | None = None

    def read(self, name: str) -> str | None:
        """The sha that a ref holds, or None when there is no such ref.

        Raises:
            SessionDamaged: the ref's file is empty or garbled.
        """
        loose = self._read_loose(name)
        return loose if loose is not None else self._read_packed().get(name)

    def list(self, prefix: str = "refs/") -> dict[str, str]:
        """Every ref below a folder (`prefix` ends in a slash): name to sha."""
        found: dict[str, str] = {}
        for folder, _, names in os.walk(self._git_dir / prefix):
            for name in names:
                path = Path(folder, name)
                ref = path.relative_to(self._git_dir).as_posix()
                if ref.endswith(".lock") or name.startswith("tmp_obj_"):
                    continue
                value = self._read_loose(ref)
                if value is not None:
                    found[ref] = value
        # Packed last: a ref that is being packed meanwhile is then seen in one place or the other.
        packed = {ref: sha for ref, sha in self._read_packed().items() if ref.startswith(prefix)}
        return dict(sorted((packed | found).items()))

    def update(
        self,
        name: str,
        new: str,
        *,
        old: str | None,
        message: str,
        person: Person,
        at_ns: int,
        durable: bool = False,
    ) -> None:
        """Moves a ref from `old` (None: it must not exist) to `new`, with a line in its reflog.

        With `durable` all that was written before, and then the ref, are on the disk when this
        returns.

        Raises:
            SessionConflict: the ref holds something else, or its lock is held.
            SessionFull: there is no room; the ref has not moved.
        """
        path = self._git_dir / name
        lock = path.with_name(path.name + ".lock")
        descriptor = self._take_lock(lock, name)
        try:
            try:
                self._expect(name, old)
                with disk_errors(path):
                    write_all(descriptor, new.encode() + b"\n")
            finally:
                os.close(descriptor)
            line = self._reflog_line(old, new, message, person, at_ns)
            logs = [self._git_dir / "logs" / name]
            if name == MAIN:
                logs.append(self._git_dir / "logs" / "HEAD")
            for log in logs:
                self._append(log, line)
            if durable:
                # The reflog too: should a later ref lose its object with the power, this line is
                # the way back to here.
                self._files.sync()
            with disk_errors(path):
                lock.rename(path)
        except BaseException:
            with suppress(OSError):
                lock.unlink()
            raise
        if durable:
            # One sync after the rename. Power lost in between can leave the ref empty; it was not
            # acknowledged then, and recovery finds the old value in the reflog.
            sync_path(path)
        else:
            self._files.remember(path)

    def reflog(self, name: str) -> list[str]:
        """The shas that a ref has held, oldest first, as its reflog tells."""
        try:
            data = (self._git_dir / "logs" / name).read_bytes()
        except FileNotFoundError:
            return []
        shas = [line[41:81].decode("ascii", "replace") for line in data.split(b"\n")]
        return [sha for sha in shas if _SHA.fullmatch(sha) and sha != _ZERO]

    def mend_reflog(self, name: str) -> None:
        """Cuts a reflog that ends in half a line back to its last whole one."""
        path = self._git_dir / "logs" / name
        with (
            suppress(FileNotFoundError),
            disk_errors(path, but_missing=True),
            path.open("r+b") as log,
        ):
            size = log.seek(0, os.SEEK_END)
            start = max(0, size - 8192)
            log.seek(start)
            tail = log.read()
            if tail and not tail.endswith(b"\n"):
                log.truncate(start + tail.rfind(b"\n") + 1)

    def _expect(self, name: str, old: str | None) -> None:
        try:
            now = self.read(name)
        except SessionDamaged:
            if old is not None:
                raise
            now = None
        if now != old:
            raise SessionConflict(
                f"{name} is at {now or 'nothing'}, expected {old or 'nothing'}: another program "
                "changed the session; close it and open the session again"
            )

    def _take_lock(self, lock: Path, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                return os.open(lock, flags, 0o644)
            except FileExistsError as error:
                if time.monotonic() > deadline:
                    raise SessionConflict(
                        f"{lock}: another program holds {name}; end it, or delete the file"
                    ) from error
                time.sleep(0.002)
            except (FileNotFoundError, NotADirectoryError):
                with disk_errors(lock):
                    lock.parent.mkdir(parents=True, exist_ok=True)
            except OSError:
                with disk_errors(lock):
                    raise

    @staticmethod
    def _reflog_line(old: str | None, new: str, message: str, person: Person, at_ns: int) -> bytes:
        text = one_line(message).encode("utf-8", "backslashreplace")
        at_ns = max(at_ns, 1_000_000_000)  # git takes a line of the year 1970 for a broken one
        return f"{old or _ZERO} {new} ".encode() + person.stamp(at_ns) + b"\t" + text + b"\n"

    def _append(self, log: Path, line: bytes) -> None:
        with disk_errors(log):
            try:
                file = log.open("ab", buffering=0)
            except FileNotFoundError:
                log.parent.mkdir(parents=True, exist_ok=True)
                file = log.open("ab", buffering=0)
            with file:
                size = file.seek(0, os.SEEK_END)
                try:
                    write_all(file.fileno(), line)
                except OSError:
                    file.truncate(size)
                    raise
        self._files.remember(log)

    def _read_loose(self, name: str) -> str | None:
        path = self._git_dir / name
        try:
            text = path.read_text("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SessionError(f"{path}: cannot be read ({error.strerror})") from error
        if not _SHA.fullmatch(text):
            raise SessionDamaged(f"{path} is empty or garbled (power loss?)")
        return text

    def _read_packed(self) -> dict[str, str]:
        path = self._git_dir / "packed-refs"
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                key = (state.st_ino, state.st_size, state.st_mtime_ns)
                if self._packed is not None and self._packed[0] == key:
                    return self._packed[1]
                data = file.read()
        except FileNotFoundError:
            return {}
        refs: dict[str, str] = {}
        for line in data.decode("utf-8", "replace").splitlines():
            sha, _, name = line.partition(" ")
            if _SHA.fullmatch(sha):
                refs[name] = sha
        self._packed = (key, refs)
        return refs
