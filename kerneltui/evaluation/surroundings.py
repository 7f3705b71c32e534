"""What happens around evaluations on their devices: whose turn it is, and who else is on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from kerneltui.targets.device_lock import DeviceLock
from kerneltui.targets.errors import TargetError
from kerneltui.targets.notices import Notices

__all__ = ["Surroundings"]

_EVERY_S = 5.0  # a look takes some milliseconds, between two rounds


class _Place(Protocol):
    """A target."""

    device_lock: DeviceLock
    notices: Notices

    def look(self, ranks: int) -> tuple[str, ...]:
        """Who else uses the first so many devices, in words; tells the user of whoever is new."""
        ...


class Surroundings:
    """Holds the devices for an evaluation, and looks now and then who else is there.

    Args:
        target: Whose devices.
        ranks: How many of them are used.
    """

    def __init__(self, target: _Place, ranks: int) -> None:
        self._target = target
        self._ranks = ranks
        self._looked_at = -_EVERY_S
        self._found: dict[str, None] = {}
        self._said_unseen = False

    @property
    def found(self) -> tuple[str, ...]:
        """Who was there since `begin`, in words."""
        return tuple(self._found)

    def begin(self) -> None:
        """Looks, for what begins now; what was there before it does not count."""
        self._found = {}
        self._looked_at = -_EVERY_S
        self.look()

    def look(self) -> None:
        """Looks if it is time. Not within a timed sample. A look that fails is told once, and no fault."""
        now = time.monotonic()
        if now - self._looked_at < _EVERY_S:
            return
        self._looked_at = now
        try:
            self._found |= dict.fromkeys(self._target.look(self._ranks))
        except TargetError as error:  # only a hint; whoever ends a group asks for certain
            if not self._said_unseen:
                self._said_unseen = True
                self._target.notices.say(
                    f"{error}; others on the devices may not be seen from now on"
                )

    @contextmanager
    def held(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Holds the devices by the locks of the site.

        Raises:
            LockTimeout: `stop` said that nothing is to be waited for.
        """
        with self._target.device_lock.held(self._ranks, stop=stop):
            yield
