"""The lock of the one writer: an `flock` that the kernel gives back when its holder dies.

git commands that write inherit the lock, so after a SIGKILL it lasts until the last of them has
ended; an opener that finds the recorded holder dead waits for that.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from kerneltui.session.errors import SessionLocked
from kerneltui.session.files import disk_errors

__all__ = ["WriterLock", "is_alive"]

LOCK_NAME = "kerneltui.lock"
_WAIT_FOR_CHILDREN_S = 20.0


class WriterLock:
    """Held from construction until `close`.

    Attributes:
        unclean: the last holder did not close the session.

    Raises:
        SessionLocked: a living process holds it.
    """

    def __init__(self, session: Path) -> None:
        path = session / ".git" / LOCK_NAME
        with disk_errors(path):
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(session)
            self.unclean = bool(self._read())
            with disk_errors(path):
                os.ftruncate(self.descriptor, 0)
                os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self, *, clean: bool) -> None:
        """Gives the lock back; `clean` records that nothing needs to be looked over."""
        if clean:
            with suppress(OSError):
                os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)

    def _take(self, session: Path) -> None:
        deadline = time.monotonic() + _WAIT_FOR_CHILDREN_S
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                pid = self._read()
                if is_alive(pid) or time.monotonic() > deadline:
                    raise SessionLocked(str(session), pid) from error
                time.sleep(0.01)

    def _read(self) -> int:
        text = os.pread(self.descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not, and its files are closed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
