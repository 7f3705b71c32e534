"""Tells clients about once a second what the GPUs do. This is progress: it is never journalled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kerneltui.engine.recorder import now_ns
from kerneltui.model.command import Progress
from kerneltui.model.reading import GpuReading, encode_readings

__all__ = ["GpuStrip"]

EVERY_S = 1.0


@dataclass(slots=True)
class GpuStrip:
    """Asks the GPUs while somebody looks.

    Attributes:
        readings: Asks for readings that are no older than so many seconds.
        progress: Broadcasts.
        clients: How many terminals look.
    """

    readings: Callable[[float], tuple[GpuReading, ...]]
    progress: Callable[[Progress], None]
    clients: Callable[[], int]
    _told: float = -EVERY_S

    def tell(self) -> None:
        """Broadcasts the readings if it is time, somebody looks, and there are GPUs."""
        now = time.monotonic()
        if now - self._told < EVERY_S or not self.clients():
            return
        self._told = now
        # While a candidate is timed its own readings are young enough, and nothing more is asked.
        found = self.readings(EVERY_S)
        if found:
            extra = {"readings": encode_readings(found)}
            self.progress(Progress("gpu", "", "", at=now_ns(), extra=extra))
