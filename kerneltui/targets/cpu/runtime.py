"""The CPU target: a toolchain, a fork server, and groups of ranks."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.cpu.toolchain import CpuToolchain
from kerneltui.targets.errors import FailureKind, RankFailure, ServerFailure
from kerneltui.targets.group import RankGroup
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole, Limits

__all__ = ["CpuTarget"]

WORKER_ENTRY = "kerneltui.evaluation.worker:main"
_SERVER_START_S = 180.0  # importing torch takes 2 s on a quiet machine
_HARNESS = Path(__file__).parent / "harness.cpp"
# The server must have one thread; OpenBLAS inside numpy starts more when it is loaded.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_DYNAMIC": "FALSE",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class CpuTarget:
    """Runs kernels in processes of this machine. A context manager.

    Args:
        cache: Folder for built kernels and measured ceilings.
        cores: Cores to use; all that this process may use by default.
        pin: Whether each rank keeps to cores of its own, where there are enough.
        confine: False leaves ranks without sandbox, for a debugger or a profiler.
        lock: Keeps compiles and timing bursts apart.
    """

    name = "cpu"

    def __init__(
        self,
        cache: Path,
        *,
        cores: int | None = None,
        pin: bool = False,
        confine: bool = True,
        lock: MachineLock | None = None,
    ) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))[:cores]
        self._pin = pin
        self._confine = confine
        self.cache = cache
        self.lock = lock or MachineLock()
        self.toolchain = CpuToolchain(cache / "builds", lock=self.lock)
        self._server: ForkServerClient | None = None
        self._directory: Path | None = None
        self._groups: dict[str, RankGroup] = {}
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()
        self._level: str | None = None

    @property
    def cores(self) -> int:
        """Cores that all ranks together use."""
        return len(self._cpus)

    @property
    def pinned(self) -> bool:
        """True if ranks keep to cores of their own, where there are enough."""
        return self._pin

    def threads_per_rank(self, ranks: int) -> int:
        """CPU threads of one rank: cores over ranks, at least one."""
        return max(1, self.cores // ranks)

    @property
    def sandbox_level(self) -> str:
        """What confines a rank, in words; opens a group for a moment if none ever was open."""
        if self._level is None:
            self.open_group(GroupRole.BASELINE, 1).close()
        assert self._level is not None
        return self._level

    @property
    def server_pid(self) -> int:
        """Process of the fork server.

        Raises:
            ServerFailure: If the target is not started.
        """
        return self._running().pid

    def start(self) -> None:
        """Starts the fork server and returns at once; torch is imported meanwhile.

        From the main thread, if the kernel shall end the server with this process (see
        `ForkServerClient.start`).
        """
        if self._server is not None:
            return
        self._directory = Path(tempfile.mkdtemp(prefix="kerneltui-ranks-"))
        server = ForkServerClient(WORKER_ENTRY, self._directory, _ENVIRONMENT)
        server.start()
        self._server = server

    def close(self) -> None:
        """Ends all groups, the fork server, and everything that is left under it."""
        with self._changing:
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def open_group(self, role: GroupRole, ranks: int, *, limits: Limits | None = None) -> RankGroup:
        """Starts a group of ranks and waits until all are ready and confined.

        Raises:
            RankFailure: If a rank does not start.
            ServerFailure: If there is no fork server.
            CompileFailure: If the timing harness does not build here.
        """
        if ranks < 1:
            raise ValueError(f"{ranks} ranks")
        server = self._running()
        limits = limits or Limits()
        harness = self.toolchain.compile(_HARNESS.read_text())
        server.wait_ready(_SERVER_START_S)
        assert self._directory is not None
        group_id = f"{role}-{next(self._numbers)}"
        try:
            group = RankGroup(
                server,
                group_id,
                role,
                ranks,
                limits=limits,
                directory=self._directory / group_id,
                options={
                    "threads": self.threads_per_rank(ranks),
                    "cpus": self._shares(ranks),
                    "confine": self._confine,
                    "harness": str(harness.library.resolve()),
                    "readable": [str(self.cache.resolve())],
                    "gloo_timeout_s": limits.start_s,
                },
            )
        except RankFailure as failure:
            raise RankFailure(
                FailureKind.START, failure.rank, f"cannot start: {failure.reason}", failure.detail
            ) from failure
        self._level = group.sandbox_level
        with self._changing:
            self._groups = {k: g for k, g in self._groups.items() if g.alive}
            self._groups[group_id] = group
        return group

    def __enter__(self) -> Self:
        """Starts."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    def _running(self) -> ForkServerClient:
        if self._server is None:
            raise ServerFailure("the CPU target is not started")
        return self._server

    def _shares(self, ranks: int) -> list[list[int]]:
        """Cores of each rank; empty if ranks are not to be pinned, or there are too few cores."""
        share = self.cores // ranks
        if not self._pin or share < 1:
            return []
        return [self._cpus[r * share : (r + 1) * share] for r in range(ranks)]
