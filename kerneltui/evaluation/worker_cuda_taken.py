"""Memory of a GPU that a kernel takes beyond its buffers, in the process of its rank."""

from __future__ import annotations

import os
from collections.abc import Callable

from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.targets.cuda.device import Gpus
from kerneltui.targets.errors import FailureKind, TargetError

__all__ = ["TakenMemory"]


class TakenMemory:
    """Counts what `setup` and `run` take, by the free memory of the GPU.

    That is quick, but whoever else is on the GPU takes of it too. So before the kernel is blamed, the driver
    is asked how much this process has.

    Args:
        device: The GPU, as the management library counts it.
        allowed: Bytes that a kernel may take.
        free: Tells the free bytes of the GPU.
    """

    def __init__(self, device: int, allowed: int, free: Callable[[], int]) -> None:
        self._device = device
        self._allowed = allowed
        self._ask_free = free
        self._free = self._taken = 0

    def begin(self) -> None:
        """Counts from nothing: the buffers of a shape are mapped, and its kernel has taken nothing."""
        self._taken = 0
        self.look()

    def look(self) -> None:
        """Looks, before something of the kernel runs."""
        self._free = int(self._ask_free())

    def add(self, where: str) -> None:
        """Adds what was taken since the last look.

        Args:
            where: What ran.

        Raises:
            KernelError: It is more than a kernel may take.
        """
        self._taken += self._free - int(self._ask_free())
        if self._taken <= self._allowed:
            return
        own = _own_bytes(self._device)
        if own is not None:
            self._taken = min(self._taken, own)
        if self._taken > self._allowed:
            unsure = "" if own is not None else "; the driver does not say whether others took it"
            raise KernelError(
                f"{where} took {self._taken >> 20} MiB of GPU memory beyond its buffers, "
                f"{self._allowed >> 20} MiB are allowed{unsure}",
                FailureKind.OUT_OF_MEMORY,
            )


def _own_bytes(device: int) -> int | None:
    """Memory of this process on a GPU, its context included; None if the driver does not tell."""
    try:
        return Gpus().use(device).processes.get(os.getpid())
    except (TargetError, OSError):  # a container, or a sandbox that the library does not open in
        return None
