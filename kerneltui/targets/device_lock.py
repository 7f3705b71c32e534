"""Locks of the site around all use of its devices: files that other programs take with `flock`, too.

The lock of this package (see `locks`) knows only itself. Where a site hands out its devices by a file, as in
`flock /var/lock/gpu.lock training`, that file is named in `machine.toml` or in the environment, and is held
from the first to the last use of the devices in an evaluation. In between everybody else gets a turn.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import LockTimeout

__all__ = ["DEVICE_LOCK", "DeviceLock", "named_locks"]

DEVICE_LOCK = "KERNELTUI_DEVICE_LOCK"
"""The variable that names a lock file beside those of `machine.toml`."""

_GPU = "{gpu}"
_POLL_S = 0.05
_SAY_AFTER_S = 1.0
_TURN_S = 0.05  # whoever waits in the kernel is woken in less


def named_locks(
    files: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The lock files that files of the machine and the environment name; `{gpu}` stands for a number.

    Raises:
        TargetError: The variable is no absolute path.
    """
    named = (os.environ if environment is None else environment).get(DEVICE_LOCK, "")
    if named and not named.startswith("/"):
        raise TargetError(f"{DEVICE_LOCK}={named} is no absolute path; name the lock file by one")
    return tuple(dict.fromkeys([*files, *([named] if named else [])]))


class DeviceLock:
    """The named lock files, taken together. A thread that holds them may ask again.

    Args:
        files: Absolute paths; in one with `{gpu}` each GPU has a file of its own.
        gpus: Numbers for that, by rank.
        say: Told of a wait, in one line.

    Raises:
        TargetError: A file can be neither opened nor made.
    """

    def __init__(
        self,
        files: Sequence[str] = (),
        gpus: Sequence[int] = (0,),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._files = tuple(files)
        self._gpus = tuple(gpus)
        self._say = say
        self._mine = threading.local()
        self._left_at = -_TURN_S
        for path in self.paths(len(self._gpus)):
            os.close(_opened(path))

    def paths(self, ranks: int) -> tuple[Path, ...]:
        """The files for so many ranks, in the order in which everybody takes them."""
        gpus = self._gpus[: max(1, ranks)]
        names = {file.replace(_GPU, str(gpu)) for file in self._files for gpu in gpus}
        return tuple(Path(name) for name in sorted(names))

    @contextmanager
    def held(self, ranks: int, *, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Holds the files, so that no other program that takes them uses the devices.

        Args:
            ranks: How many devices are used.
            stop: Asked while waiting; True ends the wait.

        Raises:
            LockTimeout: `stop` said so.
            TargetError: A file cannot be opened any more.
        """
        if not self._files or getattr(self._mine, "held", False):
            yield
            return
        time.sleep(max(0.0, self._left_at + _TURN_S - time.monotonic()))
        with ExitStack() as taken:
            for path in self.paths(ranks):
                descriptor = self._taken(path, stop)
                if descriptor is not None:
                    taken.callback(os.close, descriptor)
            self._mine.held = True
            try:
                yield
            finally:
                self._mine.held = False
                self._left_at = time.monotonic()

    def _taken(self, path: Path, stop: Callable[[], bool]) -> int | None:
        """Locks a file; None if whoever started this process holds it for us."""
        begin, said = time.monotonic(), False
        first = True
        while True:
            descriptor = _opened(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, path):
                    if said:
                        self._say(f"has the lock {path}")
                    return descriptor
                os.close(descriptor)  # somebody put another file into its place
                continue
            except BlockingIOError:
                inherited = first and _inherited(descriptor)
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if inherited:
                return None
            first = False
            if stop():
                raise LockTimeout(f"stopped while waiting for the lock {path}")
            if not said and time.monotonic() - begin >= _SAY_AFTER_S:
                said = True
                self._say(f"waits for the lock {path}")
            time.sleep(_POLL_S)


def _opened(path: Path) -> int:
    """Opens a lock file as others may have left it, or makes one that everybody can open."""
    flags = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    while True:
        try:
            # Without O_CREAT: in a folder with the sticky bit Linux refuses that for files of others.
            return os.open(path, os.O_RDWR | flags)
        except FileNotFoundError:
            pass
        except OSError:
            return _opened_to_read(path, flags)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            raise TargetError(f"the lock {path} cannot be made: {error.strerror}") from error
        os.fchmod(descriptor, 0o666)  # whatever the umask says, others shall take it too
        return descriptor


def _opened_to_read(path: Path, flags: int) -> int:
    """Opens a file that may not be written: that is enough to lock it."""
    try:
        return os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        raise TargetError(
            f"the lock {path} cannot be opened: {error.strerror}; its owner can allow it: chmod a+r"
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _inherited(descriptor: int) -> bool:
    """Whether this process was started with the file locked and open, as `flock FILE COMMAND` does."""
    wanted = os.fstat(descriptor)
    for entry in Path("/proc/self/fdinfo").iterdir():
        number = int(entry.name)
        try:
            if number == descriptor or not os.get_inheritable(number):
                continue  # what this process opens itself is not inherited further
            if os.path.samestat(os.fstat(number), wanted):
                # The kernel lists a lock at the open file that holds it; asking by flock could lose it.
                return "FLOCK" in entry.read_text(encoding="ascii")
        except OSError:
            continue  # gone meanwhile: the listing itself had one open
    return False
