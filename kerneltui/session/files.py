"""Files that appear whole or not at all, and what of them has not reached the disk.

The policy, in one place:

- Every file is written under a temporary name and renamed. SIGKILL leaves the old file, the new
  one, or a stray temporary file; the kernel keeps what was written, so no `fsync` is needed.
- Power loss can take what only the page cache holds. Each written path is remembered, and `sync`
  brings all of them to the disk. The journal
  calls it before it acknowledges an event that is asked for as durable (decisions are), and the
  engine may call it when idle.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from kerneltui.session.errors import SessionError, SessionFull

__all__ = ["TEMPORARY_PREFIX", "FileWriter", "disk_errors", "sync_path", "write_all"]

TEMPORARY_PREFIX = "tmp_obj_"
_FOLDER_TRIES = 20
"""git uses the same prefix, so its own clean-up knows our strays too."""

_SYNCS_AT_ONCE = 16

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(path: Path, *, but_missing: bool = False) -> Generator[None]:
    """Turns the operating system's refusal to write into one clear line.

    With `but_missing`, `FileNotFoundError` goes through for the caller to judge.

    Raises:
        SessionFull: the disk, the quota or the file-size limit is exhausted.
        SessionError: any other refusal, such as a read-only file system.
    """
    try:
        yield
    except OSError as error:
        if but_missing and isinstance(error, FileNotFoundError):
            raise
        reason = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            raise SessionFull(
                f"{path}: cannot write ({reason}); free some space, nothing recorded is lost"
            ) from error
        raise SessionError(f"{path}: cannot write ({reason})") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Writes every byte; a short write is followed by the rest or by the error that caused it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class FileWriter:
    """Writes whole files and keeps count of those not yet on the disk. Safe between threads."""

    def __init__(self) -> None:
        self._serial = itertools.count()
        self._unsynced: dict[Path, None] = {}
        self._guard = threading.Lock()

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """Puts a file in place in one step, replacing what stood there.

        Raises:
            SessionFull: there is no room; the old file still stands.
            SessionError: the operating system refuses.
        """
        name = f"{TEMPORARY_PREFIX}{os.getpid()}_{threading.get_ident()}_{next(self._serial)}"
        temporary = path.parent / name
        with disk_errors(path):
            descriptor = self._create(temporary, mode)
            try:
                try:
                    write_all(descriptor, data)
                finally:
                    os.close(descriptor)
                temporary.rename(path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()
                raise
        self.remember(path)

    @staticmethod
    def _create(temporary: Path, mode: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_FOLDER_TRIES):
            try:
                return os.open(temporary, flags, mode)
            except FileNotFoundError:
                # git removes folders of objects and refs that packing has emptied, also one that was
                # made a moment ago and holds nothing yet.
                with suppress(FileNotFoundError):
                    temporary.parent.mkdir(parents=True, exist_ok=True)
        return os.open(temporary, flags, mode)

    def remember(self, path: Path) -> None:
        """Counts a path, written by other means, among those not yet on the disk."""
        with self._guard:
            self._unsynced[path] = None

    def sync(self) -> None:
        """Brings everything written so far to the disk; a few milliseconds on an SSD.

        Raises:
            SessionError: the disk reports a failure; what was written may not survive power loss.
        """
        with self._guard:
            paths, self._unsynced = list(self._unsynced), {}
        try:
            self._sync_paths(paths)
        except BaseException:
            with self._guard:
                self._unsynced = dict.fromkeys(paths) | self._unsynced
            raise

    @staticmethod
    def _sync_paths(paths: list[Path]) -> None:
        if len(paths) < 3:
            for path in paths:
                sync_path(path)
            return
        # File systems join syncs that come together into few writes of their log.
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
            list(pool.map(sync_path, paths))


def sync_path(path: Path) -> None:
    """Brings one file to the disk, and with it its name.

    Called after the rename: a file system with a log commits both together, so no folder needs a
    sync of its own (git relies on the same). A missing file was packed or replaced meanwhile, and
    git brings its packs to the disk itself.

    Raises:
        SessionError: the disk reports a failure.
    """
    with suppress(FileNotFoundError), disk_errors(path, but_missing=True):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
