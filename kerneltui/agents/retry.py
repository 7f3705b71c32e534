"""Waiting between attempts: exponential, with jitter, and never longer than somebody wants."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Waiting", "wait_ms"]

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Waiting:
    """How to wait; tests put clocks and dice of their own in.

    Attributes:
        sleep: Waits seconds.
        dice: Returns a number from 0 to below 1.
        clock: Seconds.
    """

    sleep: Callable[[float], None] = time.sleep
    dice: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def pause(self, milliseconds: int, stop: Callable[[], bool]) -> bool:
        """Waits; True if it was ended early since `stop` said so."""
        left = milliseconds / 1000
        while left > 0:
            if stop():
                return True
            part = min(left, _LOOK_S)
            self.sleep(part)
            left -= part
        return stop()


def wait_ms(failures: int, asked: int | None, first: int, longest: int, dice: float) -> int:
    """The time to wait before the next attempt, in milliseconds.

    Agents that were turned away together must not come back together, so a part is left to chance: the upper
    half of the time where it is ours to choose, a tenth on top where the server has asked for one.

    Args:
        failures: Attempts that failed on the way so far; at least 1.
        asked: What the server asks for, in milliseconds; None if it says nothing.
        first: After the first failure, doubled with every further one.
        longest: What the doubling ends at.
        dice: From 0 to below 1.
    """
    if asked is not None:
        return asked + int(asked * dice / 10)
    # 2 ** 40 ms is a lifetime: no need for larger numbers
    whole = min(longest, first * 2 ** min(failures - 1, 40))
    return whole // 2 + int(whole * dice / 2)
