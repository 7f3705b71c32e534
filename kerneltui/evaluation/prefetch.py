"""Builds ahead of need: the kernels that a search is going to ask for, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from kerneltui.evaluation.outcome import EvaluationError
from kerneltui.model.kernel import Kernel
from kerneltui.targets.errors import TargetError

__all__ = ["Prefetch"]

_LOOK_S = 0.05


class Prefetch:
    """Builds kernels in the background; the results are in the build cache.

    Args:
        build: Builds one kernel. From any thread.
        workers: Compilers at one time.
    """

    def __init__(self, build: Callable[[Kernel], object], workers: int) -> None:
        self._build = build
        self._pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="prefetch")
        self._asked: dict[str, Future[None]] = {}

    def ask(self, kernels: Iterable[Kernel]) -> None:
        """Begins with kernels that will be needed, each once, and returns at once."""
        for kernel in kernels:
            text = kernel.build_text()
            if text not in self._asked:
                self._asked[text] = self._pool.submit(self._try, kernel)

    def join(self, kernel: Kernel, checkpoint: Callable[[], None]) -> None:
        """Waits for a kernel that is being built, so that it is not built twice at the same time.

        One that has not been begun is left to the caller.

        Args:
            kernel: Which.
            checkpoint: Called meanwhile; may raise.
        """
        future = self._asked.get(kernel.build_text())
        if future is None or future.cancel():
            return
        while wait([future], _LOOK_S).not_done:
            checkpoint()

    def close(self) -> None:
        """Begins with nothing new; what is being compiled ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, kernel: Kernel) -> None:
        # Whoever needs the kernel meets the same failure, and knows what it means.
        with suppress(EvaluationError, TargetError):
            self._build(kernel)
