"""One lock for the machine: a compile never overlaps a timing burst, in this engine or in another.

Bursts are exclusive. Compiles exclude bursts but not one another. A lock dies with its process, so
nothing has to be cleaned up after a crash.

A thread that holds the machine for a burst may ask again, also to compile: it is not timing then.

Whoever comes first gets a turnstile, takes the lock and, unless it is exclusive, gives the turnstile
up. A waiting burst keeps the turnstile, so a stream of overlapping compiles cannot starve it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kerneltui.targets.errors import TargetError

__all__ = ["LockTimeout", "MachineLock", "runtime_directory"]

_POLL_S = 0.002


class LockTimeout(TargetError):
    """The machine lock was not to be had in time."""


class MachineLock:
    """The lock between compiles and timing bursts. One object serves any number of threads.

    Args:
        directory: Where the lock files lie; `runtime_directory()` by default.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or runtime_directory()
        self._mine = threading.local()

    @contextmanager
    def burst(
        self, *, timeout_s: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Iterator[None]:
        """Holds the machine alone, for timing.

        Args:
            timeout_s: How long to wait; for ever if None.
            stop: Asked while waiting; True ends the wait.

        Raises:
            LockTimeout: If the lock was not to be had in time, or `stop` said so.
        """
        if self._held_here():
            yield
            return
        deadline = _deadline(timeout_s)
        with (
            _held(self._directory / "turnstile.lock", fcntl.LOCK_EX, deadline, stop),
            _held(self._directory / "machine.lock", fcntl.LOCK_EX, deadline, stop),
        ):
            self._mine.burst = True
            try:
                yield
            finally:
                self._mine.burst = False

    @contextmanager
    def compiling(
        self, *, timeout_s: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Iterator[None]:
        """Keeps timing bursts away while a compiler runs. Arguments and errors as for `burst`."""
        if self._held_here():
            yield
            return
        deadline = _deadline(timeout_s)
        lock = _held(self._directory / "machine.lock", fcntl.LOCK_SH, deadline, stop)
        with _held(self._directory / "turnstile.lock", fcntl.LOCK_EX, deadline, stop):
            lock.__enter__()
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _held_here(self) -> bool:
        return getattr(self._mine, "burst", False)


def runtime_directory(temporary: Path = Path("/tmp")) -> Path:
    """The user's folder for the locks of this machine, made if missing, mode 0700.

    It is the same for all processes of the user: one that was started without a login, or with a folder for
    temporary files of its own, must meet the others.

    Args:
        temporary: A folder in which everybody may make one.

    Raises:
        TargetError: If it cannot be made, or belongs to somebody else.
    """
    path = temporary / f"kerneltui-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise TargetError(f"{path} cannot be made a folder: {error.strerror}") from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise TargetError(
            f"{path}, where your locks belong, is of another user or no folder; have it removed"
        )
    return path


@contextmanager
def _held(
    path: Path, mode: int, deadline: float | None, stop: Callable[[], bool] | None
) -> Iterator[None]:
    # Opened anew each time: flock binds to the open file, so threads exclude one another as well.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise LockTimeout(
                        f"another kerneltui holds {path}; wait for it or end it"
                    ) from None
                if stop is not None and stop():
                    raise LockTimeout("stopped while waiting for the machine") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
